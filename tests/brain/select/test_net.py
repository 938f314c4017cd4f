"""The safety net: when it speaks, what it says, and that it asks to be heard in time."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from everstep.brain.select.course import Course, Mode, Place, Situation, Standing
from everstep.brain.select.net import crunch_at, guard
from everstep.brain.select.rough import remaining_usd

NEAR = Place("near", "east", 1.0, 3.0, up=True)
FAR = Place("far", "west", 0.5, 2.9, up=True, move_usd=50.0)
#: Ten hours of work, six done, nine hours to go; half an hour of changeover: 4.5 h of slack less a changeover.
CALM = Situation(
    now_s=3 * 3600.0,
    began_s=0.0,
    deadline_s=12 * 3600.0,
    work_s=10 * 3600.0,
    done_s=6 * 3600.0,
    changeover_s=1800.0,
    tick_s=0.0,
    standing=Standing(),
    places=(NEAR, FAR),
)
IDLE = Course(Mode.IDLE, None, "wait")
SPOT = Course(Mode.SPOT, "near", "spot is up")


def later(situation: Situation, now_h: float, **changes: object) -> Situation:
    return replace(situation, now_s=now_h * 3600.0, **changes)


def test_it_is_silent_in_time_and_asks_to_be_heard_when_it_will_speak() -> None:
    assert crunch_at(CALM, 1800.0) == 7.5 * 3600
    assert guard(CALM, IDLE) == replace(IDLE, wake_at=7.5 * 3600)
    assert guard(CALM, replace(IDLE, wake_at=14_400.0)).wake_at == 14_400.0


def test_in_ticks_it_speaks_at_a_boundary_at_which_whole_ticks_are_left() -> None:
    ticking = replace(CALM, tick_s=1000.0)
    # 43 whole ticks to the deadline; work and changeover need 16.2, that is 17.
    assert crunch_at(ticking, 1800.0) == 26_000.0
    assert guard(replace(ticking, now_s=25_000.0), IDLE).mode is Mode.IDLE
    assert guard(replace(ticking, now_s=26_000.0), IDLE).mode is Mode.ON_DEMAND


def test_without_a_deadline_it_never_speaks() -> None:
    for tick_s in (0.0, 600.0):
        endless = replace(CALM, deadline_s=math.inf, tick_s=tick_s)
        assert guard(endless, IDLE) == IDLE


def test_idle_becomes_the_cheapest_on_demand_moving_included() -> None:
    held = guard(later(CALM, 7.5), IDLE)
    assert (held.mode, held.place) == (Mode.ON_DEMAND, "near")
    assert held.reason.startswith("safety net")
    free = (NEAR, replace(FAR, move_usd=0.0))
    assert guard(later(CALM, 7.5, places=free), IDLE).place == "far"


def test_a_running_spot_machine_stays_when_its_changeover_is_paid() -> None:
    paid = later(CALM, 8, standing=Standing(Mode.SPOT, "near"))
    assert guard(paid, SPOT) == SPOT
    assert (guard(paid, IDLE).mode, guard(paid, IDLE).place) == (Mode.SPOT, "near")
    moved = guard(paid, Course(Mode.SPOT, "far", "cheaper"))
    assert (moved.mode, moved.place) == (Mode.SPOT, "near")
    steady = Course(Mode.ON_DEMAND, "near", "to be sure")
    assert guard(paid, steady) == steady


def test_a_spot_machine_whose_changeover_is_unpaid_is_left() -> None:
    unpaid = later(CALM, 8, standing=Standing(Mode.SPOT, "near", changeover_left_s=1.0))
    assert guard(unpaid, SPOT).mode is Mode.ON_DEMAND


@pytest.mark.parametrize(("now_h", "wake_h"), [(6.9, math.inf), (7.0, math.inf), (7.1, 7.5)])
def test_a_start_is_watched_only_while_its_changeover_may_be_unpaid(now_h: float, wake_h: float) -> None:
    assert guard(later(CALM, now_h), SPOT).wake_at == wake_h * 3600


def test_on_demand_stays_where_it_is() -> None:
    there = later(CALM, 8, standing=Standing(Mode.ON_DEMAND, "far"))
    for course in (IDLE, SPOT, Course(Mode.ON_DEMAND, "near", "nearer")):
        held = guard(there, course)
        assert (held.mode, held.place) == (Mode.ON_DEMAND, "far")


def test_where_no_on_demand_is_sold_the_policy_has_the_last_word() -> None:
    none = tuple(replace(place, on_demand_usd_per_h=None) for place in CALM.places)
    assert guard(later(CALM, 8, places=none), SPOT) == SPOT


def test_rough_costs_are_price_times_what_is_left() -> None:
    assert remaining_usd(CALM, NEAR, Mode.SPOT) == pytest.approx(4.5 * 1.0)
    assert remaining_usd(CALM, FAR, Mode.ON_DEMAND) == pytest.approx(4.5 * 2.9 + 50)
    running = replace(CALM, standing=Standing(Mode.SPOT, "near", changeover_left_s=360.0))
    assert remaining_usd(running, NEAR, Mode.SPOT) == pytest.approx(4.1)
    assert remaining_usd(CALM, replace(NEAR, speed=2.0), Mode.SPOT) == pytest.approx(2.5)
    assert remaining_usd(CALM, replace(NEAR, spot_usd_per_h=None), Mode.SPOT) == math.inf
