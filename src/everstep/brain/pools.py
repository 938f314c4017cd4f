"""What we remember of pools: when one failed us last, and how often we asked lately.

A fold over the events of all jobs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from everstep.model.causes import InstanceEnd, NoticeKind
from everstep.model.events import Event, InstanceEnded, LaunchFailed, LaunchIntended, NoticeReceived
from everstep.model.job import InstanceState
from everstep.model.offers import Market, Pool

_WINDOW_S = 60.0


@dataclass(frozen=True, slots=True)
class PoolRecord:
    """What one pool did to us.

    Attributes:
        failed_at: UTC seconds of the last preemption or refusal.
        failure: what it was.
        preemptions, refusals: counts.
        launched_at: launches of the last minute, UTC seconds.
    """

    failed_at: float | None = None
    failure: str = ""
    preemptions: int = 0
    refusals: int = 0
    launched_at: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class PoolBook:
    """Records by pool."""

    records: Mapping[Pool, PoolRecord] = field(default_factory=dict)

    def record(self, pool: Pool) -> PoolRecord:
        """The pool's record, an empty one if it never came up."""
        return self.records.get(pool, PoolRecord())

    def cooling_until(self, pool: Pool, cooldown_s: float) -> float:
        """UTC seconds until which the pool is avoided; 0 when it never failed.

        Only markets that can run dry cool down.
        """
        failed_at = self.record(pool).failed_at
        return 0.0 if failed_at is None else failed_at + cooldown_s

    def launches_in_window(self, pool: Pool, now: float) -> int:
        """How many launches the pool was asked for in the last minute."""
        return sum(1 for at in self.record(pool).launched_at if at > now - _WINDOW_S)

    def credit_at(self, pool: Pool, now: float, per_minute: int, planned: int = 0) -> float:
        """When the pool may be asked again, UTC seconds.

        Args:
            pool: the pool.
            now: UTC seconds.
            per_minute: launches allowed in any minute, at least 1.
            planned: launches that are decided but not recorded yet.

        Returns:
            ``now`` if it has credit left, else when enough launches have left the window.
        """
        recent = [at for at in self.record(pool).launched_at if at > now - _WINDOW_S] + [now] * planned
        return now if len(recent) < per_minute else recent[-per_minute] + _WINDOW_S


def note_pools(book: PoolBook, event: Event, machine: InstanceState | None, now: float) -> PoolBook:
    """The book after an event of a job.

    Args:
        book: before.
        event: any event of a job.
        machine: the machine it speaks of, as it was before the event; None for others.
        now: UTC seconds of the event.
    """
    if isinstance(event, LaunchIntended):
        pool = event.offer.pool
        record = book.record(pool)
        recent = tuple(at for at in record.launched_at if at > now - _WINDOW_S)
        return _with(book, pool, replace(record, launched_at=(*recent, now)))
    if machine is None:
        return book
    pool = machine.offer.pool
    record = book.record(pool)
    if isinstance(event, LaunchFailed):
        return _with(book, pool, replace(record, failed_at=now, failure=event.error, refusals=record.refusals + 1))
    noticed = (
        isinstance(event, NoticeReceived)
        and event.notice is NoticeKind.TERMINATE
        and machine.notice is not event.notice
    )
    ended = isinstance(event, InstanceEnded) and event.end is InstanceEnd.PREEMPTED
    if noticed or (ended and machine.alive):
        # A preemption counts once, whether the notice or the end is heard first; the cool-down starts at the later one.
        count = record.preemptions + (0 if ended and machine.notice is NoticeKind.TERMINATE else 1)
        return _with(book, pool, replace(record, failed_at=now, failure="preempted", preemptions=count))
    return book


def _with(book: PoolBook, pool: Pool, record: PoolRecord) -> PoolBook:
    return PoolBook({**book.records, pool: record})


def can_run_dry(market: Market) -> bool:
    """Whether a failure in this market says something about the next try."""
    return market is Market.SPOT
