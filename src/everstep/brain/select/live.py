"""Policies of the seam (``course.py``), live: a ``Selector`` that builds a situation, asks, and takes the answer apart.

What a policy learnt is not kept: for each decision it is made again from what is journalled and seen (the pool book,
the launches of the job), so a restarted server and a replayed journal decide alike. Time is market time: a cloud in a
box that plays an hour in ten seconds looks to a policy like the hour. The deadline that a policy and the safety net see
is one changeover early, since a start may fail here.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from random import Random
from typing import Protocol, runtime_checkable

from everstep.brain.pools import PoolBook
from everstep.brain.select.course import (
    Course,
    Learner,
    Memory,
    Mode,
    Place,
    Policy,
    Situation,
    Standing,
    View,
)
from everstep.brain.select.greedy import Greedy
from everstep.brain.select.net import guard
from everstep.brain.select.on_demand import OnDemand
from everstep.brain.select.protocol import Choice, Held, Need, Outlook, Weighing, by_price
from everstep.model.events import Candidate
from everstep.model.offers import Market, Offer, Pool
from everstep.model.task import OnNoCapacity, SpotMode

_NOMINAL_WORK_S = 24 * 3600.0
"""Work that prices are compared for where nobody knows the work."""
_DAY_S = 86_400.0
_VIEWS = 256
_WAIT = "wait"


@runtime_checkable
class Resumer(Protocol):
    """A policy whose memory follows from the places that its job began on."""

    def resume(self, situation: Situation, begun: Sequence[str]) -> Memory:
        """The memory after these starts, oldest first."""
        ...


@dataclass(frozen=True, slots=True)
class Wants:
    """What a policy cannot do without: to know the work, to have a deadline, to be allowed on-demand."""

    work: bool = True
    deadline: bool = True
    on_demand: bool = False


class Live:
    """A policy of the seam as a ``Selector``; without state but for what it has reckoned before."""

    def __init__(self, name: str, policy: Policy, wants: Wants | None = None) -> None:
        """Args: name: for texts; policy: who decides; wants: what else than the market it needs."""
        self.name, self.policy = name, policy
        self.wants = wants or Wants()
        # Asked again and again, for every job, until a pool comes or goes: answers of a pure function are kept.
        self._recalled = lru_cache(maxsize=16)(self._recall)

    def choose(
        self,
        need: Need,
        offers: Sequence[Offer],
        *,
        beliefs: PoolBook,
        inflight: Mapping[Pool, int],
        now: float,
        rng: Random,
    ) -> Choice:
        """See ``Selector``."""
        if need.spot is SpotMode.FALSE:
            return OnDemand().choose(need, offers, beliefs=beliefs, inflight=inflight, now=now, rng=rng)
        shelf = _Shelf.filled(self._free_of_net(need), offers, beliefs, inflight, now)
        lacking = self._lacking(need, shelf)
        if lacking or need.outlook is None:
            choice = Greedy().choose(need, offers, beliefs=beliefs, inflight=inflight, now=now, rng=rng)
            text = f"{self.name} needs {lacking or 'to know the job'}; greedy instead: {choice.reason}"
            return replace(choice, reason=text)
        own = shelf.own()
        if own is not None:
            return shelf.weighing.choose(own, f"{own.market.value}: no spot is cheaper than what is there already")
        frame = _Frame.of(need.outlook, offers, now)
        situation = frame.situation(shelf.places(need.outlook), now, need)
        return self._answer(shelf, frame, situation, self._ask(situation, shelf, frame, beliefs))

    def reconsider(
        self,
        need: Need,
        held: Held,
        offers: Sequence[Offer],
        *,
        beliefs: PoolBook,
        inflight: Mapping[Pool, int],
        now: float,
    ) -> Choice:
        """See ``Mover``. A policy that would rather idle than go on where it is stays: machines are not given back."""
        shelf = _Shelf.filled(self._free_of_net(need), offers, beliefs, inflight, now).holding(held.offer)
        lacking = self._lacking(need, shelf)
        if lacking or need.outlook is None or need.spot is SpotMode.FALSE:
            return Choice(None, (), f"{self.name} needs {lacking}; the job stays where it is" if lacking else "")
        frame = _Frame.of(need.outlook, offers, now)
        mode, place = _mode(held.offer), place_of(held.offer.pool)
        standing = Standing(mode, place, 0.0, frame.at(held.since))
        situation = replace(frame.situation(shelf.places(need.outlook), now, need), standing=standing)
        course = self._ask(situation, shelf, frame, beliefs)
        if course.mode is Mode.IDLE or (course.mode, course.place) == (mode, place):
            course = replace(course, mode=Mode.IDLE, place=None)
        return self._answer(shelf, frame, situation, course)

    def _free_of_net(self, need: Need) -> Need:
        """A policy that the net does not hold is not driven to on-demand by the deadline either."""
        return need if self.policy.guarded else replace(need, must_on_demand=False)

    def _lacking(self, need: Need, shelf: _Shelf) -> str:
        outlook, wants = need.outlook, self.wants
        lacking = []
        if wants.work and (outlook is None or outlook.work_s is None):
            lacking.append("the work left (work, or a script that reports its total)")
        if wants.deadline and (outlook is None or outlook.deadline_at is None):
            lacking.append("a deadline (objective.deadline)")
        if wants.on_demand and not shelf.has(Mode.ON_DEMAND):
            lacking.append("on-demand to be had")
        return " and ".join(lacking)

    def _ask(self, situation: Situation, shelf: _Shelf, frame: _Frame, beliefs: PoolBook) -> Course:
        memory: Memory = None
        if isinstance(self.policy, Learner):
            memory = self._recalled(_past(situation, shelf, frame, beliefs))
        elif isinstance(self.policy, Resumer):
            memory = self.policy.resume(situation, [place_of(pool) for pool in frame.outlook.begun])
        course = self.policy.steer(situation, memory)
        return guard(situation, course) if self.policy.guarded else course

    def _recall(self, past: _Past) -> Memory:
        return self.policy.recall(past.views()) if isinstance(self.policy, Learner) else None

    def _answer(self, shelf: _Shelf, frame: _Frame, situation: Situation, course: Course) -> Choice:
        offer = shelf.offer(course)
        known = frame.outlook.work_s is not None
        candidates = tuple(_candidates(shelf, situation, course, offer, known=known))
        if offer is not None:
            reason = f"{self.name}: {course.reason}"
            return Choice(offer, candidates, f"{reason} ({course.basis})" if course.basis else reason)
        # A text with figures would be another one at every look, and each of them a line in the journal.
        figures = any(letter.isdigit() for letter in course.reason)
        reason = "to wait is worth more now than anything that is to be had" if figures else course.reason
        wakes = [*shelf.weighing.cooling_until, frame.utc(course.wake_at)]
        wake_at = min(wakes)
        return Choice(None, candidates, f"{self.name}: {reason}", None if math.isinf(wake_at) else wake_at)


def place_of(pool: Pool) -> str:
    """Name of the place in which spot and on-demand of one machine type and zone are one."""
    return f"{pool.provider}/{pool.zone}/{pool.machine_type}"


def _scale(offers: Iterable[Offer]) -> float:
    """Market seconds per second of the clock."""
    return max((offer.billing.time_scale for offer in offers), default=1.0)


@dataclass(frozen=True, slots=True)
class _Frame:
    """The clock of the situations: market seconds since a midnight, the same for all jobs that are decided that day."""

    outlook: Outlook
    scale: float
    origin: float

    @classmethod
    def of(cls, outlook: Outlook, offers: Iterable[Offer], now: float) -> _Frame:
        scale = _scale(offers)
        return cls(outlook, scale, math.floor(now * scale / _DAY_S) * _DAY_S / scale)

    def at(self, utc: float) -> float:
        return (utc - self.origin) * self.scale

    def utc(self, at: float) -> float:
        return self.origin + at / self.scale

    def situation(self, places: tuple[Place, ...], now: float, need: Need) -> Situation:
        told = self.outlook
        deadline_s = math.inf
        if told.deadline_at is not None and told.work_s is not None:
            deadline_s = max(self.at(told.deadline_at - told.changeover_s), self.at(told.began_at) + 1.0)
        work_s = _NOMINAL_WORK_S if told.work_s is None else told.work_s * self.scale
        lost = place_of(told.lost) if told.lost is not None else None
        return Situation(
            now_s=self.at(now),
            began_s=self.at(told.began_at),
            deadline_s=deadline_s,
            work_s=work_s,
            done_s=0.0 if told.work_s is None else told.done_s * self.scale,
            changeover_s=told.changeover_s * self.scale,
            tick_s=0.0,
            standing=Standing(since_s=self.at(now), lost_from=lost),
            places=places,
            # Once per job: an order of zones must not be shuffled anew for each decision.
            seed=Random(f"select/{need.job}").getrandbits(32),
        )


@dataclass(frozen=True, slots=True)
class _Shelf:
    """The offers of one decision, by place and mode."""

    weighing: Weighing
    all: dict[str, dict[Mode, Offer]]
    usable: dict[str, dict[Mode, Offer]]

    @classmethod
    def filled(
        cls, need: Need, offers: Sequence[Offer], beliefs: PoolBook, inflight: Mapping[Pool, int], now: float
    ) -> _Shelf:
        weighing = Weighing(need, beliefs, inflight, now)
        spot, steady = weighing.spot(offers), weighing.steady(offers)
        if need.must_on_demand and not steady:
            # The safety net catches nothing where on-demand is not to be had: spot is better than standing still.
            loose = replace(need, must_on_demand=False, on_no_capacity=OnNoCapacity.WAIT)
            return cls.filled(loose, offers, beliefs, inflight, now)
        if not spot and not steady:
            rested = weighing.rested(offers)
            spot = [] if rested is None else [rested]
        return cls(weighing, _by_place(offers), _by_place([*spot, *steady]))

    def holding(self, held: Offer) -> _Shelf:
        """With a machine that works: to stay on it is possible, at what it costs."""
        name, mode = place_of(held.pool), _mode(held)
        return replace(
            self,
            all={**self.all, name: {**self.all.get(name, {}), mode: held}},
            usable={**self.usable, name: {**self.usable.get(name, {}), mode: held}},
        )

    def own(self) -> Offer | None:
        """A machine that is there already, where no spot is cheaper."""
        own = [o for _, o in self._each(Mode.ON_DEMAND) if o.market in (Market.STATIC, Market.RESERVED)]
        best = min(own, key=by_price, default=None)
        dear = best is not None and any(o.price_usd_per_h < best.price_usd_per_h for _, o in self._each(Mode.SPOT))
        return None if dear else best

    def has(self, mode: Mode) -> bool:
        """Something may be leased in that mode."""
        return any(mode in modes for modes in self.usable.values())

    def _each(self, mode: Mode) -> Iterator[tuple[str, Offer]]:
        return ((name, modes[mode]) for name, modes in self.usable.items() if mode in modes)

    def places(self, outlook: Outlook) -> tuple[Place, ...]:
        """Prices are those of the whole gang."""
        regions = {(o.provider, o.region) for modes in self.all.values() for o in modes.values()}
        return tuple(self._place(name, outlook, several=len(regions) > 1) for name in sorted(self.all))

    def _place(self, name: str, outlook: Outlook, *, several: bool) -> Place:
        usable = self.usable.get(name, {})
        spot, steady = self.all[name].get(Mode.SPOT), usable.get(Mode.ON_DEMAND)
        some = next(iter(self.all[name].values()))
        region = f"{some.provider}/{some.region}"
        far = outlook.saved_in is not None and region != f"{outlook.saved_in.provider}/{outlook.saved_in.region}"
        return Place(
            name=name,
            region=region,
            spot_usd_per_h=None if spot is None else spot.price_usd_per_h * outlook.machines,
            on_demand_usd_per_h=None if steady is None else steady.price_usd_per_h * outlook.machines,
            up=Mode.SPOT in usable,
            move_usd=outlook.saved_gb * outlook.saved_in.egress_usd_per_gb if far and outlook.saved_in else 0.0,
            # Paid where the checkpoint lies, whatever region it goes to.
            leave_usd=outlook.saved_gb * some.egress_usd_per_gb if several else 0.0,
        )

    def offer(self, course: Course) -> Offer | None:
        """What to lease for a course."""
        return None if course.place is None else self.usable.get(course.place, {}).get(course.mode)


def _by_place(offers: Iterable[Offer]) -> dict[str, dict[Mode, Offer]]:
    """The cheapest offer of each place and mode."""
    best: dict[str, dict[Mode, Offer]] = {}
    for offer in sorted(offers, key=by_price):
        best.setdefault(place_of(offer.pool), {}).setdefault(_mode(offer), offer)
    return best


def _mode(offer: Offer) -> Mode:
    return Mode.SPOT if offer.market is Market.SPOT else Mode.ON_DEMAND


@dataclass(frozen=True, slots=True)
class _Past:
    """What was seen of spot so far, at today's prices; what was seen since the job began is among it.

    Nothing in it is of one job alone, so that what a policy learns from it serves all jobs.

    Attributes:
        places: of the situation, not observed, without the cost of moving.
        flips: (instant, number of the place, up), oldest first.
    """

    places: tuple[Place, ...]
    flips: tuple[tuple[float, int, bool], ...]

    def views(self) -> Iterator[View]:
        up_and_down = [(replace(place, up=False), replace(place, up=True)) for place in self.places]
        places = list(self.places)
        for at, number, up in self.flips:
            places[number] = up_and_down[number][up]
            yield View(at, tuple(places))


def _past(situation: Situation, shelf: _Shelf, frame: _Frame, beliefs: PoolBook) -> _Past:
    flips = []
    for number, place in enumerate(situation.places):
        offer = shelf.all[place.name].get(Mode.SPOT)
        if offer is not None:
            flips += [(frame.at(at), number, up) for at, up in beliefs.record(offer.pool).flips]
    places = tuple([replace(place, up=None, move_usd=0.0, leave_usd=0.0) for place in situation.places])
    return _Past(places, tuple(flip for flip in reversed(heapq.nlargest(_VIEWS, flips)) if flip[0] < situation.now_s))


def _candidates(
    shelf: _Shelf, situation: Situation, course: Course, chosen: Offer | None, *, known: bool
) -> Iterator[Candidate]:
    """Every offer with its verdict, and to wait; the score is what an hour of the work left is expected to cost."""
    expected = {(a.mode, a.place): a.expected_usd for a in course.alternatives}
    hours = max(situation.work_left_s, 1.0) / 3600.0
    usable = {str(o.pool): (mode, name) for name, modes in shelf.usable.items() for mode, o in modes.items()}

    def priced(what: str, usd_per_h: float, verdict: str, usd: float) -> Candidate:
        if math.isinf(usd) or math.isnan(usd):
            return Candidate(what, usd_per_h, None, verdict)
        text = f"{verdict}: the rest of the job would cost ${usd:.2f}" if known else verdict
        return Candidate(what, usd_per_h, usd / hours, text)

    for what, seen in shelf.weighing.verdicts.items():
        if what not in usable:
            yield replace(seen, score=None)
            continue
        verdict = "chosen" if chosen is not None and what == str(chosen.pool) else "possible"
        yield priced(what, seen.price_usd_per_h, verdict, expected.get(usable[what], math.inf))
    waiting = expected.get((Mode.IDLE, None), math.inf)
    yield priced(_WAIT, 0.0, "possible" if chosen is not None else "chosen", waiting)
