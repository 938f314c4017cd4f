"""What may happen inside one transaction of the writer. Several callers share it: each checks before it changes."""

from __future__ import annotations

import hashlib
import sqlite3
from typing import Any

from everstep.model.errors import VersionConflict
from everstep.model.ids import StreamId
from everstep.ports import Fence
from everstep.store.leases import LeaseRow, check_fence, grant
from everstep.store.lines import Lines
from everstep.store.schema import Statement
from everstep.store.sqlite.file import STATEMENTS


class Transaction:
    """The writer's view of the journal during one transaction.

    New lines are collected and written together at the end. Whatever a caller can be refused for (fence, version,
    lease) is checked against that view before anything of the caller's is added to it, so that a refusal leaves no
    trace and the others in the group never notice.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._heads: dict[StreamId, int] = {}
        self._moved: dict[StreamId, int] = {}
        self._rows: list[tuple[Any, ...]] = []
        self._last_seq: int = max(self._one(STATEMENTS.last_seq))
        self.grew = False

    def append(self, parts: tuple[Lines, ...], fence: Fence | None) -> int:
        """Adds a whole batch, or raises StaleFence or VersionConflict. Gives the number of the journal's last line."""
        if fence is not None:
            check_fence(fence, self._lease_row(fence.name))
        heads: dict[StreamId, int] = {}
        rows: list[tuple[Any, ...]] = []
        moved: dict[StreamId, int] = {}
        for part in parts:
            head = heads[part.stream] if part.stream in heads else self._head(part.stream)
            if part.expected_version not in (None, head):
                raise VersionConflict(f"{part.stream} is at version {head}, not {part.expected_version}")
            for line in part.lines:
                head += 1
                seq = self._last_seq + len(rows) + 1
                rows.append((seq, part.stream, head, line.at, line.kind, line.schema, line.body))
                moved[part.stream] = head
            heads[part.stream] = head
        self._last_seq += len(rows)
        self._rows += rows
        self._heads.update(heads)
        self._moved.update(moved)
        self.grew = self.grew or bool(rows)
        return self._last_seq

    def lease(self, name: str, holder: str, ttl_s: float, now: float) -> Fence:
        """Grants or renews a lease, or raises LeaseHeld."""
        row = grant(name, self._lease_row(name), holder=holder, ttl_s=ttl_s, now=now)
        self._connection.execute(STATEMENTS.set_lease.sql, (name, row.holder, row.number, row.expires_at))
        return Fence(name, row.holder, row.number)

    def save_snapshot(self, name: str, seq: int, body: bytes) -> None:
        """Replaces the snapshot of that name."""
        self._connection.execute(STATEMENTS.set_snapshot.sql, (name, seq, snapshot_digest(seq, body), body))

    def archive(self, stream: StreamId, fence: Fence | None) -> None:
        """Moves the lines of a stream out of the way of a restart, or raises StaleFence."""
        if fence is not None:
            check_fence(fence, self._lease_row(fence.name))
        self.flush()
        self._run(STATEMENTS.archive_lines, name=stream)
        self._run(STATEMENTS.drop_lines, name=stream)
        self._run(STATEMENTS.mark_archived, name=stream, archived=True)

    def trim(self, stream: StreamId, through: int, fence: Fence | None) -> None:
        """Deletes the lines of a stream up to a version, but never its last one; or raises StaleFence."""
        if fence is not None:
            check_fence(fence, self._lease_row(fence.name))
        self.flush()
        # The last line stays: the newest number of the journal is read from the lines that are there.
        through = min(through, self._head(stream) - 1)
        self._run(STATEMENTS.trim_lines, name=stream, through=through)
        self._run(STATEMENTS.trim_archive, name=stream, through=through)

    def flush(self) -> None:
        """Writes the lines collected so far."""
        if self._rows:
            self._connection.executemany(STATEMENTS.add_line.sql, self._rows)
            self._connection.executemany(STATEMENTS.set_stream.sql, [(s, v, False) for s, v in self._moved.items()])
            self._rows.clear()
            self._moved.clear()

    def _head(self, stream: StreamId) -> int:
        if stream not in self._heads:
            row = self._one(STATEMENTS.head, name=stream)
            self._heads[stream] = row[0] if row else 0
        return self._heads[stream]

    def _lease_row(self, name: str) -> LeaseRow | None:
        row = self._one(STATEMENTS.lease, name=name)
        return LeaseRow(*row) if row else None

    def _one(self, statement: Statement, **values: Any) -> Any:
        return self._connection.execute(statement.sql, statement.args(**values)).fetchone()

    def _run(self, statement: Statement, **values: Any) -> None:
        self._connection.execute(statement.sql, statement.args(**values))


def snapshot_digest(seq: int, body: bytes) -> bytes:
    """32 bytes that differ when the body, or the position it claims, was damaged."""
    return hashlib.sha256(b"%d\n" % seq + body).digest()
