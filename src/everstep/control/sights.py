"""What goes into the market stream: prices, counts and answers to launches of every pool that some job could use.

The stream is the deployment's memory of the market: shared by all jobs, written with their lines, read again after a
restart, so that what was seen outlives a server that is killed. It is kept short: a line when something came or went,
at most one a minute for prices, one in ten minutes while nothing changes (it says that somebody was looking), now and
then one with everything, and the oldest lines are dropped (``journal``).

    PoolsSeen   {"full": all pools are listed, else those that changed; "looked": {provider: since when it was looked at
                without a gap, UTC seconds}, "pools": [[pool, USD per hour, how many could start or null], ...]}
    PoolTold    {"pool", "up": whether a machine was to be had, "why": launched, no_capacity or preempted}
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from everstep.brain.pools import PoolBook, can_run_dry, see_counts
from everstep.model.causes import InstanceEnd
from everstep.model.errors import NoCapacity
from everstep.model.events import Event, InstanceEnded, LaunchFailed, LaunchSucceeded
from everstep.model.job import InstanceState
from everstep.model.offers import MachineRequirement, Market, Offer, Pool

SEEN, TOLD = "PoolsSeen", "PoolTold"
FULL_EVERY = 400
"""Lines between two with everything."""
_PRICES_S, _ALIVE_S = 60.0, 600.0
_GAP_S = 120.0
"""Looks further apart than this were not one watch."""
_REPEAT_S = 60.0


_Offered = tuple[float, int | None]


@dataclass(frozen=True, slots=True)
class Sight:
    """One line of the market stream, at ``at`` (UTC seconds)."""

    kind: str
    body: Mapping[str, Any]
    at: float


class Sights:
    """Decides what of the market is worth a line."""

    def __init__(self) -> None:
        """Nothing was written yet: the first line has everything."""
        self._written: dict[Pool, _Offered] = {}
        self._written_at = -math.inf
        self._looked_at = -math.inf
        self._since: dict[str, float] = {}
        self._lines = FULL_EVERY
        self._wanted: frozenset[MachineRequirement] = frozenset()
        self._fits: dict[tuple[Pool, str], bool] = {}
        self._told: dict[Pool, tuple[bool, float]] = {}

    def look(
        self, offers: Iterable[Offer], answered: Collection[str], wanted: frozenset[MachineRequirement], now: float
    ) -> Sight | None:
        """A look at the market.

        Args:
            offers: all of it.
            answered: providers that answered; offers of others are old.
            wanted: what live jobs need, if there are any; pools that fit none of them are not followed.
            now: UTC seconds.
        """
        wanted = wanted or self._wanted  # between two jobs the market goes on
        if now - self._looked_at > _GAP_S:
            self._since.clear()
        self._looked_at = now
        if not wanted:
            return None
        before = set(self._since)
        self._since = {name: self._since.get(name, now) for name in sorted(answered)}
        seen = self._seen(offers, wanted)
        changed = {pool: what for pool, what in seen.items() if self._differs(pool, what)}
        urgent = set(self._since) != before or any(self._flips(pool, what) for pool, what in changed.items())
        passed_s = now - self._written_at
        if not (urgent or (changed and passed_s >= _PRICES_S) or passed_s >= _ALIVE_S) or not seen:
            return None
        return self._line(seen, changed, now)

    def _line(
        self,
        seen: Mapping[Pool, _Offered],
        changed: Mapping[Pool, _Offered],
        now: float,
    ) -> Sight:
        full = self._lines >= FULL_EVERY
        self._lines = 1 if full else self._lines + 1
        listed = seen if full else changed
        self._written = dict(seen) if full else {**self._written, **changed}
        looked = {name: max(since, min(self._written_at, now)) for name, since in self._since.items()}
        self._written_at = now
        pools = [[str(pool), price, count] for pool, (price, count) in sorted(listed.items(), key=lambda i: str(i[0]))]
        return Sight(SEEN, {"full": full, "looked": looked, "pools": pools}, now)

    def answer(self, event: Event, machine: InstanceState | None, now: float) -> Sight | None:
        """What a launch, or a machine that was taken, tells of its pool; not the same thing again within a minute."""
        told = _told_by(event)
        if told is None or machine is None or not can_run_dry(machine.offer.market):
            return None
        pool, (up, why) = machine.offer.pool, told
        last = self._told.get(pool)
        if last is not None and last[0] is up and now - last[1] < _REPEAT_S:
            return None
        self._told[pool] = (up, now)
        self._lines += 1
        return Sight(TOLD, {"pool": str(pool), "up": up, "why": why}, now)

    def _seen(self, offers: Iterable[Offer], wanted: frozenset[MachineRequirement]) -> dict[Pool, _Offered]:
        if wanted != self._wanted:
            self._wanted, self._fits = wanted, {}
        seen: dict[Pool, _Offered] = {}
        for offer in offers:
            pool = offer.pool
            if offer.market is Market.STATIC or pool.provider not in self._since or not self._fitting(offer, pool):
                continue
            held = seen.get(pool)
            if held is None or offer.price_usd_per_h < held[0]:
                seen[pool] = (offer.price_usd_per_h, offer.available)
        for pool, (price, count) in self._written.items():
            if pool.provider in self._since and pool not in seen and count is not None:
                seen[pool] = (price, 0)  # it is not offered any more
        return seen

    def _fitting(self, offer: Offer, pool: Pool) -> bool:
        key = pool, offer.region
        found = self._fits.get(key)
        if found is None:
            found = self._fits[key] = any(one.fits(offer) for one in self._wanted)
        return found

    def _differs(self, pool: Pool, what: _Offered) -> bool:
        was = self._written.get(pool)
        return was is None or was[0] != what[0] or self._flips(pool, what)

    def _flips(self, pool: Pool, what: _Offered) -> bool:
        was = self._written.get(pool)
        return was is None or (what[1] is None) != (was[1] is None) or bool(what[1]) is not bool(was[1])


def _told_by(event: Event) -> tuple[bool, str] | None:
    if isinstance(event, LaunchSucceeded):
        return True, "launched"
    if isinstance(event, LaunchFailed) and event.error == NoCapacity.kind:
        return False, event.error
    if isinstance(event, InstanceEnded) and event.end is InstanceEnd.PREEMPTED:
        return False, "preempted"
    return None


def fold(book: PoolBook, sight: Sight, held: Callable[[], Mapping[Pool, int]]) -> PoolBook:
    """The book after a line of the stream, as it was after the look itself.

    What launches told is in the lines of their jobs. A line of another version of everstep teaches nothing.

    Args:
        book: before.
        sight: the line.
        held: tells the spot machines that we had then, by pool.
    """
    body, at = sight.body, sight.at
    if sight.kind != SEEN:
        return book
    try:
        listed = [(parse_pool(name), count) for name, _, count in body["pools"]]
        began = {str(name): float(since) for name, since in body["looked"].items()}
    except (KeyError, TypeError, ValueError, AttributeError):
        return book
    counts = {p: int(count) for p, count in listed if p is not None and count is not None and can_run_dry(p.market)}
    for watched in (True, False):
        some = {p: count for p, count in counts.items() if (began.get(p.provider, at) < at) is watched}
        if some:
            book = see_counts(book, some, held(), at, watched=watched)
    return book


def parse_pool(text: str) -> Pool | None:
    """The pool of that name (``str`` of a pool); None if it is none."""
    parts: Sequence[str] = str(text).split("/")
    if len(parts) != 4 or parts[3] not in {market.value for market in Market}:
        return None
    return Pool(parts[0], parts[1], parts[2], Market(parts[3]))
