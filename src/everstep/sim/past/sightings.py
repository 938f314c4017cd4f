"""What a journal tells of each spot pool: when it was seen, what it had, what it cost; and what nobody saw.

A pool is *observed* while a machine of ours is in it, while somebody looked at it again and again and its provider
counted (the market stream), and for a while after each thing that told of it: a launch that went through or did not, a
machine taken back, a provider's count. For the rest of the time what was seen last is taken
to hold; before the first sighting, that one. A pool that nobody tried is left out, and all its hours are unobserved.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from everstep.control.kernel import Line
from everstep.control.sights import SEEN, Sight, parse_pool
from everstep.model.causes import InstanceEnd, NoticeKind
from everstep.model.errors import NoCapacity
from everstep.model.events import (
    Candidate,
    InstanceEnded,
    LaunchFailed,
    LaunchIntended,
    LaunchSucceeded,
    NoticeReceived,
)
from everstep.model.ids import InstanceId, JobId, LaunchToken
from everstep.model.offers import Market, Offer, Pool
from everstep.sim.world.supply import Lot, Steps

VALID_S = 1800.0
"""For how long a sighting counts as an observation: as long as a pool cools down by default."""

_TAKEN_S = 60.0
"""A machine that was taken is a loss to whoever is there in a replay, also where the pool had room again at once."""


@dataclass(slots=True)
class Watched:
    """One pool.

    Attributes:
        offer: the newest one that was taken.
        sightings: (UTC seconds, machines that could be held then; None = as many as anybody asked for).
        prices: (UTC seconds, USD per hour).
        holds: when machines of ours were in it.
        looks: when somebody looked at it again and again, and its provider counted.
    """

    offer: Offer
    sightings: list[tuple[float, int | None]] = field(default_factory=list)
    prices: list[tuple[float, float]] = field(default_factory=list)
    holds: list[tuple[float, float]] = field(default_factory=list)
    looks: list[tuple[float, float]] = field(default_factory=list)


def watched(lines: Sequence[Line], until: float, sights: Sequence[Sight] = ()) -> dict[Pool, Watched]:
    """Every pool that was weighed or looked at, with all that the journal tells of it up to ``until`` (UTC seconds)."""
    reader = _Reader(lines)
    known: list[Line | Sight] = [*lines, *(s for s in sights if s.at <= until)]
    for one in sorted(known, key=lambda one: one.at):
        if isinstance(one, Line):
            reader.take(one)
        else:
            reader.see(one)
    for pool, held in reader.held.items():
        reader.pools[pool].holds.extend((since, until) for since in held.values())
    for found in reader.pools.values():
        found.prices.sort()
    return reader.pools


class _Reader:
    """Follows machines through the journal."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self.pools: dict[Pool, Watched] = {}
        taken = [line.event.offer for line in lines if isinstance(line.event, LaunchIntended)]
        self._telling = {offer.provider for offer in taken if offer.available is not None}
        self._kinds = {offer.machine.name: offer for offer in taken}
        self._regions = {offer.zone: offer.region for offer in taken}
        self._names: dict[str, Pool] = {}
        self._taken_at: dict[Pool, float] = {}
        self.held: dict[Pool, dict[InstanceId, float]] = {}
        self._launches: dict[tuple[JobId, LaunchToken], Offer] = {}
        self._pool_of: dict[InstanceId, Pool] = {}
        self._counted_from: dict[Pool, float] = {}

    def see(self, sight: Sight) -> None:
        """One line of the market stream; what launches told is in the lines of their jobs."""
        if sight.kind == SEEN:
            with contextlib.suppress(AttributeError, KeyError, TypeError, ValueError):  # of another version: no word
                self._see(sight)

    def _see(self, sight: Sight) -> None:
        for name, price, count in sight.body["pools"]:
            pool = self._pool_named(str(name), float(price))
            if pool is None:
                continue
            self.pools[pool].prices.append((sight.at, float(price)))
            if count is not None:
                self._telling.add(pool.provider)
                self._counted_from.setdefault(pool, sight.at)
                self._heard(pool, sight.at, int(count) + self._count(pool))
        for provider, since in sight.body["looked"].items():
            for pool, counted_from in self._counted_from.items():
                if pool.provider == provider and counted_from < sight.at:
                    self.pools[pool].looks.append((max(float(since), counted_from), sight.at))

    def take(self, line: Line) -> None:
        """One line."""
        event, at = line.event, line.at
        for candidate in getattr(event, "candidates", ()):
            self._weighed(candidate, at)
        if isinstance(event, LaunchIntended):
            self._intended(line.job, event, at)
        elif isinstance(event, LaunchFailed):
            offer = self._launches.get((line.job, event.token))
            if offer is not None and event.error == NoCapacity.kind:
                self._saw(offer.pool, at, self._count(offer.pool))
        elif isinstance(event, LaunchSucceeded):
            offer = self._launches.get((line.job, event.token))
            if offer is not None:
                self._pool_of[event.instance] = offer.pool
                self.held.setdefault(offer.pool, {})[event.instance] = event.started_at
                self._saw(offer.pool, event.started_at, self._last_count(offer.pool))
        elif isinstance(event, NoticeReceived) and event.notice is NoticeKind.TERMINATE:
            self._left(event.instance, at, taken=True, until=at)
        elif isinstance(event, InstanceEnded):
            taken = event.end is InstanceEnd.PREEMPTED
            self._left(event.instance, event.ended_at, taken=taken, until=event.ended_at)

    def _intended(self, job: JobId, event: LaunchIntended, at: float) -> None:
        offer = event.offer
        self._launches[job, event.token] = offer
        pool = self.pools.setdefault(offer.pool, Watched(offer))
        pool.offer = offer
        pool.prices.append((at, offer.price_usd_per_h))
        if offer.available is not None:
            self._heard(offer.pool, at, offer.available + self._count(offer.pool))

    def _left(self, instance: InstanceId, at: float, *, taken: bool, until: float) -> None:
        pool = self._pool_of.get(instance)
        since = None if pool is None else self.held.get(pool, {}).pop(instance, None)
        if pool is None or since is None:
            return
        self.pools[pool].holds.append((since, until))
        if taken:
            self._taken_at[pool] = at
            self._saw(pool, at, self._count(pool))

    def _count(self, pool: Pool) -> int:
        return len(self.held.get(pool, {}))

    def _last_count(self, pool: Pool) -> int | None:
        """What a launch that went through tells: what was counted before, and at least what is held now."""
        seen = self.pools[pool].sightings
        last = seen[-1][1] if seen else None
        if pool.provider in self._telling:
            return max(last or 0, self._count(pool))
        return None if last is None or last < self._count(pool) else last

    def _weighed(self, candidate: Candidate, at: float) -> None:
        """A pool that was weighed: its price, and room where the provider counts it."""
        pool = self._pool_named(candidate.what, candidate.price_usd_per_h)
        if pool is None:
            return
        self.pools[pool].prices.append((at, candidate.price_usd_per_h))
        if pool.provider in self._telling and candidate.verdict == _NO_ROOM:
            self._saw(pool, at, self._count(pool))
        elif pool.provider in self._telling and candidate.verdict.startswith(_ROOM):
            self._heard(pool, at, self._count(pool) + 1)

    def _pool_named(self, name: str, price: float) -> Pool | None:
        """The pool of that name, from now on watched; None if it is none that the jobs could have used."""
        pool = self._names.get(name) or _pool(name, self._kinds)
        if pool is None:
            return None
        self._names[name] = pool
        if pool not in self.pools:
            self.pools[pool] = Watched(_imagined(pool, price, self._kinds, self._regions))
        return pool

    def _saw(self, pool: Pool, at: float, count: int | None) -> None:
        if pool.market is Market.SPOT:
            seen = self.pools[pool].sightings
            seen.append((max(at, seen[-1][0]) if seen else at, count))

    def _heard(self, pool: Pool, at: float, count: int) -> None:
        """A count that the provider tells; right after it took a machine it says nothing about that machine's place."""
        if at >= self._taken_at.get(pool, -_TAKEN_S) + _TAKEN_S:
            self._saw(pool, at, count)


_NO_ROOM = "no capacity"
_ROOM = ("possible", "chosen", "cooling down")
"""How verdicts begin on pools whose provider counts machines: none more could start, or one at least."""


def _pool(text: str, kinds: Mapping[str, Offer]) -> Pool | None:
    """The pool that a candidate names, if machines of its type are known."""
    pool = parse_pool(text)
    return None if pool is None or pool.machine_type not in kinds else pool


def _imagined(pool: Pool, price: float, kinds: Mapping[str, Offer], regions: Mapping[str, str]) -> Offer:
    """The offer of a pool that nobody took, after one of the same machine type. A zone is its region and a letter."""
    like = kinds[pool.machine_type]
    region = regions.get(pool.zone) or re.sub(r"-?[a-z]$", "", pool.zone) or pool.zone
    list_price = price if pool.market is Market.ON_DEMAND else like.on_demand_usd_per_h
    return replace(
        like,
        provider=pool.provider,
        region=region,
        zone=pool.zone,
        market=pool.market,
        price_usd_per_h=price,
        on_demand_usd_per_h=list_price,
        available=None,
    )


@dataclass(frozen=True)
class Rebuilt:
    """The market as far as it was seen.

    Attributes:
        lots: what can be sold in a replay.
        pool_h: hours of all spot pools between the first and the last line. unseen_h: those that nobody observed.
        left_out: spot pools that nobody tried, and machines that are no cloud's.
    """

    lots: tuple[Lot, ...]
    pool_h: float
    unseen_h: float
    left_out: tuple[str, ...]

    @property
    def unseen_share(self) -> float:
        """Share of pool-hours that nobody observed, 0 to 1."""
        return self.unseen_h / self.pool_h if self.pool_h else 0.0


FILLED = (
    "filled with what was seen last (before the first sighting: with that one); a launch that went through counts as "
    "room for every machine that is asked for, unless the provider tells numbers: then as what was seen"
)


def rebuild(pools: Mapping[Pool, Watched], begins_at: float, until: float, *, enough: int) -> Rebuilt:
    """The market of a replay.

    Args:
        pools: as ``watched`` gives them.
        begins_at, until: UTC seconds.
        enough: machines that a pool has while nobody was refused any.
    """
    span_s = until - begins_at
    lots, unseen_s, left_out, spots = [], 0.0, [], 0
    for (_, zone, machine), group in _grouped(pools).items():
        spot, steady = group.get(Market.SPOT), group.get(Market.ON_DEMAND)
        if spot is not None:
            spots += 1
            unseen_s += span_s - _seen_s(spot, begins_at, until)
        tried = spot is not None and bool(spot.sightings)
        if (spot is None and steady is None) or (spot is not None and not tried):
            left_out.append(f"{zone} {machine}")
        if not tried and steady is None:
            continue
        offer = (steady or spot or next(iter(group.values()))).offer
        supply = _steps(spot, begins_at, enough) if spot is not None and tried else None
        limit = None if steady is not None else 0
        lots.append(Lot(zone, offer.region, offer.machine, offer.on_demand_usd_per_h, supply, limit))
    return Rebuilt(tuple(lots), spots * span_s / 3600.0, unseen_s / 3600.0, tuple(left_out))


def _grouped(pools: Mapping[Pool, Watched]) -> dict[tuple[str, str, str], dict[Market, Watched]]:
    groups: dict[tuple[str, str, str], dict[Market, Watched]] = {}
    for pool, found in sorted(pools.items(), key=lambda item: str(item[0])):
        groups.setdefault((pool.provider, pool.zone, pool.machine_type), {})[pool.market] = found
    return groups


def _steps(pool: Watched, begins_at: float, enough: int) -> Steps:
    """Count and price over time, from sightings."""
    counts = [(at, enough if count is None else min(count, enough)) for at, count in pool.sightings]
    later = {at for at, _ in (*counts, *pool.prices) if at > begins_at}
    instants = np.array([begins_at, *sorted(later)])
    return Steps(
        at=instants,
        counts=_in_force(counts, instants).astype(np.int64),
        prices=_in_force(pool.prices, instants),
        begins_at=begins_at,
    )


def _in_force(values: Sequence[tuple[float, float]], instants: NDArray[np.float64]) -> NDArray[np.float64]:
    """Shape of ``instants``: the last value at or before each; the first one before that."""
    at = np.array([when for when, _ in values])
    found = np.array([value for _, value in values], dtype=np.float64)
    last: NDArray[np.float64] = found[np.maximum(np.searchsorted(at, instants, side="right") - 1, 0)]
    return last


def _seen_s(pool: Watched, begins_at: float, until: float) -> float:
    """Seconds of the span in which the pool was observed."""
    spans = [*pool.holds, *pool.looks, *((at, at + VALID_S) for at, _ in pool.sightings)]
    seen, reached = 0.0, begins_at
    for start, end in sorted(spans):
        start, end = max(start, reached), min(end, until)
        if end > start:
            seen += end - start
            reached = end
    return seen
