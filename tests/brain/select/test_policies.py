"""What each policy of the seam does that the others do not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from everstep.brain.select.course import Course, Memory, Mode, Place, Situation, Standing
from everstep.brain.select.policies import POLICIES
from everstep.brain.select.policies.incl import Incl
from everstep.brain.select.record import Record

A = Place("a", "east", 1.0, 3.0, up=True)
B = Place("b", "east", 0.8, 3.0, up=True)
C = Place("c", "west", 0.9, 3.0, up=True, move_usd=2.0)
START = Situation(
    now_s=0.0,
    began_s=0.0,
    deadline_s=20 * 3600.0,
    work_s=10 * 3600.0,
    done_s=0.0,
    changeover_s=720.0,
    tick_s=0.0,
    standing=Standing(),
    places=(A, B, C),
)


def down(*names: str, situation: Situation = START) -> Situation:
    return replace(situation, places=tuple(replace(p, up=p.name not in names) for p in situation.places))


def steer(name: str, situation: Situation, memory: Memory = None) -> Course:
    return POLICIES[name].steer(situation, memory)


def on(mode: Mode, place: str, unpaid_s: float = 0.0) -> Standing:
    return Standing(mode, place, unpaid_s)


def test_on_demand_never_looks_at_spot() -> None:
    assert steer("on_demand", START).mode is Mode.ON_DEMAND


def test_greedy_takes_the_cheapest_spot_and_keeps_it() -> None:
    assert (steer("greedy", START).mode, steer("greedy", START).place) == (Mode.SPOT, "b")
    running = replace(START, standing=on(Mode.SPOT, "a"))
    assert steer("greedy", running).place == "a"
    assert steer("greedy", down("a", "b", "c")).mode is Mode.IDLE


def test_spot_dearer_than_on_demand_is_left_alone() -> None:
    dear = replace(START, places=(replace(A, spot_usd_per_h=3.5),))
    assert steer("greedy", dear).mode is Mode.IDLE


def test_uniform_progress_waits_when_ahead_and_says_until_when() -> None:
    dark = down("a", "b", "c", situation=replace(START, now_s=3600.0, done_s=3600.0))
    course = steer("uniform_progress", dark)
    # An hour done is what the even line asks for after two.
    assert (course.mode, course.wake_at) == (Mode.IDLE, 7200.0)
    assert steer("uniform_progress", replace(dark, now_s=7300.0)).mode is Mode.ON_DEMAND


def test_uniform_progress_leaves_on_demand_only_when_far_enough_ahead() -> None:
    # Two changeovers later the even line asks for (now + 1440 s) / 2.
    steady = replace(START, now_s=7200.0, done_s=4320.0, standing=on(Mode.ON_DEMAND, "a"))
    course = steer("uniform_progress", steady)
    assert course.mode is Mode.ON_DEMAND
    assert course.wake_at == pytest.approx(7200.0)
    assert steer("uniform_progress", replace(steady, done_s=4321.0)).mode is Mode.SPOT
    assert steer("up_no_hysteresis", steady).mode is Mode.SPOT
    dark = down("a", "b", "c", situation=replace(steady, done_s=9000.0))
    assert steer("uniform_progress", dark).mode is Mode.ON_DEMAND
    assert steer("up_no_hysteresis", dark).mode is Mode.IDLE


def test_failover_goes_to_another_region_after_a_loss() -> None:
    lost = down("b", situation=replace(START, standing=Standing(lost_from="b")))
    assert steer("uniform_progress", lost).place == "a"
    course = steer("failover", lost)
    assert (course.place, course.memory) == ("c", "east")
    # It remembers while nothing runs; with nothing elsewhere, its own region is better than none.
    assert steer("failover", START, "east").place == "c"
    assert steer("failover", down("b", "c"), "east").place == "a"


def test_spell_takes_turns_in_an_order_of_the_seed() -> None:
    memory: Memory = None
    order = []
    for _ in range(6):
        course = steer("spell", START, memory)
        memory = course.memory
        order.append(course.place)
    assert sorted(str(name) for name in order[:3]) == ["a", "b", "c"]
    assert order[3:] == order[:3]
    orders = {steer("spell", replace(START, seed=seed)).place for seed in range(20)}
    assert orders == {"a", "b", "c"}
    assert steer("spell", down("a", "b", "c")).mode is Mode.IDLE


def test_cheapest_moves_once_a_day_and_only_where_it_pays() -> None:
    first = steer("cheapest", START)
    assert (first.place, first.wake_at) == ("b", 86_400.0)
    running = replace(START, now_s=3600.0, standing=on(Mode.SPOT, "a"))
    assert steer("cheapest", running, 86_400.0).place == "a"
    assert steer("cheapest", running, 3600.0).place == "b"
    # Ten minutes of work left: 0.2 USD/h saved does not pay for a changeover.
    assert steer("cheapest", replace(running, done_s=35_400.0), 3600.0).place == "a"


def test_utility_waits_in_no_hurry_and_hurries_when_behind() -> None:
    dark = down("a", "b", "c", situation=replace(START, now_s=600.0, done_s=600.0))
    assert steer("utility", dark).mode is Mode.IDLE
    behind = replace(dark, now_s=8 * 3600.0)
    course = steer("utility", behind)
    assert course.mode is Mode.ON_DEMAND
    assert course.wake_at == 8 * 3600.0 + 600.0


def test_utility_stays_for_small_gains() -> None:
    near = replace(START, places=(A, replace(B, spot_usd_per_h=0.95)), standing=on(Mode.SPOT, "a"), now_s=60.0)
    assert steer("utility", near).place == "a"
    assert steer("utility", replace(near, places=(A, replace(B, spot_usd_per_h=0.2)))).place == "b"


def flapping(policy: Incl, times: int) -> tuple[Situation, Memory, Course]:
    """Spot of one place that comes up for a minute and is lost, again and again."""
    place, memory = replace(A, up=False), None
    situation = replace(START, places=(place,))
    course = policy.steer(situation, memory)
    for turn in range(2 * times + 1):
        up = turn % 2 == 0
        situation = replace(situation, now_s=situation.now_s + 60.0, places=(replace(place, up=up),))
        course = policy.steer(situation, course.memory)
    return situation, course.memory, course


def test_incl_breaks_the_endless_loop_and_comes_back() -> None:
    policy = Incl(prior_h=2.0, half_life_h=6.0)
    assert flapping(policy, 2)[2].mode is Mode.SPOT
    situation, memory, course = flapping(policy, 30)
    assert course.mode is Mode.ON_DEMAND
    assert "lost too often" in course.reason
    steady = replace(situation, standing=on(Mode.ON_DEMAND, "a"))
    before = policy.steer(replace(steady, now_s=course.wake_at - 1.0), memory)
    after = policy.steer(replace(steady, now_s=course.wake_at + 1.0), memory)
    assert (before.mode, after.mode) == (Mode.ON_DEMAND, Mode.SPOT)
    assert before.wake_at == pytest.approx(course.wake_at, abs=1e-3)


def test_a_record_is_the_same_however_often_it_is_written() -> None:
    seldom = frequent = Record.after(START, None, half_life_h=6.0)
    for step in range(1, 11):
        frequent = Record.after(replace(START, now_s=step * 1000.0), frequent, half_life_h=6.0)
    seldom = Record.after(replace(START, now_s=10_000.0), seldom, half_life_h=6.0)
    assert frequent.places[0].lived_h == pytest.approx(seldom.places[0].lived_h)
    dropped = Record.after(down("a", situation=replace(START, now_s=10_000.0)), frequent, half_life_h=6.0)
    assert [place.drops for place in dropped.places] == [1.0, 0.0, 0.0]
