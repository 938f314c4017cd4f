"""The life of one machine, from intent to end. Facts about machines are always accepted, whatever the attempt."""

from __future__ import annotations

from everstep.brain.lifecycle.changing import replace
from everstep.brain.lifecycle.table import Move, check_target, look_up, rows
from everstep.model.causes import NoticeKind
from everstep.model.events import (
    Event,
    InstanceBarred,
    InstanceEnded,
    InstanceHeard,
    InstanceJoined,
    InstanceReady,
    InstanceSilent,
    LaunchFailed,
    LaunchSucceeded,
    NoticeReceived,
    OutputsStored,
    SetupFailed,
    ShutdownReported,
    TerminateIntended,
)
from everstep.model.job import InstancePhase, InstanceState

P = InstancePhase
_UP = (P.BOOTING, P.JOINED, P.READY)
_KNOWN = (*_UP, P.LEAVING)
# A later warning replaces an earlier one only if it is at least as strong.
_STRENGTH = {NoticeKind.REBALANCE: 0, NoticeKind.MAINTENANCE: 1, NoticeKind.MAX_LIFE: 2, NoticeKind.TERMINATE: 3}


def _launched(s: InstanceState, e: LaunchSucceeded, now: float) -> InstanceState:
    return replace(
        s, phase=P.BOOTING, instance=e.instance, started_at=e.started_at, price_usd_per_h=e.price_usd_per_h, failure=""
    )


def _refused(s: InstanceState, e: LaunchFailed, now: float) -> InstanceState:
    return replace(s, phase=P.REFUSED, failure=f"{e.error}: {e.message}")


def _refused_late(s: InstanceState, e: LaunchFailed, now: float) -> InstanceState:
    # Whether it lives is the provider's list to tell. The words are kept apart from ``failure``, which ends machines.
    return replace(s, refusal=s.refusal or f"{e.error}: {e.message}")


def _joined(s: InstanceState, e: InstanceJoined, now: float) -> InstanceState:
    # A second join is an agent that was restarted: whatever ran under it is gone, it must prepare again.
    phase = s.phase if s.phase is P.LEAVING else P.JOINED
    again = now if s.joined_at is not None else None
    return replace(
        s,
        phase=phase,
        joined_at=s.joined_at or now,
        address=e.address,
        probe_port=e.probe_port,
        gpus=e.gpus,
        silent=False,
        failure=s.failure if s.barred_at is None else "",
        prepared_from=again,
        barred_at=None,
    )


def _barred(s: InstanceState, e: InstanceBarred, now: float) -> InstanceState:
    return replace(s, failure=f"its agent was not let in: {e.why}", barred_at=now)


def _ready(s: InstanceState, e: InstanceReady, now: float) -> InstanceState:
    phase = s.phase if s.phase is P.LEAVING else P.READY
    return replace(
        s,
        phase=phase,
        ready_at=s.ready_at or now,
        port=e.port,
        setup_s=s.setup_s or e.setup_s,
        failure="",
        silent=False,
    )


def _setup_failed(s: InstanceState, e: SetupFailed, now: float) -> InstanceState:
    return replace(s, failure=f"setup exited with {e.rc}: {e.tail[-2000:]}")


def _noticed(s: InstanceState, e: NoticeReceived, now: float) -> InstanceState:
    if s.notice is not None and _STRENGTH[e.notice] < _STRENGTH[s.notice]:
        return s
    return replace(s, notice=e.notice, notice_deadline=e.deadline, notice_at=s.notice_at or now)


def _leaving(s: InstanceState, e: TerminateIntended, now: float) -> InstanceState:
    return replace(s, phase=P.LEAVING, leave_reason=s.leave_reason or e.reason, leave_at=s.leave_at or now)


def _ended(s: InstanceState, e: InstanceEnded, now: float) -> InstanceState:
    return replace(s, phase=P.ENDED, ended_at=e.ended_at, end=e.end)


def _silent(s: InstanceState, e: InstanceSilent, now: float) -> InstanceState:
    return replace(s, silent=True)


def _heard(s: InstanceState, e: InstanceHeard, now: float) -> InstanceState:
    return replace(s, silent=False)


def _said(s: InstanceState, e: ShutdownReported, now: float) -> InstanceState:
    return replace(s, said=e.how)


def _stored(s: InstanceState, e: OutputsStored, now: float) -> InstanceState:
    return replace(s, outputs_stored=True, failure=f"outputs not stored: {e.error}" if e.error else s.failure)


def _same(s: InstanceState, e: Event, now: float) -> InstanceState:
    return s


INSTANCE_TABLE: dict[tuple[InstancePhase, type[Event]], Move[InstanceState, InstancePhase]] = {
    # A launch that we took for refused may turn up in a sweep: then it is a machine like any other, and plan ends it.
    **rows((P.LAUNCHING, P.REFUSED), (LaunchSucceeded,), _launched, (P.BOOTING,)),
    **rows((P.LAUNCHING,), (LaunchFailed,), _refused, (P.REFUSED,)),
    **rows((P.REFUSED,), (LaunchFailed,), _same),
    # A sweep may see the machine before the launch call that made it breaks off.
    **rows((*_KNOWN, P.ENDED), (LaunchFailed,), _refused_late),
    **rows(_UP, (InstanceJoined,), _joined, (P.JOINED,)),
    **rows((P.LEAVING,), (InstanceJoined,), _joined),
    **rows((P.BOOTING,), (InstanceBarred,), _barred),
    **rows((P.JOINED, P.READY, P.LEAVING), (InstanceBarred,), _same),
    **rows((P.JOINED, P.READY), (InstanceReady,), _ready, (P.READY,)),
    **rows((P.LEAVING,), (InstanceReady,), _ready),
    **rows((P.JOINED, P.READY, P.LEAVING), (SetupFailed,), _setup_failed),
    **rows(_KNOWN, (NoticeReceived,), _noticed),
    **rows(_KNOWN, (TerminateIntended,), _leaving, (P.LEAVING,)),
    **rows(_KNOWN, (InstanceEnded,), _ended, (P.ENDED,)),
    **rows(_KNOWN, (InstanceSilent,), _silent),
    **rows(_KNOWN, (InstanceHeard,), _heard),
    **rows((*_KNOWN, P.ENDED), (ShutdownReported,), _said),
    **rows((*_KNOWN, P.ENDED), (OutputsStored,), _stored),
    # What was on the way when the machine ended changes nothing any more.
    **rows(
        (P.ENDED,),
        (
            LaunchSucceeded,
            InstanceBarred,
            InstanceJoined,
            InstanceReady,
            SetupFailed,
            NoticeReceived,
            TerminateIntended,
            InstanceEnded,
            InstanceSilent,
            InstanceHeard,
        ),
        _same,
    ),
    **rows(_KNOWN, (LaunchSucceeded,), _same),
}


def instance_step(state: InstanceState, event: Event, now: float) -> InstanceState:
    """One event in the life of one machine; raises UnlistedTransition."""
    move = look_up(INSTANCE_TABLE, state.phase, event, f"instance {state.instance or state.token}")
    after = move.do(state, event, now)
    check_target(move, state.phase, after.phase, event, f"instance {state.instance or state.token}")
    return after


INSTANCE_EVENTS: frozenset[type[Event]] = frozenset(event for _, event in INSTANCE_TABLE)
"""Events that concern a machine, keyed by ``instance`` (or by ``token`` for the outcome of a launch)."""
