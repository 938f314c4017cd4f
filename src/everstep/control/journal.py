"""Between the kernel and the store: lines out in groups, lines in on a restart, snapshots now and then."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from everstep.control.book import Book
from everstep.control.faults import reach
from everstep.control.kernel import Kernel, Line, Outcome
from everstep.control.snapshots import Moment, Snapshots
from everstep.model.errors import EverstepError, StaleFence, StoreClosed, StoreUnusable, UnlistedTransition
from everstep.model.events import KINDS, decode, encode
from everstep.model.ids import DEPLOYMENT_STREAM, JobId, job_stream
from everstep.ports import Append, Clock, Fence, NewRecord, Record, Store

_PAGE = 2_000
LEASE = "controller"
LEASE_S = 15.0


class Journal:
    """Writes the kernel's lines and brings the kernel back after a restart.

    Args:
        store: the journal.
        holder: names this process in the lease.
        snapshot_every: lines between two snapshots.
    """

    def __init__(self, store: Store, *, clock: Clock, holder: str, snapshot_every: int = 5_000) -> None:
        """See the class."""
        self._store = store
        self._clock = clock
        self._holder = holder
        self._snapshots = Snapshots(store, clock)
        self._snapshot_every = snapshot_every
        self._since_snapshot = 0
        self._snapshot_task: asyncio.Task[None] | None = None
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
                return

    async def write(self, outcome: Outcome) -> None:
        """Makes the lines durable. A full disk is waited out: nothing is done that is not written first.

        Raises:
            StaleFence: another process is in charge now; this one must stop at once.
        """
        if not outcome.lines:
            return
        batch = [Append(job_stream(line.job), (_record(line),)) for line in outcome.lines]
        reach("append.before")
        await self._append(batch)
        reach("append.after")
        self._since_snapshot += len(batch)

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
    if record.stream == DEPLOYMENT_STREAM:
        return
    job = JobId(record.stream.removeprefix("job/"))
    if record.kind not in KINDS:
        raise EverstepError(f"journal line {record.seq}: this version knows no event '{record.kind}'")
    if book.is_put_away(job):
        kernel.adopt(book.take_out(job))
    try:
        kernel.replay(job, decode(record.kind, record.body), record.at)
    except (UnlistedTransition, KeyError, TypeError, ValueError) as error:
        raise EverstepError(f"journal line {record.seq} ({record.kind} of {job}) does not fit: {error!r}") from error
