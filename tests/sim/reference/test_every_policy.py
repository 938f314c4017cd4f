"""What holds for every registered policy in every market."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.brain.select.course import Course, Mode
from everstep.brain.select.policies import POLICIES
from everstep.sim.reference.market import Job
from everstep.sim.reference.optimal import NoPlan, best_plan, optimal
from tests.sim.reference.worlds import TICK_S, Scene, market, scenes, scrambled, told

every_policy = pytest.mark.parametrize("name", POLICIES)


@every_policy
@given(scene=scenes())
def test_asking_at_every_tick_changes_nothing(name: str, scene: Scene) -> None:
    sparse, *_ = told(scene, POLICIES[name])
    dense, *_ = told(scene, POLICIES[name], every_tick=True)
    assert dense.cost_usd == pytest.approx(sparse.cost_usd, abs=1e-6)
    for key in ("finish_s", "spot_exits", "moves", "deadline_met"):
        assert getattr(dense, key) == getattr(sparse, key), key


@every_policy
@given(scene=scenes(), data=st.data())
def test_nothing_is_decided_by_what_comes_later(name: str, scene: Scene, data: st.DataObject) -> None:
    tick = data.draw(st.integers(0, len(scene.market.zones[0].up) - scene.job.start_tick - 2))
    other = scrambled(scene, tick, data.draw(st.integers(0, 999)))
    for every_tick in (False, True):
        _, was, _ = told(scene, POLICIES[name], every_tick=every_tick)
        _, now, _ = told(other, POLICIES[name], every_tick=every_tick)
        assert [d for d in was if d[0] <= tick] == [d for d in now if d[0] <= tick]


def test_who_knows_the_future_is_caught_by_this() -> None:
    """The best plan starts at once where spot will stay, not where it is lost before its changeover is paid."""
    job = Job(20 * TICK_S, 30 * TICK_S, 3 * TICK_S)
    first: list[Mode] = []
    for up in ([True] * 36, [True] * 2 + [False] * 34):
        courses: list[Course] = []
        optimal(market([up], [[1.0] * 36]), job, watcher=lambda _, __, course, courses=courses: courses.append(course))
        first.append(courses[0].mode)
    assert first == [Mode.SPOT, Mode.ON_DEMAND]


@every_policy
@given(scene=scenes())
def test_a_deadline_that_on_demand_could_meet_is_met(name: str, scene: Scene) -> None:
    outcome, *_ = told(scene, POLICIES[name])
    ticks = math.ceil((scene.job.task_s + scene.job.changeover_s) / TICK_S - 1e-9)
    if POLICIES[name].guarded and ticks * TICK_S <= scene.job.deadline_s:
        assert outcome.deadline_met


@every_policy
@given(scene=scenes())
def test_every_decision_says_why_and_what_else_there_was(name: str, scene: Scene) -> None:
    _, _, courses = told(scene, POLICIES[name])
    for course in courses:
        weighed = {(a.mode, a.place): a.expected_usd for a in course.alternatives}
        assert course.reason
        assert course.basis
        assert (course.place is None) == (course.mode is Mode.IDLE)
        assert math.isfinite(weighed[course.mode, course.place])
        assert len(weighed) == len(course.alternatives) >= 2 * len(scene.market.zones)
        hash(course.memory)


@every_policy
@given(scene=scenes())
def test_nobody_is_cheaper_than_the_optimum(name: str, scene: Scene) -> None:
    outcome, *_ = told(scene, POLICIES[name])
    try:
        plan = best_plan(scene.market, scene.job)
    except NoPlan:
        assert not outcome.deadline_met
        return
    best = optimal(scene.market, scene.job)
    assert best.deadline_met
    assert best.cost_usd == pytest.approx(plan.cost_usd, abs=1e-6)
    if outcome.deadline_met:
        assert outcome.cost_usd >= plan.cost_usd - 1e-6
