"""``auto`` for all runs at once.

The policy itself solves its programme anew for what each run has learnt, two score times a month: minutes for every
hundred futures. Here what a run has learnt is rounded to one of a few pairs of hazards (powers of two times the
built-in ones), each of which is solved once for all times and futures; of several places the cheapest that is up is
taken, and kept until it is lost.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from everstep.brain.forecast.availability import AGES_H, BUILT_IN, Prior, Rates
from everstep.brain.forecast.piecewise import Piecewise
from everstep.brain.select.auto.beliefs import FIRST_AGE_S, Seen, last_of, prospect
from everstep.brain.select.auto.chart import Chart, chart
from everstep.brain.select.auto.policy import period_s
from everstep.brain.select.auto.problem import AGES, IMPATIENCE, MOST_SLACK_OF_WORK, MOST_SLACK_S, Problem, most_slack_s
from everstep.brain.select.course import INSTANT_S, Situation, Standing
from everstep.sim.lockstep.runs import ON_DEMAND, SPOT, Bools, Floats, Ints, Rows, Runs, Tariff
from everstep.sim.reference.market import Job, Market

_PRIOR = Prior()
_STEP = 2.0
_MOST = 2
"""Hazards from a quarter of the built-in ones to four times them."""
_EDGES_H = np.asarray(AGES_H)


@dataclass(slots=True)
class Charts:
    """The charts of one job, solved when a run first needs them.

    Attributes:
        mean_spot, drop_per_h: of the spot that a run has, see ``Prospect``, before anything was seen.
    """

    job: Job
    tick_s: float
    tariff: Tariff
    mean_spot: float
    drop_per_h: float
    prior: Rates = field(init=False)
    number: dict[tuple[int, int], int] = field(default_factory=dict)
    solved: list[Chart] = field(default_factory=list)
    actions: NDArray[np.int8] = field(default_factory=lambda: np.zeros((0, 0, 0, 0), np.int8))

    def __post_init__(self) -> None:
        self.prior = BUILT_IN if self.tariff.sold == 1 else last_of(self.tariff.sold)

    @classmethod
    def of(cls, market: Market, job: Job) -> Self | None:
        """As of the first look at a market; None if no spot is worth having."""
        places = tuple(replace(place, up=True) for place in market.places(0, None))
        start = Situation(
            0.0, 0.0, job.deadline_s, job.task_s, 0.0, job.changeover_s, market.tick_s, Standing(), places
        )  # fmt: skip
        view = prospect(start, Seen.first(start))
        if view is None:
            return None
        return cls(job, market.tick_s, Tariff.of(market), view.spot_usd_per_h, view.drop_per_h)

    def numbers(self, factors: Floats) -> Ints:
        """Of the chart of each run; ``factors``: shape (2, runs), hazards of loss and return against the built-in."""
        powers = np.clip(np.rint(np.log2(factors) / math.log2(_STEP)), -_MOST, _MOST).astype(np.int64)
        kinds, which = np.unique(powers, axis=1, return_inverse=True)
        found = [self._number((int(loss), int(back))) for loss, back in kinds.T]
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
        slack_s = min(max(most_s, 0.0), most_slack_s(job.task_s))
        return Problem(
            rates=Rates(scaled(self.prior.loss, powers[0]), scaled(self.prior.back, powers[1])),
            spot_usd_per_h=self.mean_spot,
            on_demand_usd_per_h=self.tariff.on_demand,
            left_s=job.task_s + job.changeover_s + slack_s,
            slack_s=slack_s,
            changeover_s=job.changeover_s,
            step_s=self.tick_s,
            drop_per_h=self.drop_per_h,
            idle_usd_per_h=IMPATIENCE * self.mean_spot,
        )


@dataclass(slots=True)
class _Learnt(Rows):
    """What runs have seen.

    Attributes:
        up: spot was up, in one place at least, when last seen.
        since_s: when the present time up or down began.
        events, exposure_h: shape (2, ages, runs): what was seen, times up first.
        pair: number of the chart.
    """

    up: Bools
    since_s: Floats
    events: Floats
    exposure_h: Floats
    pair: Ints


class AutoInStep:
    """See the module."""

    def __init__(self, charts: Charts) -> None:
        """Args: charts: of the job; what one run of this solved serves the next."""
        self.charts = charts
        # Cheapest first: the first that is up is the one to take.
        self.order = np.argsort(np.asarray(charts.tariff.spot), kind="stable")[: charts.tariff.sold]

    def begin(self, ups: Bools) -> None:
        """See ``Steering``."""
        count = ups.shape[1]
        seen = np.zeros((2, AGES, count))
        since_s = np.full(count, -FIRST_AGE_S)
        self._learnt = _Learnt(_any(ups), since_s, seen, seen.copy(), np.zeros(count, np.int64))
        self._solve_at_s = 0.0

    def keep(self, which: Bools) -> None:
        """See ``Steering``."""
        self._learnt.keep(which)

    def steer(self, runs: Runs, ups: Bools, now_s: float) -> tuple[Ints, Ints]:
        """See ``Steering``."""
        charts, learnt = self.charts, self._learnt
        job, tick_s = charts.job, charts.tick_s
        self._see(_any(ups), now_s)
        if now_s >= self._solve_at_s - INSTANT_S:
            learnt.pair = charts.numbers(_factors(learnt, charts.prior))
            self._solve_at_s = now_s + period_s(now_s)
        work_s = job.task_s - runs.done_s
        left_s = math.floor((job.deadline_s - now_s + INSTANT_S) / tick_s) * tick_s
        need_s = work_s + runs.unpaid_s
        slack_s = np.minimum(left_s - need_s, np.maximum(MOST_SLACK_S, MOST_SLACK_OF_WORK * work_s))
        age_h = (now_s - learnt.since_s) / 3600.0
        row = np.searchsorted(_EDGES_H, age_h + 1e-9, side="right") - 1
        row += np.where(learnt.up, 0, AGES) + np.where(runs.mode == ON_DEMAND, 2 * AGES, 0)
        one = charts.solved[0]
        step = np.minimum(np.searchsorted(one.left_s, slack_s + need_s - INSTANT_S), len(one.left_s) - 1)
        column = np.maximum(np.searchsorted(one.slack_s, slack_s + 1e-3, side="right") - 1, 0)
        wanted = charts.actions[learnt.pair, step, row, column].astype(np.int64)
        stays = runs.mode == SPOT
        return np.where(stays, SPOT, wanted), np.where(stays, runs.place, ups.argmax(axis=0))

    def _see(self, up: Bools, now_s: float) -> None:
        """What the tick that passed taught, and what this one shows."""
        learnt, tick_s = self._learnt, self.charts.tick_s
        if now_s > 0.0:
            middle_h = (now_s - tick_s / 2.0 - learnt.since_s) / 3600.0
            bucket = np.searchsorted(_EDGES_H, middle_h, side="right") - 1
            learnt.exposure_h[(~learnt.up).astype(np.int64), bucket, np.arange(len(up))] += tick_s / 3600.0
        flipped = np.flatnonzero(up != learnt.up)
        if len(flipped):
            age_h = (now_s - learnt.since_s[flipped]) / 3600.0
            bucket = np.searchsorted(_EDGES_H[1:], age_h, side="left")
            learnt.events[(~learnt.up[flipped]).astype(np.int64), bucket, flipped] += 1.0
            learnt.since_s[flipped] = now_s
        learnt.up = up


def _any(ups: Bools) -> Bools:
    """In one place at least."""
    return np.asarray(ups.any(axis=0), dtype=np.bool_)


def _factors(learnt: _Learnt, built_in: Rates) -> Floats:
    """Shape (2, runs): hazards of loss and of return, as times the built-in ones, by the hours seen at each age.

    The estimator of ``brain/forecast/availability.py``.
    """
    prior = np.asarray([built_in.loss.per_h, built_in.back.per_h])[:, :, None]
    w, b = _PRIOR.pool_weight, _PRIOR.bucket_weight
    expected = (prior * learnt.exposure_h).sum(axis=1)
    phi = (w + learnt.events.sum(axis=1)) / (w + expected)
    own = (b + learnt.events) / (b + phi[:, None] * prior * learnt.exposure_h)
    hours = learnt.exposure_h + 1e-6
    factors: Floats = phi * np.exp((hours * np.log(own)).sum(axis=1) / hours.sum(axis=1))
    return factors
