from __future__ import annotations

import pytest

from everstep.brain.settle import settle
from everstep.model.causes import Cause, InstanceEnd, NoticeKind
from everstep.model.events import (
    CauseSettled,
    Event,
    InstanceEnded,
    InstanceJoined,
    InstanceSilent,
    LeaseExpired,
    NoticeReceived,
    PauseRequested,
    PeersChecked,
    RanksEnded,
    ShutdownReported,
)
from everstep.model.ids import InstanceId
from tests.brain.making import fold, prepared, running

I1, I2 = InstanceId("i-1"), InstanceId("i-2")
CRASH = RanksEnded(I1, 1, "failed", 1)


def cause(events: list[Event], heard: dict[InstanceId, float], now: float = 12.0) -> Cause | None:
    """What an attempt of two machines that ended at 10 s ended by."""
    state = fold(running(2), events, 10.0)
    verdict = settle(state, state.attempts[0], heard=heard, now=now, calm_s=2.0)
    assert verdict is None or verdict.evidence
    return None if verdict is None else verdict.cause


ALIVE = {I1: 12.0, I2: 12.0}


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([CRASH, InstanceEnded(I2, 9.0, InstanceEnd.PREEMPTED)], Cause.PREEMPTION),
        ([CRASH, InstanceEnded(I2, 9.0, InstanceEnd.MAX_LIFE)], Cause.PREEMPTION),
        ([CRASH, NoticeReceived(I2, NoticeKind.TERMINATE, 40.0)], Cause.PREEMPTION),
        ([CRASH, ShutdownReported(I2, "preempted")], Cause.PREEMPTION),
        ([CRASH, NoticeReceived(I2, NoticeKind.REBALANCE, None)], Cause.USER_ERROR),
        ([CRASH, InstanceEnded(I2, 9.0, InstanceEnd.LOST)], Cause.NODE_LOSS),
        ([CRASH, InstanceSilent(I2, 1.0)], Cause.NODE_LOSS),
        ([CRASH, InstanceJoined(I2, "b", 1)], Cause.NODE_LOSS),
        ([CRASH, InstanceEnded(I2, 9.0, InstanceEnd.OWNER)], Cause.OWNER),
        ([CRASH], Cause.USER_ERROR),
        ([LeaseExpired(I2, 1)], Cause.NODE_LOSS),
        ([PauseRequested("u"), RanksEnded(I1, 1, "saved"), RanksEnded(I2, 1, "stopped")], Cause.OWNER),
        ([RanksEnded(I1, 1, "saved")], Cause.OWNER),
    ],
    ids=lambda value: value.value if isinstance(value, Cause) else "+".join(type(e).__name__ for e in value),
)
def test_each_kind_of_evidence_gives_its_cause(events: list[Event], expected: Cause) -> None:
    assert cause(events, ALIVE) is expected


def test_a_crash_is_not_the_users_while_a_machine_has_not_been_heard_from() -> None:
    assert cause([CRASH], {I1: 12.0, I2: 11.9}) is None
    assert cause([CRASH], {I1: 12.0}) is None
    assert cause([CRASH], {I1: 12.0}, now=69.9) is None


def test_after_a_minute_a_machine_without_a_word_counts_as_lost() -> None:
    assert cause([CRASH], {I1: 12.0, I2: 9.0}, now=70.0) is Cause.NODE_LOSS


def test_peers_out_of_reach_are_the_cause_unless_one_was_taken() -> None:
    told: list[Event] = [PeersChecked(I1, 1, ("10.0.0.2",)), PeersChecked(I2, 1)]
    state = fold(prepared(2), told, 10.0)
    verdict = settle(state, state.attempts[0], heard={}, now=10.0, calm_s=2.0)
    assert verdict == CauseSettled(1, Cause.UNREACHABLE_PEER, "node 0 cannot reach 10.0.0.2")
    state = fold(state, [InstanceEnded(I2, 9.0, InstanceEnd.PREEMPTED)], 11.0)
    verdict = settle(state, state.attempts[0], heard={}, now=11.0, calm_s=2.0)
    assert verdict is not None
    assert verdict.cause is Cause.PREEMPTION


def test_success_and_what_is_settled_are_not_settled_again() -> None:
    done = fold(running(), [RanksEnded(I1, 1, "ok")], 10.0)
    assert done.attempts[0].cause is Cause.SUCCESS
    assert settle(done, done.attempts[0], heard=ALIVE, now=99.0, calm_s=2.0) is None
    assert settle(running(), running().attempts[0], heard=ALIVE, now=99.0, calm_s=2.0) is None
