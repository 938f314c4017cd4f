"""A machine whose agent was not let in does not bill until it is late: it is ended, and the job says why."""

from __future__ import annotations

from everstep.brain.lifecycle import transition
from everstep.model.causes import InstanceEnd
from everstep.model.effects import Decision, Terminate
from everstep.model.events import (
    GaveUp,
    InstanceBarred,
    InstanceEnded,
    InstanceJoined,
    LaunchIntended,
    LaunchSucceeded,
    TerminateIntended,
)
from everstep.model.ids import InstanceId, LaunchToken
from everstep.model.job import JobState
from tests.brain.making import fold, fresh, machine
from tests.brain.test_plan import decide, notes

I1 = InstanceId("i-1")
WHY = "this is the identity of another machine: instanceId is not i-1"
TEXT = f"its agent was not let in: {WHY}"


def barred(at: float = 30.0) -> JobState:
    return transition(fold(fresh(), machine(1)[:2]), InstanceBarred(I1, WHY), at)


def ended(decision: Decision) -> list[tuple[InstanceId, str]]:
    return [(e.event.instance, e.event.reason) for e in decision.effects if isinstance(e, Terminate)]


def test_it_is_ended_once_the_machine_itself_would_have_come() -> None:
    """Who came first may have been somebody who had read its token: that must not end the machine."""
    early = decide(barred(), 100.0)
    assert (ended(early), early.wake_at) == ([], 150.0)
    assert ended(decide(barred(), 150.0)) == [(I1, TEXT)]


def test_the_machine_itself_comes_in_time() -> None:
    job = transition(barred(), InstanceJoined(I1, "10.0.0.1", 7001), 60.0)
    assert (job.instances[LaunchToken("t-1")].failure, ended(decide(job, 200.0))) == ("", [])
    later = transition(job, InstanceBarred(I1, WHY), 210.0)
    assert ended(decide(later, 400.0)) == [], "who is in stays in"


def test_five_in_a_row_end_the_job_with_the_reason() -> None:
    job = fresh()
    for n in range(1, 6):
        assert notes(decide(job, 1000.0 * n)) == []
        intended, started = machine(n, 0)[:2]
        assert isinstance(intended, LaunchIntended)
        assert isinstance(started, LaunchSucceeded)
        at = 1000.0 * n
        job = fold(job, [intended, started, InstanceBarred(started.instance, WHY)], at)
        ((instance, reason),) = ended(decide(job, at + 120.0))
        job = fold(job, [TerminateIntended(instance, reason), InstanceEnded(instance, at, InstanceEnd.OWNER)], at + 120)
    (gave_up,) = notes(decide(job, 9000.0))
    assert isinstance(gave_up, GaveUp)
    assert TEXT in gave_up.reason
