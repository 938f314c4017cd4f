"""The journal in memory: the reference that other stores are compared with, and the one of tests and simulator."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from itertools import islice

from everstep.model.errors import BadInput, Problem, StoreClosed, VersionConflict
from everstep.model.ids import StreamId
from everstep.ports import Append, Fence, Record
from everstep.store.bell import Bell
from everstep.store.leases import LeaseRow, check_fence, check_lease, grant
from everstep.store.lines import Line, decode_body, encode


@dataclass(frozen=True, slots=True)
class _Kept:
    seq: int
    stream: StreamId
    version: int
    line: Line

    def record(self) -> Record:
        # Decoded for each reader, as from a disk: nobody can change another's record, or the journal.
        body = decode_body(self.seq, self.line.body)
        return Record(self.seq, self.stream, self.version, self.line.at, self.line.kind, self.line.schema, body)


class MemoryStore:
    """A ``Store`` that lives and dies with the process. Made for one event loop; only ``follow`` ever waits."""

    def __init__(self, *, wall: Callable[[], float] = time.time) -> None:
        """Args: wall: UTC seconds, by which leases run out."""
        self._wall = wall
        # By position; None where a line was trimmed away.
        self._journal: list[_Kept | None] = []
        self._streams: dict[StreamId, list[_Kept | None]] = {}
        self._archived: set[StreamId] = set()
        self._snapshots: dict[str, tuple[int, bytes]] = {}
        self._leases: dict[str, LeaseRow] = {}
        self._bell = Bell()
        self._closed = False

    async def append(self, batch: Sequence[Append], fence: Fence | None) -> int:
        """See ``Store.append``. Raises TypeError or ValueError for what no journal can hold."""
        self._check_open()
        parts = encode(batch)
        if fence is not None:
            check_fence(fence, self._leases.get(fence.name))
        heads: dict[StreamId, int] = {}
        kept: list[_Kept] = []
        for part in parts:
            head = heads.get(part.stream, len(self._streams.get(part.stream, ())))
            if part.expected_version not in (None, head):
                raise VersionConflict(f"{part.stream} is at version {head}, not {part.expected_version}")
            for line in part.lines:
                head += 1
                kept.append(_Kept(len(self._journal) + len(kept) + 1, part.stream, head, line))
            heads[part.stream] = head
        for item in kept:
            self._journal.append(item)
            self._streams.setdefault(item.stream, []).append(item)
            self._archived.discard(item.stream)
        if kept:
            self._bell.ring()
        return len(self._journal)

    async def read(self, *, stream: StreamId | None = None, after: int = 0, limit: int = 10_000) -> Sequence[Record]:
        """See ``Store.read``."""
        self._check_open()
        lines = self._journal if stream is None else self._streams.get(stream, [])
        there = (lines[n] for n in range(max(after, 0), len(lines)))
        return [kept.record() for kept in islice((one for one in there if one is not None), max(limit, 0))]

    async def follow(self, *, after: int = 0) -> AsyncIterator[Record]:
        """See ``Store.follow``."""
        position = max(after, 0)
        with self._bell.listener() as listener:
            while not self._closed:
                listener.clear()
                while position < len(self._journal) and not self._closed:
                    position += 1
                    kept = self._journal[position - 1]
                    if kept is not None:
                        yield kept.record()
                if not self._closed:
                    await listener.wait(None)

    async def save_snapshot(self, name: str, *, seq: int, body: bytes) -> None:
        """See ``Store.save_snapshot``."""
        self._check_open()
        self._snapshots[name] = (seq, bytes(body))

    async def load_snapshot(self, name: str) -> tuple[int, bytes] | None:
        """See ``Store.load_snapshot``."""
        self._check_open()
        return self._snapshots.get(name)

    async def lease(self, name: str, holder: str, ttl_s: float) -> Fence:
        """See ``Store.lease``; ``ttl_s`` = 0 gives the lease back."""
        self._check_open()
        check_lease(name, holder, ttl_s)
        row = grant(name, self._leases.get(name), holder=holder, ttl_s=ttl_s, now=self._wall())
        self._leases[name] = row
        return Fence(name, row.holder, row.number)

    async def live_streams(self) -> dict[StreamId, int]:
        """Streams that are not archived, with the version of their last line."""
        self._check_open()
        return {stream: len(lines) for stream, lines in self._streams.items() if stream not in self._archived}

    async def archive(self, stream: StreamId, fence: Fence | None = None) -> None:
        """Takes a stream out of ``live_streams``; it is read as before, and a later append makes it live again."""
        self._check_open()
        if fence is not None:
            check_fence(fence, self._leases.get(fence.name))
        if stream in self._streams:
            self._archived.add(stream)

    async def trim(self, stream: StreamId, through: int, fence: Fence | None = None) -> None:
        """See ``Trimming.trim``."""
        self._check_open()
        if fence is not None:
            check_fence(fence, self._leases.get(fence.name))
        lines = self._streams.get(stream, [])
        for number in range(max(min(through, len(lines) - 1), 0)):
            kept = lines[number]
            if kept is not None:
                self._journal[kept.seq - 1] = lines[number] = None

    async def close(self) -> None:
        """See ``Store.close``."""
        self._closed = True
        self._bell.ring()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed("the store is closed")


def open_url(url: str) -> MemoryStore:
    """A new, empty store for ``memory://``."""
    if url != "memory://":
        raise BadInput(Problem("", "store", f"'{url}' is not understood", "a journal in memory is memory://"))
    return MemoryStore()
