"""The local rule of saving against the dynamic programme over all schedules, for hazards of several shapes.

V(j, 0) = min_i [(L + pR)/(1 - p) + V(j - i, s)]
V(j, a) = min_i [L + p (R + V(j, 0)) + (1 - p) V(j - i, a + s)]

j: work left, a: age, i: work of the next segment, s: the segment with its save, L: expected time lived in it, p: chance
to be lost in it; all in units of one save.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from everstep.model.pacing import local_interval_s, young_interval_s

WORK = 80
RESTART = 2.0
Cumulative = Callable[[float], float]
Rule = Callable[[int], int] | None


def weibull(shape: float, scale: float) -> Cumulative:
    return lambda age: (age / scale) ** shape


def falling(early: float, late: float, turn: float) -> Cumulative:
    return lambda age: (early - late) * turn * -math.expm1(-age / turn) + late * age


CASES = {
    "constant": weibull(1.0, 60.0),
    "weibull": weibull(0.6, 80.0),
    "rare": weibull(0.7, 600.0),
    "falling": falling(0.05, 0.002, 30.0),
    "rising": weibull(1.6, 150.0),
}


def expected_time(cumulative: Cumulative, rule: Rule) -> float:
    """Expected time for the work from age 0, under a rule (age -> work of the next segment) or the best schedule."""
    ages = 2 * WORK + 2
    at = np.array([cumulative(float(age)) for age in range(ages)])
    # Lived until each age, by the trapezoid over tenths of a unit.
    fine = np.array([math.exp(-cumulative(k / 10)) for k in range(10 * ages)])
    alive = np.concatenate([[0.0], np.cumsum((fine[1:] + fine[:-1]) / 20)])[::10][:ages]
    value = np.zeros((WORK + 1, ages))
    for left in range(1, WORK + 1):
        # No older than if every segment so far had been of one unit and its save.
        for age in range(2 * (WORK - left) + 1):
            work = np.arange(1, left + 1) if rule is None else np.array([min(max(rule(age), 1), left)])
            value[left, age] = _best(value, left, age, work, at, alive)
    return float(value[WORK, 0])


def _best(
    value: NDArray[np.float64],
    left: int,
    age: int,
    work: NDArray[np.int64],
    at: NDArray[np.float64],
    alive: NDArray[np.float64],
) -> float:
    end = age + work + 1
    lost = -np.expm1(at[age] - at[end])
    lived = (alive[end] - alive[age]) * math.exp(at[age])
    after = value[left - work, end]
    if age == 0:
        return float(np.min((lived + lost * RESTART) / (1.0 - lost) + after))
    return float(np.min(lived + lost * (RESTART + value[left, 0]) + (1.0 - lost) * after))


@pytest.mark.parametrize("name", CASES)
def test_the_local_rule_is_near_the_best_schedule(name: str) -> None:
    cumulative = CASES[name]

    @cache
    def local(age: int) -> int:
        return round(local_interval_s(1.0, cumulative, age_s=float(age), longest_s=float(WORK)))

    best, ours = expected_time(cumulative, None), expected_time(cumulative, local)
    assert best <= ours <= 1.015 * best
    if name in ("weibull", "falling"):
        first_hour = cumulative(12.0) / 12.0
        fixed = round(young_interval_s(1.0, 1.0 / first_hour))
        assert expected_time(cumulative, lambda age: fixed) > ours
