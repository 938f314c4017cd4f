"""What a job will cost, by when, how surely: the policies over many futures, in the tick semantics of the reference.

Every policy meets the same futures, so that their figures can be compared. A slow policy meets the first of them only:
as many as its time allows.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from everstep.brain.forecast.availability import Observed
from everstep.brain.select import SELECTORS, Live, Wants
from everstep.brain.select.auto import Auto
from everstep.brain.select.course import Course, Memory, Mode, Policy, Situation
from everstep.brain.select.policies import POLICIES
from everstep.brain.select.policies.answers import idle, on_demand, spot
from everstep.brain.select.policies.utility import Utility
from everstep.sim.futures import FIRST_AGE_H, Futures, Sight, Ups
from everstep.sim.lockstep.auto import AutoInStep, Charts
from everstep.sim.lockstep.runs import Lockstep, Tariff
from everstep.sim.lockstep.utility import UtilityInStep
from everstep.sim.reference.drive import drive
from everstep.sim.reference.market import Job, Market, Zone

_TICKS_S = (600.0, 300.0, 120.0, 60.0)
_TICKS_WANTED = 288
_FEWEST = 20
_AT_ONCE = 1000
HALF_LIFE_H = 24.0
"""How soon a record fades. Hazards drift: without fading P10 to P90 held 67 % of what happened in windows of recorded
traces, with 96 h 72 %, 48 h 77 %, 24 h 80 % (``benchmarks/estimate.py``, on the traces that this was chosen by)."""
CURVE = tuple(n / 20 for n in range(21))
"""Shares at which the distributions are told for a picture."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Somewhere the job could run; prices are those of its whole gang, USD per hour."""

    name: str
    region: str
    spot_usd_per_h: float
    on_demand_usd_per_h: float


@dataclass(frozen=True, slots=True)
class Ask:
    """A job to be estimated.

    Attributes:
        work_s: seconds of undisturbed training.
        changeover_s: what each start costs, seconds.
        pools: as many as the futures have, in the same order.
    """

    work_s: float
    changeover_s: float
    pools: tuple[Pool, ...]

    @property
    def tick_s(self) -> float:
        """Length of the ticks in which it is run and billed."""
        return next((t for t in _TICKS_S if t * _TICKS_WANTED <= self.work_s), _TICKS_S[-1])


@dataclass(frozen=True, slots=True)
class Range:
    """Quantiles of an amount; infinite where so many futures never got there.

    ``curve``: at the shares of ``CURVE``.
    """

    p10: float
    p50: float
    p90: float
    curve: tuple[float, ...]

    @classmethod
    def of(cls, values: NDArray[np.float64]) -> Range:
        """Args: values: one per future; infinite ones among them."""
        ordered = np.sort(values)

        def at(share: float) -> float:
            # The inverted distribution: infinite values cannot be interpolated.
            return float(ordered[min(math.ceil(share * len(ordered)), len(ordered)) - 1 if share > 0 else 0])

        return cls(at(0.1), at(0.5), at(0.9), tuple(at(share) for share in CURVE))


@dataclass(frozen=True, slots=True)
class Estimate:
    """One policy under one deadline.

    Attributes:
        deadline_s: seconds from now; None = there is none.
        futures: how many it met.
        cost_usd, finish_s: over them; a future that ends before the job does never finishes, and costs what it cost.
        met: share of futures in which the deadline is met; None = there is none.
    """

    policy: str
    deadline_s: float | None
    futures: int
    cost_usd: Range
    finish_s: Range
    met: float | None


class Unfit(Exception):
    """The policy cannot be estimated so; the text says why."""


class _LiveGreedy:
    """The live ``greedy``: spot until it is lost, else on-demand, where it stays."""

    guarded = True

    def steer(self, situation: Situation, memory: Memory) -> Course:
        if situation.standing.mode is not Mode.ON_DEMAND:
            taken = spot(situation, "spot is up")
            if taken is not None:
                return taken
        steady = on_demand(situation, "no spot is up, or it went on-demand before")
        return steady or idle(situation, "nothing is to be had")


def entrant(name: str, *, deadline: bool) -> Policy:
    """The policy that a task of that ``policy`` gets.

    Raises:
        Unfit: there is none, or it needs a deadline.
    """
    selector = SELECTORS.get(name)
    wants = selector.wants if isinstance(selector, Live) else Wants(work=False, deadline=False)
    if wants.deadline and not deadline:
        raise Unfit(f"{name} needs a deadline")
    if name == "greedy":
        return _LiveGreedy()
    if isinstance(selector, Live):
        return selector.policy
    if selector is not None and name in POLICIES:
        return POLICIES[name]
    raise Unfit(f"there is no policy '{name}' that can be estimated; known: {', '.join(names())}")


def names() -> list[str]:
    """Policies that can be estimated, in the order of ``SELECTORS``."""
    return [name for name, one in SELECTORS.items() if isinstance(one, Live) or name in POLICIES]


def draws(ask: Ask, futures: Futures, count: int, horizon_s: float, seed: int) -> list[list[Ups]]:
    """So many futures of so many seconds, the same for every policy."""
    rng = np.random.default_rng(seed)
    ticks = math.ceil(horizon_s / ask.tick_s)
    return [futures.draw(rng, ticks, ask.tick_s) for _ in range(count)]


def horizon_s(ask: Ask, deadlines: Sequence[float | None]) -> float:
    """How far the futures must reach: beyond every deadline, and for a job without one long enough to be done."""
    longest = max((d for d in deadlines if d is not None), default=0.0)
    # What cannot be in time is done all the same, with a start or two more than work alone.
    late_s = ask.work_s + 3.0 * ask.changeover_s + 2.0 * ask.tick_s
    return max(1.25 * longest, 3.0 * late_s + 7 * 86_400.0 if None in deadlines else 0.0, late_s)


def estimate(
    ask: Ask,
    worlds: Sequence[Sequence[Ups]],
    policy: str,
    deadline_s: float | None,
    *,
    patience_s: float = math.inf,
    told: Callable[[int], None] = lambda done: None,
) -> Estimate:
    """One policy over the futures.

    Args:
        ask: the job.
        worlds: futures, see ``draws``.
        policy: name, as in a task.
        deadline_s: seconds from now; None = none.
        patience_s: after so many seconds of this computer no further future is begun, if there are 20.
        told: hears how many futures are done.

    Raises:
        Unfit: see ``entrant``.
    """
    steers = entrant(policy, deadline=deadline_s is not None)
    if isinstance(steers, Auto) and deadline_s is None:
        # What it comes to in one place; of several, as in step, the cheapest that is up, without moves.
        steers = POLICIES["spot_only"]
    # As live: the deadline that policy and safety net see is one changeover early.
    within_s = math.inf if deadline_s is None else max(deadline_s - ask.changeover_s, ask.tick_s)
    job = Job(ask.work_s, within_s, ask.changeover_s)
    lockstep = _lockstep(ask, _market(ask, worlds[0]), job, steers)
    tries = _one_by_one(ask, worlds, job, steers) if lockstep is None else _together(worlds, lockstep)
    began = time.monotonic()
    usd: list[float] = []
    finishes: list[float] = []
    for some_usd, some_finish_s in tries:
        usd += some_usd
        finishes += some_finish_s
        told(len(usd))
        if len(usd) >= _FEWEST and time.monotonic() - began > patience_s:
            break
    finish_s = np.asarray(finishes)
    return Estimate(
        policy=policy,
        deadline_s=deadline_s,
        futures=len(usd),
        cost_usd=Range.of(np.asarray(usd)),
        finish_s=Range.of(finish_s),
        met=None if deadline_s is None else float(np.mean(finish_s <= deadline_s + 1e-6)),
    )


_Some = tuple[list[float], list[float]]
"""USD and finish in seconds of some futures, in order."""


def _one_by_one(ask: Ask, worlds: Sequence[Sequence[Ups]], job: Job, steers: Policy) -> Iterator[_Some]:
    for number, ups in enumerate(worlds):
        outcome = drive(_market(ask, ups), replace(job, seed=number), steers)
        yield [outcome.cost_usd], [math.inf if outcome.finish_s is None else outcome.finish_s]


def _lockstep(ask: Ask, market: Market, job: Job, steers: Policy) -> Lockstep | None:
    """For a policy that would take too long one by one."""
    tariff = Tariff.of(market)
    if math.isinf(job.deadline_s) or not tariff.sold:
        return None
    if isinstance(steers, Utility):
        names = [pool.name for pool in ask.pools]
        return Lockstep(job, ask.tick_s, tariff, UtilityInStep(steers, job, ask.tick_s, tariff, names))
    charts = Charts.of(market, job) if isinstance(steers, Auto) else None
    return None if charts is None else Lockstep(job, ask.tick_s, tariff, AutoInStep(charts))


def _together(worlds: Sequence[Sequence[Ups]], lockstep: Lockstep) -> Iterator[_Some]:
    for first in range(0, len(worlds), _AT_ONCE):
        usd, finish_s = lockstep.run(np.asarray(worlds[first : first + _AT_ONCE]))
        yield usd.tolist(), finish_s.tolist()


def _market(ask: Ask, ups: Sequence[Ups]) -> Market:
    zones = [
        Zone(pool.name, pool.region, up, pool.spot_usd_per_h, pool.on_demand_usd_per_h)
        for pool, up in zip(ask.pools, ups, strict=True)
    ]
    return Market(zones, ask.tick_s)


def sighted(up: Ups, tick_s: float, *, half_life_h: float | None = HALF_LIFE_H) -> Sight:
    """What a record of a pool teaches: its end is now.

    Args:
        up: shape (ticks,), at least one.
        tick_s: seconds per tick.
        half_life_h: hours after which it counts half; None = never.
    """
    seen = Observed.begin(0.0, bool(up[0]), age_s=FIRST_AGE_H * 3600.0, half_life_h=half_life_h)
    for tick in (np.flatnonzero(up[1:] != up[:-1]) + 1).tolist():
        seen = seen.watched(tick * tick_s, bool(up[tick]))
    until_s = len(up) * tick_s
    seen = seen.watched(until_s, seen.up)
    return Sight(seen.up, seen.age_h(until_s), seen)
