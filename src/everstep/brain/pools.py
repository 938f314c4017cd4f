"""What we remember of pools: when one failed us last, how often we asked lately, when spot was there and when not.

A fold over the events of all jobs and over the looks at the market, shared by all jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from everstep.brain.forecast.availability import Observed
from everstep.model.causes import InstanceEnd, NoticeKind
from everstep.model.errors import NoCapacity
from everstep.model.events import (
    Event,
    InstanceEnded,
    LaunchFailed,
    LaunchIntended,
    LaunchSucceeded,
    NoticeReceived,
)
from everstep.model.job import InstanceState
from everstep.model.offers import Market, Offer, Pool

_WINDOW_S = 60.0
_FLIPS_KEPT = 64


@dataclass(frozen=True, slots=True)
class PoolRecord:
    """What one pool did to us.

    Attributes:
        failed_at: UTC seconds of the last preemption or refusal.
        failure: what it was.
        preemptions, refusals: counts.
        launched_at: launches of the last minute, UTC seconds.
        counted: how many could start at the last look at the market; None = its provider does not say.
        seen: for how long spot was there and how often it went, since we first knew; seconds of the clock.
        flips: when it came (True) and went (False), the latest of them, UTC seconds.
    """

    failed_at: float | None = None
    failure: str = ""
    preemptions: int = 0
    refusals: int = 0
    launched_at: tuple[float, ...] = ()
    counted: int | None = None
    seen: Observed | None = None
    flips: tuple[tuple[float, bool], ...] = ()


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
    if isinstance(event, LaunchSucceeded):
        found = _found(record, pool, now, up=True)
        return book if found is record else _with(book, pool, found)
    if isinstance(event, LaunchFailed):
        found = _found(record, pool, now, up=False) if event.error == NoCapacity.kind else record
        return _with(book, pool, replace(found, failed_at=now, failure=event.error, refusals=record.refusals + 1))
    noticed = (
        isinstance(event, NoticeReceived)
        and event.notice is NoticeKind.TERMINATE
        and machine.notice is not event.notice
    )
    ended = isinstance(event, InstanceEnded) and event.end is InstanceEnd.PREEMPTED
    if noticed or (ended and machine.alive):
        # A preemption counts once, whether the notice or the end is heard first; the cool-down starts at the later one.
        count = record.preemptions + (0 if ended and machine.notice is NoticeKind.TERMINATE else 1)
        # We stood in the pool until now. Where others could still start at the last look, only this machine went.
        gone = record if record.counted or not can_run_dry(pool.market) else _seen(record, now, up=False, watched=True)
        return _with(book, pool, replace(gone, failed_at=now, failure="preempted", preemptions=count))
    return book


def see_offers(
    book: PoolBook, offers: Iterable[Offer], held: Mapping[Pool, int], now: float, *, watched: bool
) -> PoolBook:
    """The book after a look at the market.

    Only providers that count what could start teach something: spot is there while machines could start, or while we
    hold some that are not being taken back.

    Args:
        book: before.
        offers: the whole market.
        held: spot machines that we have, by pool, without those that will be taken back.
        now: UTC seconds.
        watched: no change was missed since the look before; else a change is put in the middle of the gap.
    """
    counts: dict[Pool, int] = {}
    for offer in offers:
        if can_run_dry(offer.market) and offer.available is not None:
            counts[offer.pool] = max(counts.get(offer.pool, 0), offer.available)
    for pool, record in book.records.items():
        if record.counted is not None:
            counts.setdefault(pool, 0)  # it is not offered any more
    return see_counts(book, counts, held, now, watched=watched)


def see_counts(
    book: PoolBook, counts: Mapping[Pool, int], held: Mapping[Pool, int], now: float, *, watched: bool
) -> PoolBook:
    """The book after some pools were counted: how many machines could start in each. See ``see_offers``."""
    changed: dict[Pool, PoolRecord] = {}
    for pool, count in counts.items():
        record = book.record(pool)
        up = count + held.get(pool, 0) > 0
        if record.seen is None or record.seen.up is not up or bool(record.counted) is not bool(count):
            changed[pool] = replace(_seen(record, now, up=up, watched=watched), counted=count)
    return PoolBook({**book.records, **changed}) if changed else book


def _found(record: PoolRecord, pool: Pool, now: float, *, up: bool) -> PoolRecord:
    """What a launch tells of a pool; nothing where looks at the market tell it better."""
    if record.counted is not None or not can_run_dry(pool.market):
        return record
    return _seen(record, now, up=up, watched=False)


def _seen(record: PoolRecord, at: float, *, up: bool, watched: bool) -> PoolRecord:
    seen = record.seen
    if seen is None:
        return replace(record, seen=Observed.begin(at, up), flips=((at, up),))
    at = max(at, seen.at_s)  # facts may come a little out of order
    after = seen.watched(at, up) if watched else seen.probed(at, up)
    if up is seen.up:
        return replace(record, seen=after)
    return replace(record, seen=after, flips=(*record.flips[1 - _FLIPS_KEPT :], (after.since_s, up)))


def _with(book: PoolBook, pool: Pool, record: PoolRecord) -> PoolBook:
    return PoolBook({**book.records, pool: record})


def can_run_dry(market: Market) -> bool:
    """Whether a failure in this market says something about the next try."""
    return market is Market.SPOT
