"""The world of futures in step: what a tick does to all runs, whoever steers them."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from everstep.brain.select.course import INSTANT_S
from everstep.brain.select.rough import affordable
from everstep.sim.reference.market import Job, Market

IDLE, ON_DEMAND, SPOT = 0, 1, 2
"""Modes, and what may be wanted."""
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Tariff:
    """What a job may pay, USD per hour of the whole gang.

    Attributes:
        spot: of each place; infinite where it is not worth having.
        on_demand: of the cheapest.
    """

    spot: tuple[float, ...]
    on_demand: float

    @classmethod
    def of(cls, market: Market) -> Self:
        """Of a market whose prices stay."""
        places = market.places(0, None)
        spot = [math.inf if not affordable(place) else place.spot_usd_per_h or 0.0 for place in places]
        return cls(tuple(spot), min(place.on_demand_usd_per_h or math.inf for place in places))

    @property
    def sold(self) -> int:
        """In how many places spot is worth having."""
        return sum(math.isfinite(usd) for usd in self.spot)


class Rows:
    """A dataclass of arrays with one element per run, on the last axis."""

    def keep(self, which: Bools) -> None:
        """Drops the other runs."""
        for one in fields(self):  # type: ignore[arg-type]
            setattr(self, one.name, getattr(self, one.name)[..., which])


@dataclass(slots=True)
class Runs(Rows):
    """Runs that are not done.

    Attributes:
        who: number of the future.
        mode, place: what it stands on; the place, a number in the order of the steering, only counts on spot.
    """

    who: Ints
    mode: Ints
    place: Ints
    unpaid_s: Floats
    done_s: Floats
    usd: Floats

    @classmethod
    def begin(cls, count: int) -> Self:
        """All idle, with nothing done."""
        none, nought = np.zeros(count, np.int64), np.zeros(count)
        return cls(np.arange(count), none, none.copy(), nought, nought.copy(), nought.copy())


class Steering(Protocol):
    """A policy for all runs of one job at once."""

    @property
    def order(self) -> Ints:
        """The places that are worth having, in the order in which ``ups`` has them."""
        ...

    def begin(self, ups: Bools) -> None:
        """Forgets all runs: those to come begin now."""
        ...

    def steer(self, runs: Runs, ups: Bools, now_s: float) -> tuple[Ints, Ints]:
        """Mode and place that each run wants; the safety net speaks afterwards.

        Args:
            runs: what was lost in this tick is idle already.
            ups: shape (places, runs): spot can be had in this tick.
            now_s: since the beginning.
        """
        ...

    def keep(self, which: Bools) -> None:
        """The other runs are done."""
        ...


@dataclass(frozen=True, slots=True)
class Lockstep:
    """Futures of one job under one policy.

    Args:
        job, tick_s, tariff: what they run, in which ticks, at what prices.
        steering: the policy.
    """

    job: Job
    tick_s: float
    tariff: Tariff
    steering: Steering

    def run(self, ups: Bools) -> tuple[Floats, Floats]:
        """USD and finish of each future, in seconds; infinite if it is not done when its future ends.

        Args:
            ups: shape (futures, places, ticks): spot can be had.
        """
        count, _, ticks = ups.shape
        by_tick = np.ascontiguousarray(ups[:, self.steering.order].transpose(2, 1, 0))
        prices = np.asarray(self.tariff.spot)[self.steering.order]
        usd, finish_s = np.zeros(count), np.full(count, math.inf)
        runs = Runs.begin(count)
        self.steering.begin(by_tick[0])
        for tick in range(ticks):
            now_s = tick * self.tick_s
            now = by_tick[tick] if len(runs.who) == count else by_tick[tick][:, runs.who]
            lost = (runs.mode == SPOT) & ~now[runs.place, np.arange(len(runs.who))]
            runs.mode[lost] = IDLE
            runs.unpaid_s[lost] = 0.0
            mode, place = self.steering.steer(runs, now, now_s)
            self._take(runs, mode, place, now_s)
            self._pass(runs, prices)
            left = runs.done_s < self.job.task_s - INSTANT_S
            if not left.all():
                who = runs.who[~left]
                usd[who], finish_s[who] = runs.usd[~left], now_s + self.tick_s
                runs.keep(left)
                self.steering.keep(left)
                if not len(runs.who):
                    break
        usd[runs.who] = runs.usd
        return usd, finish_s

    def _take(self, runs: Runs, mode: Ints, place: Ints, now_s: float) -> None:
        """What was wanted, after the safety net of ``brain/select/net.py``, in whole ticks."""
        job, tick_s = self.job, self.tick_s
        all_ticks = math.floor((job.deadline_s + INSTANT_S) / tick_s)
        need = np.ceil((job.task_s - runs.done_s + job.changeover_s - INSTANT_S) / tick_s)
        late = now_s >= (all_ticks - need) * tick_s - INSTANT_S
        if late.any():
            stays = late & (runs.mode == SPOT) & (runs.unpaid_s <= INSTANT_S) & (mode != ON_DEMAND)
            mode = np.where(stays, SPOT, np.where(late, ON_DEMAND, mode))
            place = np.where(stays, runs.place, place)
        changed = (mode != runs.mode) | ((mode == SPOT) & (place != runs.place))
        runs.unpaid_s[changed] = np.where(mode[changed] == IDLE, 0.0, job.changeover_s)
        runs.mode, runs.place = mode.copy(), np.where(mode == SPOT, place, runs.place)

    def _pass(self, runs: Runs, prices: Floats) -> None:
        on = runs.mode != IDLE
        paid_s = np.where(on, np.minimum(runs.unpaid_s, self.tick_s), 0.0)
        runs.unpaid_s -= paid_s
        runs.done_s = np.minimum(runs.done_s + np.where(on, self.tick_s - paid_s, 0.0), self.job.task_s)
        per_h = np.where(runs.mode == SPOT, prices[runs.place], np.where(on, self.tariff.on_demand, 0.0))
        runs.usd += per_h * (self.tick_s / 3600.0)
