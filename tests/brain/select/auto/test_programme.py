"""The programme of one place: what is known in closed form, and a slow programme written another way."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from everstep.brain.forecast.availability import AGES_H, BUILT_IN, Rates
from everstep.brain.forecast.piecewise import Piecewise
from everstep.brain.select.auto.problem import AGES, IDLE, ON_DEMAND, PERIOD_S, ROWS, SPOT, Problem
from everstep.brain.select.auto.programme import moves, solve, steps_of

HOUR = 3600.0


def flat(loss_per_h: float, back_per_h: float) -> Rates:
    return Rates(Piecewise(AGES_H, (loss_per_h,) * AGES), Piecewise(AGES_H, (back_per_h,) * AGES))


def problem(rates: Rates = BUILT_IN, *, work_h: float = 10.0, slack_h: float = 4.0, d_s: float = 600.0) -> Problem:
    return Problem(rates, 1.0, 3.0, (work_h + slack_h) * HOUR, slack_h * HOUR, d_s)


def test_spot_that_is_never_lost_costs_its_price() -> None:
    asked = problem(flat(0.0, 1.0))
    after = solve(asked).after(asked.left_s, SPOT, asked.slack_s)
    assert after + 1.0 * 600 / HOUR == pytest.approx(10.0, rel=1e-5)


def test_spot_that_never_comes_back_leaves_on_demand_with_its_changeover() -> None:
    asked = problem(flat(1.0, 0.0))
    down = solve(asked).after(asked.left_s, IDLE + AGES, asked.slack_s - 600)
    assert down == pytest.approx(3.0 * (10.0 + 600 / HOUR), rel=1e-5)


def test_on_demand_without_slack_goes_to_the_end() -> None:
    asked = problem()
    left_s = asked.left_s
    assert solve(asked).after(left_s, ON_DEMAND, 0.0) + 3.0 * 600 / HOUR == pytest.approx(3.0 * left_s / HOUR, rel=1e-5)


def test_more_slack_never_costs_more_and_more_loss_never_costs_less() -> None:
    asked = problem(work_h=20.0, slack_h=8.0)
    solution = solve(asked)
    for row in range(ROWS):
        # Both grow by a whole step at equal work: the columns of half steps are a lattice of their own.
        hours = np.arange(0.0, 4 * HOUR, asked.step_s)
        values = [solution.after(asked.left_s - later, row, asked.slack_s - later) for later in hours]
        assert all(a <= b + 1e-4 for a, b in pairwise(values)), row
        assert all(math.isfinite(value) for value in values)
    worse = solve(replace(asked, drop_per_h=0.5))
    for row in range(ROWS):
        assert worse.after(asked.left_s, row, 6 * HOUR) >= solution.after(asked.left_s, row, 6 * HOUR) - 1e-3


def test_chances_of_every_row_add_up_to_one() -> None:
    for drop_per_h in (0.0, 0.3):
        rows = moves(BUILT_IN, 1 / 6, drop_per_h)
        assert rows.shape == (ROWS, ROWS)
        assert rows.sum(axis=1) == pytest.approx(np.ones(ROWS))
        assert (rows >= 0).all()


@pytest.mark.parametrize("left_h", [0.1, 5.0, 24.0, 60.0, 900.0])
def test_steps_fill_the_time_and_are_single_in_the_first_period(left_h: float) -> None:
    steps = steps_of(left_h * HOUR, 600.0)
    assert sum(length_s for length_s, _ in steps) == pytest.approx(left_h * HOUR)
    assert all(length_s <= many * 600.0 + 1e-9 for length_s, many in steps)
    assert all(many == 1 for _, many in steps[: math.ceil(min(left_h * HOUR, PERIOD_S) / 600.0)])
    assert len(steps) < 1000


def by_recursion(asked: Problem, chance_lost: float, chance_back: float) -> dict[tuple[int, int, str, bool], float]:
    """Least mean cost by plain recursion over whole steps; the changeover is one step and hazards have no age."""
    step = asked.step_s
    spot, steady = asked.spot_usd_per_h * step / HOUR, asked.on_demand_usd_per_h * step / HOUR
    known: dict[tuple[int, int, str, bool], float] = {}

    def least(left: int, slack: int, mode: str, up: bool) -> float:
        if left - slack <= 0:
            return 0.0
        key = left, slack, mode, up
        if key not in known:
            known[key] = min(option(left, slack, mode, up, action) for action in ("idle", "spot", "on_demand"))
        return known[key]

    def option(left: int, slack: int, mode: str, up: bool, action: str) -> float:
        slack -= 1 if action == "idle" or action != mode else 0
        if action == "on_demand" and slack < 1:
            return steady * (left - slack)
        if slack < 1 or (action == "spot" and not up):
            return math.inf
        flip = chance_lost if up else chance_back
        usd = {"idle": 0.0, "spot": spot, "on_demand": steady}[action]
        for other, chance in ((not up, flip), (up, 1.0 - flip)):
            lost = action == "spot" and not other
            usd += chance * least(left - 1, slack, "idle" if lost else action, other)
        return usd

    for up in (True, False):
        least(round(asked.left_s / step), round(asked.slack_s / step), "idle", up)
    return known


def test_it_equals_a_plain_recursion() -> None:
    rates = flat(0.5, 0.8)
    asked = replace(problem(rates, work_h=8.0, slack_h=3.0), left_s=11 * HOUR)
    solution = solve(asked)
    lost, back = (1 - math.exp(-rate / 6) for rate in (0.5, 0.8))
    known = by_recursion(asked, lost, back)
    # After idling one step with spot up: the mean over what it does in that step.
    left, slack = 66, 18
    expected = (1 - lost) * known[left - 1, slack - 1, "idle", True] + lost * known[left - 1, slack - 1, "idle", False]
    assert solution.after(asked.left_s, IDLE, asked.slack_s - 600) == pytest.approx(expected, rel=2e-5)
    kept = (1 - lost) * known[left - 1, slack - 1, "spot", True] + lost * known[left - 1, slack - 1, "idle", False]
    assert solution.after(asked.left_s, SPOT, asked.slack_s - 600) == pytest.approx(kept, rel=2e-5)
