"""The stochastic programme of one place: what the rest of a job costs in the mean, if every later choice is the best.

State: time left, slack (time left, less work left, less changeover not yet paid), whether spot is up and how long it
has been so (the age buckets of ``forecast/availability.py``), and what the job stands on. Slack shrinks by the length
of the step while idle and by a changeover at each start; on a machine it stays. Backward over time, all else in one
array.

    idle         price x step + E[slack - step, idle]   while slack - step >= changeover
    spot         price x step + E[slack, spot]          a start: slack - changeover, which must leave one more start
    on-demand    price x step + E[slack, on-demand]     a start: slack - changeover; below one changeover: to the end

E is the mean over what spot does during the step: it flips with 1 - exp(-hazard x step), else it moves to the next age
bucket with step / width; a spot machine that is lost leaves the job idle. Between grid points values are linear.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from everstep.brain.forecast.availability import AGES_H, Rates
from everstep.brain.select.auto.columns import Columns, Shift
from everstep.brain.select.auto.problem import AGES, IDLE, ON_DEMAND, PERIOD_S, ROWS, SPOT, Problem

_NEVER = np.float32(1e9)
_MOST_EVEN, _PARTS = 480, 60
Table = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """Mean costs to come, for decisions in the ``PERIOD_S`` after the beginning.

    Attributes:
        problem: what was solved.
        table: shape (steps, ROWS, columns): the mean cost after the step, by the row it begins with, USD.
        columns: what slack they are for.
    """

    problem: Problem
    table: Table
    columns: Columns

    def after(self, left_s: float, row: int, slack_s: float) -> float:
        """Mean cost after a step that begins with ``left_s`` left, in a row, with ``slack_s`` once it is paid."""
        problem = self.problem
        step = min(max((problem.left_s - left_s) / problem.step_s, 0.0), len(self.table) - 1.0)
        i = int(step)
        j, part = self.columns.find(slack_s)
        now = self._between(i, row, j, part)
        if step == i:
            return now
        later = self._between(i + 1, row, j, part)
        return now + (step - i) * (later - now)

    def _between(self, step: int, row: int, column: int, part: float) -> float:
        here = float(self.table[step, row, column])
        if part <= 0.0:
            return here
        return here + part * (float(self.table[step, row, column + 1]) - here)


def steps_of(left_s: float, step_s: float) -> list[tuple[float, int]]:
    """(length, how many ``step_s``) of each step from now to the deadline: coarser where it is far away."""
    found: list[tuple[float, int]] = []
    passed_s = 0.0
    while passed_s < left_s - 1e-6:
        many = 1
        if passed_s > PERIOD_S:
            many = 2 * max(1, 2 ** math.floor(math.log2(passed_s / PERIOD_S) - 1.0))
        length_s = min(many * step_s, left_s - passed_s)
        found.append((length_s, many))
        passed_s += length_s
    return found


@lru_cache(maxsize=32)
def solve(problem: Problem) -> Solution:
    """Solves it. Pure, so that a table is never part of what is remembered or journalled."""
    return Backward(problem).solution()


def moves(rates: Rates, step_h: float, drop_per_h: float = 0.0) -> NDArray[np.float64]:
    """Chances (ROWS, ROWS) to go from row to row in one step."""
    market = np.zeros((2 * AGES, 2 * AGES))
    for down, hazard in ((0, rates.loss), (1, rates.back)):
        for age, rate in enumerate(hazard.per_h):
            here = down * AGES + age
            flip = -math.expm1(-rate * step_h)
            older = min(1.0, step_h / (AGES_H[age + 1] - AGES_H[age])) if age + 1 < AGES else 0.0
            market[here, (1 - down) * AGES] = flip
            market[here, here] += (1.0 - flip) * (1.0 - older)
            if older:
                market[here, here + 1] += (1.0 - flip) * older
    rows = np.zeros((ROWS, ROWS))
    rows[:ON_DEMAND, :ON_DEMAND] = market
    rows[ON_DEMAND:SPOT, ON_DEMAND:SPOT] = market
    kept = math.exp(-drop_per_h * step_h)
    up = market[:AGES, :AGES]
    rows[SPOT:, SPOT:] = kept * up
    rows[SPOT:, :AGES] = (1.0 - kept) * up
    rows[SPOT:, AGES:ON_DEMAND] = market[:AGES, AGES:]
    return rows


def _within(seconds: NDArray[np.float64], most_s: float) -> NDArray[np.float32]:
    """Between 0 and so many. Faster than ``np.clip``."""
    return np.minimum(np.maximum(seconds, 0.0), most_s).astype(np.float32)


class Backward:
    """One step after the other, from the deadline back.

    Args:
        problem: what is solved.
        most_even, parts: how fine slack is cut, see ``Columns``.
    """

    def __init__(self, problem: Problem, most_even: int = _MOST_EVEN, parts: int = _PARTS) -> None:
        self.problem = problem
        self.columns = Columns.of(problem, most_even=most_even, parts=parts)
        self.slack_s = np.asarray(self.columns.slack_s)
        self._shifts: dict[tuple[float, int], Shift] = {}
        self.usd_per_s = np.zeros((ROWS, 1), dtype=np.float32)
        self.usd_per_s[:ON_DEMAND] = problem.idle_usd_per_h / 3600.0
        self.usd_per_s[ON_DEMAND:SPOT] = problem.on_demand_usd_per_h / 3600.0
        self.usd_per_s[SPOT:] = problem.spot_usd_per_h / 3600.0

    def solution(self) -> Solution:
        """The costs of the first ``PERIOD_S``."""
        problem = self.problem
        steps = steps_of(problem.left_s, problem.step_s)
        kept = sum(1 for _, many in steps if many == 1)
        columns = len(self.slack_s)
        table = np.zeros((max(kept, 1), ROWS, columns), dtype=np.float32)
        values = np.zeros((ROWS, columns), dtype=np.float32)
        spare = np.empty_like(values)
        single = moves(problem.rates, problem.step_s / 3600.0, problem.drop_per_h)
        chances = {many: np.linalg.matrix_power(single, many).astype(np.float32) for many in {m for _, m in steps}}
        left_s = 0.0
        for number in range(len(steps) - 1, -1, -1):
            length_s, many = steps[number]
            left_s += length_s
            after = np.matmul(chances[many], values, out=table[number] if number < kept else spare)
            self.back(after, left_s, length_s, values)
        return Solution(problem, table, self.columns)

    def back(
        self, after: Table, left_s: float, length_s: float, values: Table, *, chosen: NDArray[np.int8] | None = None
    ) -> None:
        """Fills ``values`` of the beginning of a step from the means after it.

        ``chosen``, shape (SPOT, columns), gets what is best of a row that is idle or on-demand: 0 idle, 1 on-demand,
        2 spot.
        """
        need_s, first = left_s - self.slack_s, self.columns.first
        running_s = _within(need_s, length_s)
        starting_s = _within(need_s + self.problem.changeover_s, length_s)
        idle, steady, spot = values[:ON_DEMAND], values[ON_DEMAND:SPOT], values[SPOT:]
        np.multiply(self.usd_per_s[ON_DEMAND:], running_s, out=values[ON_DEMAND:])
        values[ON_DEMAND:] += after[ON_DEMAND:]
        self._shifted(after[:ON_DEMAND], length_s, first, idle)
        idle += self.usd_per_s[IDLE] * np.float32(length_s)
        starts = np.empty_like(after[ON_DEMAND:])
        self._shifted(after[ON_DEMAND:], self.problem.changeover_s, 0, starts)
        starts += self.usd_per_s[ON_DEMAND:] * starting_s
        start = starts[:ON_DEMAND]
        if chosen is not None:
            np.less(start, idle, out=chosen[:ON_DEMAND], casting="unsafe")
        np.minimum(idle, start, out=idle)
        start = starts[ON_DEMAND:]
        start[:, : self._shift(self.problem.changeover_s, first).cut] = _NEVER
        up = idle[:AGES]
        if chosen is not None:
            chosen[:AGES][start < up] = 2
        np.minimum(up, start, out=up)
        if chosen is not None:
            chosen[ON_DEMAND:] = np.where(idle < steady, chosen[:ON_DEMAND], 1)
        np.minimum(steady, idle, out=steady)
        np.minimum(spot, up, out=spot)
        # Less slack than one changeover: on-demand, to the end.
        steady[:, :first] = self.usd_per_s[ON_DEMAND] * np.maximum(need_s[:first], 0.0)
        idle[:, :first] = _NEVER
        spot[:, :first] = _NEVER
        if chosen is not None:
            chosen[:, :first] = 1
        done = int(np.searchsorted(-need_s, 0.0))
        values[:, max(done, 0) :] = 0.0

    def _shift(self, by_s: float, least: int) -> Shift:
        shift = self._shifts.get((by_s, least))
        if shift is None:
            shift = self._shifts[by_s, least] = self.columns.less(by_s, least)
        return shift

    def _shifted(self, values: Table, by_s: float, least: int, out: Table) -> None:
        """``values`` at slack less ``by_s``; never where that is below column ``least``."""
        cut, at, above, part = self._shift(by_s, least)
        out[:, :cut] = _NEVER
        here = values[:, at]
        out[:, cut:] = here if part is None else here + part * (values[:, above] - here)
