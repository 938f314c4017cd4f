from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from everstep.brain.lifecycle import JOB_TABLE, transition
from everstep.brain.lifecycle.gang import GANG_TABLE, gang_step
from everstep.brain.lifecycle.instance import INSTANCE_TABLE, instance_step
from everstep.brain.lifecycle.table import Move, check_target, look_up, rows
from everstep.model.causes import Cause, InstanceEnd
from everstep.model.errors import UnlistedTransition
from everstep.model.events import (
    KINDS,
    CauseSettled,
    GaveUp,
    InstanceEnded,
    InstanceJoined,
    InstanceReady,
    JobSubmitted,
    LaunchFailed,
    LaunchSucceeded,
    PauseRequested,
    RanksEnded,
    RetryRequested,
    UnpauseRequested,
)
from everstep.model.gang import Slot
from everstep.model.ids import InstanceId, LaunchToken
from everstep.model.job import AttemptState, GangPhase, InstancePhase, InstanceState, JobPhase
from tests.brain.making import fresh, offer, running

I1 = InstanceId("i-1")


def test_a_pair_that_is_not_listed_raises_and_is_named() -> None:
    with pytest.raises(UnlistedTransition, match=r"a thing in phase running cannot take GaveUp"):
        look_up({}, JobPhase.RUNNING, GaveUp("x"), "a thing")


def test_a_target_that_the_row_does_not_list_raises() -> None:
    table = rows((JobPhase.RUNNING,), (GaveUp,), lambda s, e, now: s, (JobPhase.FAILED,))
    move: Move[None, JobPhase] = table[JobPhase.RUNNING, GaveUp]
    check_target(move, JobPhase.RUNNING, JobPhase.FAILED, GaveUp("x"), "job")
    with pytest.raises(UnlistedTransition, match="led from running to paused"):
        check_target(move, JobPhase.RUNNING, JobPhase.PAUSED, GaveUp("x"), "job")


def test_rows_without_targets_keep_the_phase() -> None:
    table = rows((JobPhase.RUNNING, JobPhase.PAUSED), (GaveUp,), lambda s, e, now: s)
    assert [move.to for move in table.values()] == [frozenset({JobPhase.RUNNING}), frozenset({JobPhase.PAUSED})]


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"JobSubmitted"}))
def test_every_event_has_a_row_in_the_jobs_table(kind: str) -> None:
    assert any(event is KINDS[kind] for _, event in JOB_TABLE)


def test_facts_are_listed_in_every_phase_of_a_job() -> None:
    """A fact cannot be refused because of when it comes; only what users and the planner want can."""
    wishes = {name for name in KINDS if name.endswith(("Requested", "Intended"))} | {"JobSubmitted"}
    facts = [event for name, event in KINDS.items() if name not in wishes]
    missing = [(p.value, e.__name__) for p, e in itertools.product(JobPhase, facts) if (p, e) not in JOB_TABLE]
    assert missing == []


def _machine(phase: InstancePhase) -> InstanceState:
    return InstanceState(LaunchToken("t-1"), 1, Slot(0, 0), offer(), 0.0, phase, instance=I1)


@pytest.mark.parametrize(
    ("phase", "event"),
    [
        (InstancePhase.LAUNCHING, InstanceJoined(I1, "a", 1)),
        (InstancePhase.LAUNCHING, InstanceEnded(I1, 0.0, InstanceEnd.LOST)),
        (InstancePhase.BOOTING, InstanceReady(I1, 1)),
        (InstancePhase.REFUSED, InstanceJoined(I1, "a", 1)),
        (InstancePhase.READY, PauseRequested("u")),
    ],
)
def test_a_machine_refuses_what_cannot_be(phase: InstancePhase, event: object) -> None:
    with pytest.raises(UnlistedTransition):
        instance_step(_machine(phase), event, 0.0)  # type: ignore[arg-type]


def test_each_row_of_the_machines_table_leads_where_it_says() -> None:
    samples = {
        LaunchSucceeded: LaunchSucceeded(LaunchToken("t-1"), I1, 1.0, 2.0),
        LaunchFailed: LaunchFailed(LaunchToken("t-1"), "no_capacity", "none"),
        InstanceJoined: InstanceJoined(I1, "a", 1),
        InstanceReady: InstanceReady(I1, 1),
        InstanceEnded: InstanceEnded(I1, 3.0, InstanceEnd.PREEMPTED),
    }
    for (phase, event), move in INSTANCE_TABLE.items():
        if event in samples:
            assert instance_step(_machine(phase), samples[event], 5.0).phase in move.to


def test_a_refused_launch_that_turns_up_is_a_machine() -> None:
    refused = instance_step(
        InstanceState(LaunchToken("t-1"), 1, Slot(0, 0), offer(), 0.0),
        LaunchFailed(LaunchToken("t-1"), "no_capacity", "none"), 1.0,
    )  # fmt: skip
    assert (refused.phase, refused.failure, refused.alive) == (InstancePhase.REFUSED, "no_capacity: none", False)
    adopted = instance_step(refused, LaunchSucceeded(LaunchToken("t-1"), I1, 2.0, 1.5), 9.0)
    assert (adopted.phase, adopted.instance, adopted.started_at, adopted.price_usd_per_h, adopted.failure) == (
        InstancePhase.BOOTING, I1, 2.0, 1.5, "",
    )  # fmt: skip
    # The answer "no" of the broken call comes late: the machine is there all the same, and the words are kept.
    late = instance_step(adopted, LaunchFailed(LaunchToken("t-1"), "no_capacity", "its disk is elsewhere"), 9.0)
    assert late == replace(adopted, refusal="no_capacity: its disk is elsewhere")
    assert instance_step(late, LaunchFailed(LaunchToken("t-1"), "throttled", "again"), 9.5) == late
    ended = instance_step(late, InstanceEnded(I1, 12.0, InstanceEnd.BOOT_FAILED), 13.0)
    assert (ended.phase, ended.refusal) == (InstancePhase.ENDED, "no_capacity: its disk is elsewhere")


def test_a_cause_is_settled_only_for_an_attempt_that_ended() -> None:
    attempt = AttemptState(1, (LaunchToken("t-1"),), 9000, 0.0, phase=GangPhase.RUNNING)
    with pytest.raises(UnlistedTransition):
        gang_step(attempt, CauseSettled(1, Cause.OWNER, ""), LaunchToken("t-1"), 0.0)
    assert (GangPhase.ENDED, CauseSettled) in GANG_TABLE


@pytest.mark.parametrize("event", [RetryRequested("u"), UnpauseRequested("u")])
def test_a_running_job_is_not_retried_or_unpaused(event: object) -> None:
    with pytest.raises(UnlistedTransition):
        transition(running(), event, 1.0)  # type: ignore[arg-type]


def test_a_message_of_a_member_that_is_none_is_refused() -> None:
    with pytest.raises(UnlistedTransition, match="unknown instance i-9"):
        transition(running(), RanksEnded(InstanceId("i-9"), 1, "ok"), 1.0)
    with pytest.raises(UnlistedTransition, match="unknown launch t-9"):
        transition(fresh(), LaunchFailed(LaunchToken("t-9"), "no_capacity", ""), 1.0)


def test_a_message_of_an_attempt_that_never_was_moves_nothing() -> None:
    state = running()
    assert transition(state, RanksEnded(I1, 7, "ok"), 1.0) is state


def test_a_job_is_submitted_once() -> None:
    assert not any(event is JobSubmitted for _, event in JOB_TABLE)
