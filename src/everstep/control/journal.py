"""Between the kernel and the store: lines out in groups, lines in on a restart, snapshots now and then."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from everstep.control.book import Book
from everstep.control.faults import reach
from everstep.control.kernel import Kernel, Line, Outcome
from everstep.control.shelf import Shelf
from everstep.control.sights import FULL_EVERY, Sight, Sights
from everstep.control.snapshots import Moment, Snapshots
from everstep.model.errors import EverstepError, StaleFence, StoreClosed, StoreUnusable, UnlistedTransition
from everstep.model.events import KINDS, decode, encode
from everstep.model.ids import DEPLOYMENT_STREAM, JOB_STREAMS, MARKET_STREAM, JobId, job_stream
from everstep.ports import Append, Clock, Fence, NewRecord, Record, Store
from everstep.store.archiving import Trimming

_PAGE = 2_000
LEASE = "controller"
LEASE_S = 15.0
SIGHTS_KEPT = 20_000
"""Lines of the market stream that are kept: weeks, where prices move every few minutes."""


class Journal:
    """Writes the kernel's lines and brings the kernel back after a restart.

    Args:
        store: the journal.
        holder: names this process in the lease.
        snapshot_every: lines between two snapshots.
        shelf: where the ended jobs of a snapshot are put.
        sights_kept: lines of the market stream that are kept.
    """

    def __init__(
        self,
        store: Store,
        *,
        clock: Clock,
        holder: str,
        snapshot_every: int = 5_000,
        sights_kept: int = SIGHTS_KEPT,
        shelf: Shelf | None = None,
    ) -> None:
        """See the class."""
        self._store = store
        self._clock = clock
        self._holder = holder
        self._snapshots = Snapshots(store, clock, shelf)
        self._snapshot_every = snapshot_every
        self._since_snapshot = 0
        self._snapshot_task: asyncio.Task[None] | None = None
        self._sights_kept = sights_kept
        self._sights_since_trim = FULL_EVERY
        self.fence: Fence | None = None
        self.seq = 0
        self.trouble = ""

    async def lease(self) -> None:
        """Takes or renews the right to write; raises LeaseHeld."""
        self.fence = await self._store.lease(LEASE, self._holder, LEASE_S)

    async def restore(self, kernel: Kernel, book: Book) -> None:
        """Brings the kernel to the end of the journal.

        Raises:
            EverstepError: a line that this version cannot read; the text names it.
        """
        moment = await self._snapshots.load()
        if moment is not None:
            book.restore(moment.live, moment.ended)
            self.seq, kernel.pools = moment.seq, moment.pools
            for state in moment.live.values():
                kernel.adopt(state)
        while True:
            records = await self._store.read(after=self.seq, limit=_PAGE)
            for record in records:
                _fold(kernel, book, record)
            if records:
                self.seq = records[-1].seq
            if len(records) < _PAGE:
                break
        kernel.sights = Sights()

    async def write(self, outcome: Outcome) -> None:
        """Makes the lines durable. A full disk is waited out: nothing is done that is not written first.

        Raises:
            StaleFence: another process is in charge now; this one must stop at once.
        """
        batch = [Append(job_stream(line.job), (_record(line),)) for line in outcome.lines]
        if outcome.sights:
            batch.append(Append(MARKET_STREAM, tuple(NewRecord(s.at, s.kind, 1, s.body) for s in outcome.sights)))
        if not batch:
            return
        reach("append.before")
        await self._append(batch)
        reach("append.after")
        self._since_snapshot += len(batch)
        self._sights_since_trim += len(outcome.sights)
        if self._sights_since_trim > FULL_EVERY:
            self._sights_since_trim = 0
            await self._trim_sights()

    async def _trim_sights(self) -> None:
        """Drops the oldest lines of the market stream."""
        if not isinstance(self._store, Trimming):
            return
        try:
            oldest = await self._store.read(stream=MARKET_STREAM, limit=1)
            if not oldest:
                return
            first = oldest[0].version
            spare = await self._store.read(stream=MARKET_STREAM, after=first - 1 + self._sights_kept)
            if spare:
                await self._store.trim(MARKET_STREAM, first - 1 + len(spare), self.fence)
        except (StaleFence, StoreUnusable, StoreClosed):
            raise
        except (EverstepError, OSError) as error:
            self.trouble = f"the market stream cannot be shortened: {error}"

    async def note(self, kind: str, body: Mapping[str, Any]) -> None:
        """A line about the deployment itself."""
        record = NewRecord(self._clock.now(), kind, 1, body)
        await self._append([Append(DEPLOYMENT_STREAM, (record,))])

    async def _append(self, batch: list[Append]) -> None:
        pause_s = 0.2
        while True:
            try:
                self.seq = await self._store.append(batch, self.fence)
                self.trouble = ""
                return
            except (StaleFence, StoreUnusable, StoreClosed):
                raise  # repeating cannot help
            except (EverstepError, OSError) as error:
                self.trouble = f"the journal cannot be written: {error}"
                await self._clock.sleep(pause_s)
                pause_s = min(pause_s * 2, 5.0)

    def snapshot_due(self) -> bool:
        """Whether a snapshot should be taken now."""
        running = self._snapshot_task is not None and not self._snapshot_task.done()
        return self._since_snapshot >= self._snapshot_every and not running

    def start_snapshot(self, kernel: Kernel, book: Book) -> None:
        """Takes one in the background, of the states as they are at this moment."""
        self._since_snapshot = 0
        self._snapshot_task = asyncio.get_running_loop().create_task(self._snapshot(self._moment(kernel, book)))

    def _moment(self, kernel: Kernel, book: Book) -> Moment:
        """Everything is of one moment: the loop goes on while the snapshot is written."""
        return Moment(self.seq, dict(kernel.states), book.packed(), kernel.pools)

    async def _snapshot(self, moment: Moment, *, hurry: bool = False) -> None:
        reach("snapshot.before")
        try:
            await self._snapshots.save(moment, hurry=hurry)
        except (EverstepError, OSError) as error:
            # A snapshot is a convenience: without it the next start reads more lines.
            self.trouble = f"no snapshot: {error}"
        reach("snapshot.after")

    async def close(self, kernel: Kernel, book: Book) -> None:
        """A last snapshot, so that the next start is short."""
        if self._snapshot_task is not None:
            # The last one holds more; what is written of it already may stay.
            self._snapshot_task.cancel()
            await asyncio.gather(self._snapshot_task, return_exceptions=True)
        await self._snapshot(self._moment(kernel, book), hurry=True)


def _record(line: Line) -> NewRecord:
    kind, schema, body = encode(line.event)
    return NewRecord(line.at, kind, schema, body)


def _fold(kernel: Kernel, book: Book, record: Record) -> None:
    if record.stream == MARKET_STREAM:
        kernel.replay_sight(Sight(record.kind, record.body, record.at))
    if not record.stream.startswith(JOB_STREAMS):
        return
    job = JobId(record.stream.removeprefix(JOB_STREAMS))
    if record.kind not in KINDS:
        raise EverstepError(f"journal line {record.seq}: this version knows no event '{record.kind}'")
    if book.is_put_away(job):
        kernel.adopt(book.take_out(job))
    try:
        kernel.replay(job, decode(record.kind, record.body), record.at)
    except (UnlistedTransition, KeyError, TypeError, ValueError) as error:
        raise EverstepError(f"journal line {record.seq} ({record.kind} of {job}) does not fit: {error!r}") from error
