"""``auto`` in all futures of an estimate at once: a few array operations per tick instead of a run each.

The policy itself solves its programme anew for what each run has learnt, two score times a month: minutes for every
hundred futures. Here what a run has learnt is rounded to one of a few pairs of hazards (powers of two times the
built-in ones), each of which is solved once for all times and futures; of several places the cheapest that is up is
taken, and kept until it is lost. Billing, changeovers and safety net are those
of ``reference/drive.py``, to the tick. ``tests/sim/test_lockstep.py`` compares the two.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace

import numpy as np
from numpy.typing import NDArray

from everstep.brain.forecast.availability import AGES_H, BUILT_IN, Prior, Rates
from everstep.brain.forecast.piecewise import Piecewise
from everstep.brain.select.auto.beliefs import FIRST_AGE_S, Seen, last_of, prospect
from everstep.brain.select.auto.chart import ON_DEMAND, START_SPOT, Chart, chart
from everstep.brain.select.auto.policy import period_s
from everstep.brain.select.auto.problem import AGES, MOST_SLACK_S, Problem
from everstep.brain.select.auto.zones import price_usd_per_h
from everstep.brain.select.course import INSTANT_S, Situation, Standing
from everstep.brain.select.rough import affordable
from everstep.sim.reference.market import Job, Market

_IDLE, _SPOT = 0, 2
_PRIOR = Prior()
_STEP = 2.0
_MOST = 2
"""Hazards from a quarter of the built-in ones to four times them."""
_EDGES_H = np.asarray(AGES_H)
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Prices:
    """What a job may pay, USD per hour of the whole gang.

    Attributes:
        spot: of each place.
        on_demand: of the cheapest.
        mean_spot, drop_per_h: of the spot that a run has, see ``Prospect``, before anything was seen.
    """

    spot: tuple[float, ...]
    on_demand: float
    mean_spot: float
    drop_per_h: float

    @classmethod
    def of(cls, market: Market, job: Job) -> Prices | None:
        """At the first look at a market; None if no spot is worth having."""
        places = tuple(replace(place, up=True) for place in market.places(0, None))
        start = Situation(
            0.0, 0.0, job.deadline_s, job.task_s, 0.0, job.changeover_s, market.tick_s, Standing(), places
        )  # fmt: skip
        view = prospect(start, Seen.first(start))
        if view is None:
            return None
        spot = tuple([price_usd_per_h(place) if affordable(place) else math.inf for place in places])
        steady = min(place.on_demand_usd_per_h or math.inf for place in places)
        return cls(spot, steady, view.spot_usd_per_h, view.drop_per_h)


@dataclass(slots=True)
class _Runs:
    """Runs that are not done, one element of each array per future.

    Attributes:
        who: number of the future.
        mode, place: what it stands on; the place only counts on spot.
        since_s: when the present time up (in one place at least) or down began.
        events, exposure_h: shape (runs, 2, ages): what was seen, times up first.
        pair: number of the chart.
    """

    who: Ints
    mode: Ints
    place: Ints
    unpaid_s: Floats
    done_s: Floats
    usd: Floats
    since_s: Floats
    events: Floats
    exposure_h: Floats
    pair: Ints

    @classmethod
    def begin(cls, count: int) -> _Runs:
        def zeros() -> Floats:
            return np.zeros(count)

        seen, none = np.zeros((count, 2, AGES)), np.zeros(count, np.int64)
        return cls(
            np.arange(count), none, none.copy(), zeros(), zeros(), zeros(), zeros() - FIRST_AGE_S, seen, seen.copy(),
            none.copy(),
        )  # fmt: skip

    def keep(self, which: NDArray[np.bool_]) -> None:
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name)[which])


@dataclass(slots=True)
class Charts:
    """The charts of one job, solved when a run first needs them."""

    job: Job
    tick_s: float
    prices: Prices
    prior: Rates = field(init=False)
    number: dict[tuple[int, int], int] = field(default_factory=dict)
    solved: list[Chart] = field(default_factory=list)
    actions: NDArray[np.int8] = field(default_factory=lambda: np.zeros((0, 0, 0, 0), np.int8))

    def __post_init__(self) -> None:
        sold = sum(math.isfinite(usd) for usd in self.prices.spot)
        self.prior = BUILT_IN if sold == 1 else last_of(sold)

    def numbers(self, factors: Floats) -> Ints:
        """Of the chart of each run; ``factors``: shape (runs, 2), hazards of loss and return against the built-in."""
        powers = np.clip(np.rint(np.log2(factors) / math.log2(_STEP)), -_MOST, _MOST).astype(np.int64)
        kinds, which = np.unique(powers, axis=0, return_inverse=True)
        found = [self._number((int(loss), int(back))) for loss, back in kinds]
        return np.asarray(found, dtype=np.int64)[which.reshape(-1)]

    def _number(self, powers: tuple[int, int]) -> int:
        if powers not in self.number:
            number = self.number[powers] = len(self.solved)
            problem = self._problem(powers)
            if not number:
                self.solved.append(chart(problem))
                # Of all pairs, so that none is copied; a page that no chart fills takes no memory.
                self.actions = np.empty(((2 * _MOST + 1) ** 2, *self.solved[0].action.shape), np.int8)
                self.actions[0] = self.solved[0].action
            else:
                self.solved.append(chart(problem, self.actions[number]))
        return self.number[powers]

    def _problem(self, powers: tuple[int, int]) -> Problem:
        def scaled(hazard: Piecewise, power: int) -> Piecewise:
            return Piecewise(AGES_H, tuple([rate * _STEP**power for rate in hazard.per_h]))

        job = self.job
        most_s = math.floor(job.deadline_s / self.tick_s) * self.tick_s - job.task_s
        slack_s = min(max(most_s, 0.0), MOST_SLACK_S)
        return Problem(
            rates=Rates(scaled(self.prior.loss, powers[0]), scaled(self.prior.back, powers[1])),
            spot_usd_per_h=self.prices.mean_spot,
            on_demand_usd_per_h=self.prices.on_demand,
            left_s=job.task_s + job.changeover_s + slack_s,
            slack_s=slack_s,
            changeover_s=job.changeover_s,
            step_s=self.tick_s,
            drop_per_h=self.prices.drop_per_h,
        )


@dataclass(slots=True)
class Lockstep:
    """Futures of one job under ``auto``.

    Args:
        charts: of the job; what one run of this solved serves the next.
    """

    charts: Charts
    order: Ints = field(init=False)

    @property
    def job(self) -> Job:
        """What they all run."""
        return self.charts.job

    @property
    def tick_s(self) -> float:
        """Seconds per tick."""
        return self.charts.tick_s

    def run(self, ups: NDArray[np.bool_]) -> tuple[Floats, Floats]:
        """USD and finish of each future, in seconds; infinite if it is not done when its future ends.

        Args:
            ups: shape (futures, places, ticks): spot can be had.
        """
        count, _, ticks = ups.shape
        # Cheapest first: the first that is up is the one to take.
        self.order = np.argsort(np.asarray(self.charts.prices.spot), kind="stable")
        sold = int(np.isfinite(self.charts.prices.spot).sum())
        by_tick = np.ascontiguousarray(ups[:, self.order[:sold]].transpose(2, 1, 0))
        usd, finish_s = np.zeros(count), np.full(count, math.inf)
        runs = _Runs.begin(count)
        solve_at_s, before = 0.0, by_tick[0].any(axis=0)
        for tick in range(ticks):
            now_s = tick * self.tick_s
            ups_now = by_tick[tick][:, runs.who]
            up = ups_now.any(axis=0)
            self._seen(runs, up, before, now_s)
            lost = (runs.mode == _SPOT) & ~ups_now[runs.place, np.arange(len(up))]
            runs.mode[lost] = _IDLE
            runs.unpaid_s[lost] = 0.0
            if now_s >= solve_at_s - INSTANT_S:
                runs.pair = self.charts.numbers(_factors(runs, self.charts.prior))
                solve_at_s = now_s + period_s(now_s)
            self._steer(runs, ups_now, now_s)
            self._pass(runs)
            left = runs.done_s < self.job.task_s - INSTANT_S
            before = up
            if not left.all():
                who = runs.who[~left]
                usd[who], finish_s[who] = runs.usd[~left], now_s + self.tick_s
                runs.keep(left)
                before = up[left]
                if not len(runs.who):
                    break
        usd[runs.who] = runs.usd
        return usd, finish_s

    def _seen(self, runs: _Runs, up: NDArray[np.bool_], before: NDArray[np.bool_], now_s: float) -> None:
        """What the tick that passed taught, and what this one shows; spot that is gone is lost at its start."""
        if now_s > 0.0:
            rows = np.arange(len(up))
            middle_h = (now_s - self.tick_s / 2.0 - runs.since_s) / 3600.0
            bucket = np.searchsorted(_EDGES_H, middle_h, side="right") - 1
            runs.exposure_h[rows, (~before).astype(np.int64), bucket] += self.tick_s / 3600.0
        flipped = np.flatnonzero(up != before)
        if len(flipped):
            age_h = (now_s - runs.since_s[flipped]) / 3600.0
            bucket = np.searchsorted(_EDGES_H[1:], age_h, side="left")
            runs.events[flipped, (~before[flipped]).astype(np.int64), bucket] += 1.0
            runs.since_s[flipped] = now_s

    def _steer(self, runs: _Runs, ups: NDArray[np.bool_], now_s: float) -> None:
        job, tick_s, charts = self.job, self.tick_s, self.charts
        work_s = job.task_s - runs.done_s
        left_s = math.floor((job.deadline_s - now_s + INSTANT_S) / tick_s) * tick_s
        need_s = work_s + runs.unpaid_s
        slack_s = np.minimum(left_s - need_s, MOST_SLACK_S)
        age_h = (now_s - runs.since_s) / 3600.0
        row = np.searchsorted(_EDGES_H, age_h + 1e-9, side="right") - 1
        row += np.where(ups.any(axis=0), 0, AGES) + np.where(runs.mode == ON_DEMAND, 2 * AGES, 0)
        one = charts.solved[0]
        step = np.minimum(np.searchsorted(one.left_s, slack_s + need_s - INSTANT_S), len(one.left_s) - 1)
        column = np.floor((slack_s - one.least_s) / one.apart_s + 1e-6).astype(np.int64)
        column = np.clip(column, 0, charts.actions.shape[3] - 1)
        wanted = charts.actions[runs.pair, step, row, column].astype(np.int64)
        wanted[runs.mode == _SPOT] = START_SPOT
        # The safety net, in whole ticks, as in ``brain/select/net.py``.
        all_ticks = math.floor((job.deadline_s + INSTANT_S) / tick_s)
        crunch_s = (all_ticks - np.ceil((work_s + job.changeover_s - INSTANT_S) / tick_s)) * tick_s
        late = now_s >= crunch_s - INSTANT_S
        wanted[late & ~((runs.mode == _SPOT) & (runs.unpaid_s <= INSTANT_S))] = ON_DEMAND
        changed = wanted != runs.mode
        started = changed & (wanted == _SPOT)
        runs.place[started] = ups.argmax(axis=0)[started]
        runs.mode = wanted
        runs.unpaid_s[changed] = np.where(wanted[changed] == _IDLE, 0.0, job.changeover_s)

    def _pass(self, runs: _Runs) -> None:
        on = runs.mode != _IDLE
        paid_s = np.where(on, np.minimum(runs.unpaid_s, self.tick_s), 0.0)
        runs.unpaid_s -= paid_s
        runs.done_s = np.minimum(runs.done_s + np.where(on, self.tick_s - paid_s, 0.0), self.job.task_s)
        prices = self.charts.prices
        spot = np.asarray(prices.spot)[self.order][runs.place]
        per_h = np.where(runs.mode == _SPOT, spot, np.where(on, prices.on_demand, 0.0))
        runs.usd += per_h * (self.tick_s / 3600.0)


def _factors(runs: _Runs, built_in: Rates) -> Floats:
    """Shape (runs, 2): hazards of loss and of return, as times the built-in ones, by the hours seen at each age.

    The estimator of ``brain/forecast/availability.py``.
    """
    prior = np.asarray([built_in.loss.per_h, built_in.back.per_h])
    w, b = _PRIOR.pool_weight, _PRIOR.bucket_weight
    expected = (prior * runs.exposure_h).sum(axis=2)
    phi = (w + runs.events.sum(axis=2)) / (w + expected)
    mean = phi[:, :, None] * prior
    own = (b + runs.events) / (b + mean * runs.exposure_h)
    hours = runs.exposure_h + 1e-6
    factors: Floats = phi * np.exp((hours * np.log(own)).sum(axis=2) / hours.sum(axis=2))
    return factors
