"""How slack is cut: as fine as a step near the end, ever wider beyond."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from everstep.brain.forecast.availability import BUILT_IN
from everstep.brain.select.auto.columns import Columns
from everstep.brain.select.auto.problem import Problem

HOUR = 3600.0
ASKED = Problem(BUILT_IN, 1.0, 3.0, 60 * HOUR, 12 * HOUR, 720.0)


@pytest.mark.parametrize("slack_h", [0.0, 0.1, 12.0, 39.9, 41.0, 240.0, 8000.0])
def test_columns_reach_from_nothing_to_the_slack_at_hand(slack_h: float) -> None:
    columns = Columns.of(replace(ASKED, slack_s=slack_h * HOUR), most_even=480, parts=60)
    slack_s = np.asarray(columns.slack_s)
    assert slack_s[0] <= 0.0
    assert slack_s[columns.first] == 720.0
    assert slack_s[-1] >= slack_h * HOUR
    apart_s = np.diff(slack_s)
    assert apart_s[: columns.first + 2] == pytest.approx(300.0)
    # None is wider than half a step, or a sixtieth of what lies below it.
    assert (apart_s <= np.maximum(300.0, (slack_s[:-1] - 720.0) / 60.0) + 1e-6).all()
    assert len(columns) <= 700


@pytest.mark.parametrize("slack_h", [20.0, 2000.0])
@pytest.mark.parametrize("by_s", [600.0, 720.0, 7200.0])
def test_less_slack_is_found_between_columns(slack_h: float, by_s: float) -> None:
    columns = Columns.of(replace(ASKED, slack_s=slack_h * HOUR), most_even=480, parts=60)
    slack_s = np.asarray(columns.slack_s)
    shift = columns.less(by_s, columns.first)
    least_s = slack_s[columns.first]
    assert slack_s[shift.cut] - by_s >= least_s - 1e-3
    assert slack_s[shift.cut - 1] - by_s < least_s
    # A straight line is met exactly.
    found = slack_s[shift.at]
    if shift.part is not None:
        found = found + shift.part * (slack_s[shift.above] - found)
    assert found == pytest.approx(slack_s[shift.cut :] - by_s, abs=1.0)


def test_a_slack_is_found_between_its_neighbours_and_beyond_the_ends_at_them() -> None:
    columns = Columns.of(replace(ASKED, slack_s=100 * HOUR), most_even=480, parts=60)
    for slack_s in (0.0, 720.0, 5000.0, 50 * HOUR):
        at, part = columns.find(slack_s)
        low, high = columns.slack_s[at : at + 2]
        assert low + part * (high - low) == pytest.approx(slack_s)
        assert 0.0 <= part < 1.0
    assert columns.find(-1e9) == (0, 0.0)
    assert columns.find(1e9) == (len(columns) - 1, 0.0)
