"""A job that is refused for days remembers no more than lately, and stays as quick as it was."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from everstep.brain.economics.ledger import account
from everstep.brain.lifecycle import transition
from everstep.brain.lifecycle.refusals import MEMORY_S, REMEMBERED
from everstep.model.events import InstanceJoined, InstanceReady, LaunchFailed, LaunchIntended, LaunchSucceeded
from everstep.model.gang import Slot
from everstep.model.ids import InstanceId, LaunchToken
from everstep.model.job import InstancePhase, JobPhase, JobState
from tests.brain.making import fresh, offer, running

EVERY_S = 30.0


def refused(state: JobState, first: int, count: int, *, move: int = 0, provider: str = "box") -> JobState:
    leased = replace(offer(), provider=provider)
    for no in range(first, first + count):
        token = LaunchToken(f"t-{no}")
        intent = LaunchIntended(token, no, Slot(0, 0), leased, None, shared_folder="/shared", move=move)
        state = transition(state, intent, no * EVERY_S)
        state = transition(state, LaunchFailed(token, "no_capacity", "none in a"), no * EVERY_S + 1.0)
    return state


@pytest.mark.expensive(family="capacity")
def test_twenty_thousand_refusals_cost_no_more_each_than_the_first_thousand() -> None:
    states = [fresh()]

    def cpu_s(count: int) -> float:
        began = time.process_time()
        states.append(refused(states[-1], states[-1].launches + 1, count))
        return time.process_time() - began

    first_s, _, last_s = cpu_s(1_000), cpu_s(18_000), cpu_s(1_000)
    state = states[-1]
    # If all were remembered, each of the last would look through twenty times as many as one of the first.
    assert last_s < 10.0 * first_s
    assert len(state.instances) <= 2 * REMEMBERED + MEMORY_S / EVERY_S
    assert state.launches == 20_000
    assert state.refusals == {"no_capacity": 20_000 - len(state.instances)}
    begun = LaunchIntended(LaunchToken("t-last"), 20_001, Slot(0, 0), offer(), None, shared_folder="/shared")
    now = begun.launch_no * EVERY_S
    state = transition(state, begun, now)
    for event in (
        LaunchSucceeded(begun.token, InstanceId("i-last"), now, 1.0),
        InstanceJoined(InstanceId("i-last"), "10.0.0.1", 7001),
        InstanceReady(InstanceId("i-last"), 9001, 1.0),
    ):
        state = transition(state, event, now)
    assert state.phase is JobPhase.RUNNING
    assert account(state, now + 3600.0).cost_usd == pytest.approx(1.0)


def test_a_launch_taken_for_refused_may_still_turn_up_for_ten_minutes() -> None:
    state = refused(fresh(), 1, 1_000)
    late = [m for m in state.instances.values() if 1_000 * EVERY_S - m.intended_at <= MEMORY_S]
    assert len(late) >= MEMORY_S / EVERY_S
    state = transition(state, LaunchSucceeded(late[0].token, InstanceId("i-late"), 0.0, 1.0), 1_000 * EVERY_S)
    assert state.instances[late[0].token].phase is InstancePhase.BOOTING


def test_machines_that_were_there_are_never_forgotten() -> None:
    before = running(2)
    after = refused(before, 3, 500)
    assert {m.token for m in before.instances.values()} <= set(after.instances)
    assert sum(after.refusals.values()) > 0


def test_the_newest_move_and_the_terms_of_each_provider_stay_known() -> None:
    state = refused(fresh(), 1, 1, provider="elsewhere")
    state = refused(state, 2, 1, move=2)
    state = refused(state, 3, 1_000)
    assert {LaunchToken("t-1"), LaunchToken("t-2")} <= set(state.instances)
    assert LaunchToken("t-3") not in state.instances
