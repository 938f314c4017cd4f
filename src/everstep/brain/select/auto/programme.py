"""The stochastic programme of one place: what the rest of a job costs in the mean, if every later choice is the best.

State: time left, slack (time left, less work left, less changeover not yet paid), whether spot is up and how long it
has been so (the age buckets of ``forecast/availability.py``), and what the job stands on. Slack shrinks by the length
of the step while idle and by a changeover at each start; on a machine it stays. Backward over time, all else in one
array.

    idle         E[slack - step, idle]                  while slack - step >= changeover
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
from everstep.brain.select.auto.problem import AGES, MOST_COLUMNS, ON_DEMAND, PERIOD_S, ROWS, SPOT, Problem

_NEVER = np.float32(1e9)
Table = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """Mean costs to come, for decisions in the ``PERIOD_S`` after the beginning.

    Attributes:
        problem: what was solved.
        table: shape (steps, ROWS, columns): the mean cost after the step, by the row it begins with, USD.
        least_s: slack of column 0. ``apart_s``: seconds of slack between columns.
    """

    problem: Problem
    table: Table
    least_s: float
    apart_s: float

    def after(self, left_s: float, row: int, slack_s: float) -> float:
        """Mean cost after a step that begins with ``left_s`` left, in a row, with ``slack_s`` once it is paid."""
        problem = self.problem
        steps, columns = len(self.table), int(self.table.shape[2])
        step = min(max((problem.left_s - left_s) / problem.step_s, 0.0), steps - 1.0)
        column = min(max((slack_s - self.least_s) / self.apart_s, 0.0), columns - 1.0)
        i, j = int(step), int(column)
        now = self._between(i, row, j, column - j)
        if step == i:
            return now
        later = self._between(i + 1, row, j, column - j)
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


class Backward:
    """Columns of slack: below one changeover (on-demand to the end only), then from one changeover up.

    Args:
        problem: what is solved.
        most_columns: how fine slack may be cut.
    """

    def __init__(self, problem: Problem, most_columns: int = MOST_COLUMNS) -> None:
        self.problem = problem
        over_s = max(problem.slack_s - problem.changeover_s, 0.0)
        self.apart_s = max(problem.step_s / 2.0, over_s / most_columns)
        self.first = math.ceil(problem.changeover_s / self.apart_s) + 1
        columns = self.first + math.ceil(over_s / self.apart_s) + 1
        self.slack_s = problem.changeover_s + (np.arange(columns) - self.first) * self.apart_s
        self.usd_per_s = np.zeros((ROWS, 1), dtype=np.float32)
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
        return Solution(problem, table, float(self.slack_s[0]), self.apart_s)

    def back(
        self, after: Table, left_s: float, length_s: float, values: Table, *, chosen: NDArray[np.int8] | None = None
    ) -> None:
        """Fills ``values`` of the beginning of a step from the means after it.

        ``chosen``, shape (SPOT, columns), gets what is best of a row that is idle or on-demand: 0 idle, 1 on-demand,
        2 spot.
        """
        need_s = left_s - self.slack_s
        running_s = np.clip(need_s, 0.0, length_s).astype(np.float32)
        starting_s = np.clip(need_s + self.problem.changeover_s, 0.0, length_s).astype(np.float32)
        np.multiply(self.usd_per_s, running_s, out=values)
        values += after
        idle, steady, spot = values[:ON_DEMAND], values[ON_DEMAND:SPOT], values[SPOT:]
        self._shifted(after[:ON_DEMAND], length_s, self.first, idle)
        start = np.empty_like(steady)
        self._shifted(after[ON_DEMAND:SPOT], self.problem.changeover_s, 0, start)
        start += self.usd_per_s[ON_DEMAND] * starting_s
        if chosen is not None:
            np.less(start, idle, out=chosen[:ON_DEMAND], casting="unsafe")
        np.minimum(idle, start, out=idle)
        start = start[:AGES]
        self._shifted(after[SPOT:], self.problem.changeover_s, self.first, start)
        start += self.usd_per_s[SPOT] * starting_s
        up = idle[:AGES]
        if chosen is not None:
            chosen[:AGES][start < up] = 2
        np.minimum(up, start, out=up)
        if chosen is not None:
            chosen[ON_DEMAND:] = np.where(idle < steady, chosen[:ON_DEMAND], 1)
        np.minimum(steady, idle, out=steady)
        np.minimum(spot, up, out=spot)
        # Less slack than one changeover: on-demand, to the end.
        first = self.first
        steady[:, :first] = self.usd_per_s[ON_DEMAND] * np.maximum(need_s[:first], 0.0)
        idle[:, :first] = _NEVER
        spot[:, :first] = _NEVER
        if chosen is not None:
            chosen[:, :first] = 1
        done = int(np.searchsorted(-need_s, 0.0))
        values[:, max(done, 0) :] = 0.0

    def _shifted(self, values: Table, by_s: float, least: int, out: Table) -> None:
        """``values`` at slack less ``by_s``; never where that is below column ``least``."""
        shift = by_s / self.apart_s
        whole = math.floor(shift + 1e-9)
        part = max(shift - whole, 0.0)
        cut = least + whole + (part > 1e-9)
        out[:, :cut] = _NEVER
        if cut >= values.shape[1]:
            return
        size = values.shape[1] - cut
        at = cut - whole
        if part <= 1e-9:
            out[:, cut:] = values[:, at : at + size]
        else:
            np.multiply(values[:, at : at + size], np.float32(1.0 - part), out=out[:, cut:])
            out[:, cut:] += np.float32(part) * values[:, at - 1 : at - 1 + size]
