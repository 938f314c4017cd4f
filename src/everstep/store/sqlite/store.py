"""The journal in one SQLite file."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from everstep.model.errors import BadInput, Problem, StoreClosed
from everstep.model.ids import StreamId
from everstep.ports import Append, Fence, Record
from everstep.store.bell import Bell
from everstep.store.leases import check_lease
from everstep.store.lines import decode_body, encode
from everstep.store.schema import Statement
from everstep.store.sqlite.faults import in_our_words
from everstep.store.sqlite.file import STATEMENTS, back_up, check_pages, connect, prepare
from everstep.store.sqlite.transaction import snapshot_digest
from everstep.store.sqlite.writer import GroupWriter

T = TypeVar("T")

_READERS = 2
_FOLLOW_PAGE = 1_000


class SqliteStore:
    """A ``Store`` in one file, mode 0600, safe against kill -9 and power cuts.

    Appends of concurrent callers share one transaction and one fsync. Reading never waits for writing. Several
    processes may have the file open; who may write is decided by the fence. Not for network file systems.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        wall: Callable[[], float] = time.time,
        busy_timeout_s: float = 5.0,
        poll_s: float = 0.5,
    ) -> None:
        """Opens the journal, or makes a new one.

        Args:
            path: the file; its folder must exist.
            wall: UTC seconds, by which leases run out.
            busy_timeout_s: how long a write waits for another process that is writing.
            poll_s: how often ``follow`` looks for lines of other processes; those of this store wake it at once.

        Raises:
            StoreUnusable: there is a file, but it is no journal that we can use.
        """
        self.path = os.path.abspath(path)
        self._wall = wall
        self._poll_s = poll_s
        self._bell = Bell()
        self._closed = False
        prepare(self.path)
        self._readers: queue.SimpleQueue[sqlite3.Connection] = queue.SimpleQueue()
        for _ in range(_READERS):
            self._readers.put(connect(self.path, read_only=True, busy_timeout_s=busy_timeout_s))
        self._pool = ThreadPoolExecutor(_READERS, thread_name_prefix="everstep-journal-reader")
        self._writer = GroupWriter(connect(self.path, busy_timeout_s=busy_timeout_s), self.path, self._bell.ring)

    async def append(self, batch: Sequence[Append], fence: Fence | None) -> int:
        """See ``Store.append``. A caller that is cancelled while it waits may have written all the same.

        Raises:
            TypeError, ValueError: what no journal can hold.
            StoreFull, StoreError: the disk refused; nothing of the batch is visible.
        """
        parts = encode(batch)
        return await self._writer.do(lambda transaction: transaction.append(parts, fence))

    async def read(self, *, stream: StreamId | None = None, after: int = 0, limit: int = 10_000) -> Sequence[Record]:
        """See ``Store.read``; archived streams included."""
        statement = STATEMENTS.read_all if stream is None else STATEMENTS.read_stream
        # SQLite takes a negative limit for none at all.
        values = {"name": stream, "after": after, "limit": max(limit, 0)}
        return await self._reading(lambda c: _records(c, statement, values))

    async def follow(self, *, after: int = 0) -> AsyncIterator[Record]:
        """See ``Store.follow``."""
        with self._bell.listener() as listener:
            while not self._closed:
                listener.clear()
                try:
                    records = await self.read(after=after, limit=_FOLLOW_PAGE)
                except StoreClosed:
                    return
                for record in records:
                    after = record.seq
                    yield record
                if len(records) < _FOLLOW_PAGE and not self._closed:
                    await listener.wait(self._poll_s)

    async def save_snapshot(self, name: str, *, seq: int, body: bytes) -> None:
        """See ``Store.save_snapshot``."""
        await self._writer.do(lambda transaction: transaction.save_snapshot(name, seq, bytes(body)))

    async def load_snapshot(self, name: str) -> tuple[int, bytes] | None:
        """See ``Store.load_snapshot``."""
        row = await self._reading(lambda c: _rows(c, STATEMENTS.snapshot, {"name": name}))
        if not row:
            return None
        seq, digest, body = row[0]
        sound = isinstance(seq, int) and isinstance(body, bytes) and digest == snapshot_digest(seq, body)
        return (seq, body) if sound else None

    async def lease(self, name: str, holder: str, ttl_s: float) -> Fence:
        """See ``Store.lease``; ``ttl_s`` = 0 gives the lease back.

        A holder is one process: two that share a name would share the number, and no fence could tell them apart.
        """
        check_lease(name, holder, ttl_s)
        # The clock is read inside the transaction: waiting for the file must not eat into a lease.
        return await self._writer.do(lambda transaction: transaction.lease(name, holder, ttl_s, self._wall()))

    async def live_streams(self) -> dict[StreamId, int]:
        """Streams that are not archived, with the version of their last line."""
        rows = await self._reading(lambda c: _rows(c, STATEMENTS.live_streams, {}))
        return {StreamId(name): version for name, version in rows}

    async def archive(self, stream: StreamId, fence: Fence | None = None) -> None:
        """Moves a stream out of the way of a restart; it is read as before, and a later append makes it live again.

        Raises:
            StaleFence: a newer lease was granted.
        """
        await self._writer.do(lambda transaction: transaction.archive(stream, fence))

    async def trim(self, stream: StreamId, through: int, fence: Fence | None = None) -> None:
        """See ``Trimming.trim``; the room in the file is used again."""
        await self._writer.do(lambda transaction: transaction.trim(stream, through, fence))

    async def check(self) -> None:
        """Looks at every page of the file (about a second per gigabyte). Raises StoreUnusable if one is damaged."""
        await self._reading(lambda c: check_pages(c, self.path))

    async def backup(self, target: str | os.PathLike[str]) -> None:
        """Copies the journal as of now to a new file, mode 0600; ``restore`` puts it back. Raises StoreUnusable."""
        await self._reading(lambda c: back_up(c, self.path, os.path.abspath(target)))

    async def close(self) -> None:
        """See ``Store.close``; what was handed in before is written first."""
        self._closed = True
        self._bell.ring()
        await asyncio.to_thread(self._shut_down)

    def _shut_down(self) -> None:
        self._writer.close()
        self._pool.shutdown()
        with contextlib.suppress(queue.Empty):
            while True:
                self._readers.get_nowait().close()

    async def _reading(self, read: Callable[[sqlite3.Connection], T]) -> T:
        if self._closed:
            raise StoreClosed(f"{self.path}: the store is closed")
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._with_reader, read)

    def _with_reader(self, read: Callable[[sqlite3.Connection], T]) -> T:
        # There are as many connections as threads: this never waits.
        connection = self._readers.get()
        try:
            with in_our_words(self.path):
                return read(connection)
        finally:
            self._readers.put(connection)


def _rows(connection: sqlite3.Connection, statement: Statement, values: dict[str, Any]) -> list[Any]:
    return connection.execute(statement.sql, statement.args(**values)).fetchall()


def _records(connection: sqlite3.Connection, statement: Statement, values: dict[str, Any]) -> list[Record]:
    return [
        Record(seq, StreamId(stream), version, at, kind, schema, decode_body(seq, body))
        for seq, stream, version, at, kind, schema, body in _rows(connection, statement, values)
    ]


def open_url(url: str) -> SqliteStore:
    """The store of ``sqlite:///relative/path`` or ``sqlite:////absolute/path``."""
    path = url.removeprefix("sqlite:///")
    if path == url or not path:
        fix = "write sqlite:///relative/path or sqlite:////absolute/path"
        raise BadInput(Problem("", "store", f"'{url}' names no file", fix))
    return SqliteStore(path)
