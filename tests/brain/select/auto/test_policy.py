"""How `auto` decides in situations where the answer is plain, and what it remembers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from everstep.brain.select.auto import Auto
from everstep.brain.select.auto.policy import Kept
from everstep.brain.select.course import Memory, Mode, Place, Situation, Standing, View

HOUR = 3600.0


def place(
    name: str = "a", *, up: bool | None = True, usd: float | None = 1.0, region: str = "r", **more: float
) -> Place:
    return Place(name, region, usd, 3.0, up)


def situation(
    *places: Place, slack_h: float = 10.0, work_h: float = 20.0, standing: Standing | None = None
) -> Situation:
    return Situation(
        now_s=0.0,
        began_s=0.0,
        deadline_s=(work_h + slack_h) * HOUR,
        work_s=work_h * HOUR,
        done_s=0.0,
        changeover_s=600.0,
        tick_s=0.0,
        standing=standing or Standing(),
        places=places,
    )


def recalled(places: tuple[Place, ...], *flips: Sequence[tuple[float, bool]]) -> Memory:
    """The memory of an `auto` that saw each place flip at those instants."""
    now: dict[int, bool] = {}
    views = []
    for at_s, number, up in sorted((at_s, number, up) for number, some in enumerate(flips) for at_s, up in some):
        now[number] = up
        views.append(View(at_s, tuple(replace(one, up=now.get(n)) for n, one in enumerate(places))))
    return Auto().recall(views)


def test_spot_that_is_up_is_taken_and_kept() -> None:
    first = Auto().steer(situation(place()), None)
    assert (first.mode, first.place) == (Mode.SPOT, "a")
    assert 20.0 < min(a.expected_usd for a in first.alternatives) < 60.0
    later = replace(situation(place(), standing=Standing(Mode.SPOT, "a")), now_s=HOUR, done_s=0.8 * HOUR)
    assert Auto().steer(later, first.memory).mode is Mode.SPOT


def test_with_slack_it_waits_for_spot_and_without_it_does_not() -> None:
    assert Auto().steer(situation(place(up=False)), None).mode is Mode.IDLE
    assert Auto().steer(situation(place(up=False), slack_h=0.3), None).mode is Mode.ON_DEMAND


@pytest.mark.parametrize("work_h", [20.0, 2000.0])
def test_without_a_deadline_no_drought_is_so_long_that_on_demand_is_paid(work_h: float) -> None:
    endless = replace(situation(place(up=False), work_h=work_h), deadline_s=math.inf)
    rare = [(-n * 50 * HOUR, n % 10 == 0) for n in range(40, 0, -1)]
    assert Auto().steer(endless, recalled(endless.places, rare)).mode is Mode.IDLE
    running = replace(endless, standing=Standing(Mode.ON_DEMAND, "a"))
    assert Auto().steer(running, recalled(endless.places, rare)).mode is Mode.IDLE


def test_without_a_deadline_it_waits_for_spot_and_takes_it() -> None:
    endless = replace(situation(place(up=False)), deadline_s=math.inf)
    course = Auto().steer(endless, None)
    assert course.mode is Mode.IDLE
    assert course.wake_at == 1200.0, "steps are longer where the deadline is far"
    assert Auto().steer(replace(endless, places=(place(),)), None).mode is Mode.SPOT


def test_spot_dearer_than_on_demand_is_not_taken() -> None:
    assert Auto().steer(situation(place(usd=3.5)), None).mode is not Mode.SPOT


def test_where_no_spot_is_sold_on_demand_starts_at_once_and_where_nothing_is_sold_it_waits() -> None:
    assert Auto().steer(situation(place(usd=None, up=False)), None).mode is Mode.ON_DEMAND
    nowhere = Place("a", "r", None, None, False)
    assert Auto().steer(situation(nowhere), None).mode is Mode.IDLE


def test_without_on_demand_spot_is_taken_even_without_slack() -> None:
    only_spot = Place("a", "r", 1.0, None, True)
    assert Auto().steer(situation(only_spot, slack_h=2.0), None).mode is Mode.SPOT
    assert Auto().steer(situation(replace(only_spot, up=False), slack_h=0.1), None).mode is Mode.IDLE


@pytest.mark.parametrize("slack_h", [0.3, 0.2, 0.1, 0.0, -5.0, -50.0])
@pytest.mark.parametrize("zones", [1, 2])
def test_late_and_without_on_demand_spot_is_better_than_standing_still(slack_h: float, zones: int) -> None:
    only_spot = [Place(name, name, usd, None, True) for name, usd in (("a", 1.0), ("b", 2.0))][:zones]
    course = Auto().steer(situation(*only_spot, slack_h=slack_h), None)
    assert (course.mode, course.place) == (Mode.SPOT, "a")
    down = [replace(one, up=False) for one in only_spot]
    assert Auto().steer(situation(*down, slack_h=slack_h), None).mode is Mode.IDLE


def test_of_equal_zones_the_cheaper_is_taken_and_of_equal_prices_the_one_that_lasts() -> None:
    assert Auto().steer(situation(place("a", usd=1.2), place("b", region="s")), None).place == "b"
    steady, shaky = [(-100 * HOUR, True)], [(-100 * HOUR + n * HOUR / 2, n % 2 == 0) for n in range(200)]
    asked = situation(place("a"), place("b", region="s"))
    assert Auto().steer(asked, recalled(asked.places, shaky, steady)).place == "b"


def test_a_dear_zone_is_left_waiting_for_the_cheap_one_that_soon_comes_back() -> None:
    """Cheap spot lasts eight hours, is away for half an hour, and went down a moment ago."""
    often = tuple((at_h * HOUR, up) for n in range(20, 0, -1) for at_h, up in ((-8.5 * n, True), (-8.5 * n + 8, False)))
    often = tuple((at_s + 0.4 * HOUR, up) for at_s, up in often)
    places = place("a", up=False), place("b", usd=1.5, region="s")
    known = situation(*places)
    memory = recalled(places, often, [(often[0][0], True)])
    course = Auto().steer(known, memory)
    assert course.mode is Mode.IDLE
    assert "b" in course.reason
    hurried = Auto().steer(replace(known, deadline_s=20.6 * HOUR), memory)
    assert (hurried.mode, hurried.place) == (Mode.SPOT, "b")
    # Without a deadline nothing would ever end the wait.
    endless = Auto().steer(replace(known, deadline_s=math.inf), memory)
    assert (endless.mode, endless.place) == (Mode.SPOT, "b")


def test_a_running_machine_is_not_left_for_a_small_gain_but_for_a_large_one() -> None:
    standing = Standing(Mode.SPOT, "a")
    near = situation(place("a", usd=1.01), place("b", region="s"), standing=standing)
    assert Auto().steer(near, None).place == "a"
    far = situation(place("a", usd=2.9), place("b", region="s"), standing=standing)
    assert Auto().steer(far, None).place == "b"
    unpaid = replace(far, standing=replace(standing, changeover_left_s=60.0))
    assert Auto().steer(unpaid, None).place == "a"


def test_the_cost_of_moving_counts() -> None:
    here, there = place("a"), place("b", region="s", usd=0.99)
    assert Auto().steer(situation(here, there), None).place == "b"
    assert Auto().steer(situation(here, replace(there, move_usd=5.0)), None).place == "a"


def test_a_run_of_spot_with_no_second_place_is_not_looked_at_by_the_step() -> None:
    standing = Standing(Mode.SPOT, "a")
    alone = Auto().steer(situation(place(), standing=standing), None)
    assert (alone.mode, alone.wake_at) == (Mode.SPOT, 4 * HOUR), "when the programme is solved again"
    two = Auto().steer(situation(place(), place("b", region="s", usd=2.0), standing=standing), None)
    assert (two.place, two.wake_at) == ("a", 600.0)


def test_far_from_the_deadline_steps_are_longer() -> None:
    for left_d, times in ((9, 1), (15, 2), (40, 3)):
        course = Auto().steer(situation(place(up=False), work_h=left_d * 12, slack_h=left_d * 12), None)
        assert isinstance(course.memory, Kept)
        assert course.memory.plan.problem.step_s == 600.0 * times


def test_it_looks_again_at_every_step_and_holds_its_course_between() -> None:
    auto = Auto()
    first = auto.steer(situation(place(up=False)), None)
    assert first.wake_at == 600.0
    between = auto.steer(replace(situation(place(up=False)), now_s=300.0), first.memory)
    assert (between.mode, between.wake_at, between.memory) == (first.mode, 600.0, first.memory)
    after = auto.steer(replace(situation(place(up=False)), now_s=600.0), first.memory)
    assert after.wake_at == 1200.0
    assert after.memory != first.memory
    hash(after.memory)


@pytest.mark.parametrize("paid", [True, False])
def test_when_the_time_is_needed_a_paid_spot_machine_may_stay(paid: bool) -> None:
    standing = Standing(Mode.SPOT, "a", 0.0 if paid else 60.0)
    course = Auto().steer(situation(place(), slack_h=0.1, standing=standing), None)
    assert course.mode is (Mode.SPOT if paid else Mode.ON_DEMAND)


def test_the_same_situation_and_memory_give_the_same_course() -> None:
    asked = situation(place("a"), place("b", region="s", up=False))
    assert Auto().steer(asked, None) == Auto().steer(asked, None)


def test_a_place_that_nobody_looked_at_may_be_tried() -> None:
    assert Auto().steer(situation(place(up=None)), None).mode is Mode.SPOT


def test_asked_anew_with_the_past_alone_it_plans_as_if_it_had_a_memory() -> None:
    """Live, the memory is made again at each decision; the programme is not solved again for that."""
    auto = Auto()
    past = [(-50 * HOUR, True), (-9 * HOUR, False)]
    asked = situation(place(up=False))
    course = auto.steer(asked, recalled(asked.places, past))
    for at_h, up in ((1, True), (3, False), (7, True)):
        later = replace(asked, now_s=at_h * HOUR, places=(place(up=up),))
        anew = auto.steer(later, recalled(asked.places, past))
        assert isinstance(anew.memory, Kept)
        assert anew.memory.plan.began_s == (0.0 if at_h < 6 else 6 * HOUR)
        assert anew.mode is (Mode.SPOT if up else Mode.IDLE)
        past.append((at_h * HOUR, up))
    first = course.memory
    assert isinstance(first, Kept)
    again = auto.steer(replace(asked, now_s=HOUR, places=(place(),)), recalled(asked.places, past[:2])).memory
    assert isinstance(again, Kept)
    assert again.plan == first.plan
