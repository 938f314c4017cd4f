"""Which machines and disks go, when, and what has to come home before."""

from __future__ import annotations

from everstep.brain.lifecycle import transition
from everstep.brain.lifecycle.orders import outputs_due
from everstep.brain.release import leavers
from everstep.model.causes import Cause, InstanceEnd, NoticeKind
from everstep.model.events import (
    CancelRequested,
    CauseSettled,
    Event,
    InstanceEnded,
    LaunchFailed,
    LaunchSucceeded,
    NoticeReceived,
    OutputsStored,
    RanksEnded,
    RetryRequested,
)
from everstep.model.ids import InstanceId, LaunchToken
from everstep.model.job import InstanceState, JobPhase, JobState
from everstep.model.task import Recovery
from tests.brain.making import fold, fresh, machine, running

I1 = InstanceId("i-1")
FAILED: list[Event] = [RanksEnded(I1, 1, "failed", 1), CauseSettled(1, Cause.USER_ERROR, "x")]
KEPT = Recovery(keep_on_failure_s=600.0)
TIMEOUT_S = 300.0


def leaving(state: JobState, now: float) -> list[str]:
    return [e.instance for e in leavers(state, now, outputs_timeout_s=TIMEOUT_S)]


def newest(state: JobState) -> InstanceState:
    return list(state.instances.values())[-1]


def test_a_cancel_lets_kept_machines_go_and_their_outputs_come_home_first() -> None:
    kept = fold(running(recovery=KEPT, outputs=("out",)), FAILED, 50.0)
    assert leaving(kept, 399.0) == []
    cancelled = transition(kept, CancelRequested("u"), 400.0)
    assert (cancelled.keep_until, cancelled.kept_to) == (None, 400.0)
    assert outputs_due(cancelled, newest(cancelled))
    assert leaving(cancelled, 401.0) == []
    assert leaving(cancelled, 400.0 + TIMEOUT_S) == [I1], "not for ever"
    stored = transition(cancelled, OutputsStored(I1, 1, 1), 405.0)
    assert leaving(stored, 405.0) == [I1]
    assert transition(stored, InstanceEnded(I1, 410.0, InstanceEnd.OWNER), 410.0).phase is JobPhase.FAILED, "as it was"


def test_a_cancel_of_what_is_not_kept_drops_everything_at_once() -> None:
    assert leaving(transition(running(outputs=("out",)), CancelRequested("u"), 1.0), 12.0) == []
    stopped = fold(running(outputs=("out",)), [CancelRequested("u"), RanksEnded(I1, 1, "stopped")], 1.0)
    assert leaving(stopped, 1.0) == [I1]
    # Another run of a job whose machines were kept once is not kept by that.
    kept = fold(running(recovery=KEPT, outputs=("out",)), FAILED, 50.0)
    ended = fold(kept, [CancelRequested("u"), InstanceEnded(I1, 60.0, InstanceEnd.OWNER)], 60.0)
    again = fold(fold(ended, [RetryRequested("u")], 500.0), machine(2, slot=0), 510.0)
    again = fold(again, [CancelRequested("u"), RanksEnded(InstanceId("i-2"), 2, "stopped")], 520.0)
    assert not outputs_due(again, newest(again))
    assert leaving(again, 520.0) == ["i-2"]


def test_of_machines_that_came_for_one_slot_the_nearest_stays() -> None:
    """The launches of the first two were told to fail, and the machines were there all the same."""
    state = fresh(2)
    for n in (1, 2, 3):
        asked = machine(n, slot=0)[0]
        steps = [asked, LaunchFailed(LaunchToken(f"t-{n}"), "no_capacity", "broke off")] if n < 3 else [asked]
        state = fold(state, steps, now=10.0 * n)
    late = [LaunchSucceeded(LaunchToken(f"t-{n}"), InstanceId(f"i-{n}"), 10.0 * n, 1.0) for n in (1, 2, 3)]
    state = fold(state, [late[2]], 40.0)
    assert leaving(state, 40.0) == []
    state = fold(state, [late[1]], 41.0)
    assert leaving(state, 41.0) == ["i-3"], "it was started later"
    state = fold(state, [late[0], machine(2, slot=0)[2]], 42.0)
    assert sorted(leaving(state, 42.0)) == ["i-1", "i-3"], "one of them has joined"
    state = fold(state, [NoticeReceived(InstanceId("i-2"), NoticeKind.TERMINATE, 162.0)], 43.0)
    assert leaving(state, 43.0)[-1] == "i-3"
    assert "i-1" not in leaving(state, 43.0), "who is taken back keeps nobody away"
