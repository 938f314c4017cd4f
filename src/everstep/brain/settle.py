"""Why an attempt ended: from notices, heartbeats and the provider, within a minute (rule 4)."""

from __future__ import annotations

from collections.abc import Mapping

from everstep.brain.lifecycle.gang import AGENT_KILLED
from everstep.model.causes import Cause, InstanceEnd, NoticeKind
from everstep.model.events import CauseSettled
from everstep.model.handshake import OUTCOME_FAILED
from everstep.model.ids import InstanceId
from everstep.model.job import AttemptState, GangPhase, InstanceState, JobState

SETTLE_LIMIT_S = 60.0
"""A cause is settled at the latest so long after the end."""


def settle(
    state: JobState, attempt: AttemptState, *, heard: Mapping[InstanceId, float], now: float, calm_s: float
) -> CauseSettled | None:
    """The cause of an ended attempt, or None while the evidence does not suffice.

    Surviving ranks crash first in practice: a failed rank is the user's failure only when every machine of the gang
    has been heard from ``calm_s`` after the failure, without a notice and without the provider having taken one.

    Args:
        state: the job.
        attempt: one of its attempts.
        heard: UTC seconds of the last word of each machine's agent.
        now: UTC seconds.
        calm_s: how long a machine must have lived on to count as healthy.
    """
    if attempt.phase is not GangPhase.ENDED or attempt.settled_at is not None or attempt.ended_at is None:
        return None
    machines = [state.instances[token] for token in attempt.members]
    verdict = _taken(machines) or _stopped(attempt) or _lost(machines, attempt) or _cut_off(attempt)
    if verdict is None:
        verdict = _healthy(machines, attempt, heard, calm_s)
    if verdict is None and now >= attempt.ended_at + SETTLE_LIMIT_S:
        verdict = Cause.NODE_LOSS, "a machine has not been heard from since"
    return None if verdict is None else CauseSettled(attempt.no, *verdict)


def _taken(machines: list[InstanceState]) -> tuple[Cause, str] | None:
    for m in machines:
        if m.end in (InstanceEnd.PREEMPTED, InstanceEnd.MAX_LIFE):
            return Cause.PREEMPTION, f"{m.instance}: {m.end.value}, says the provider"
        if m.notice in (NoticeKind.TERMINATE, NoticeKind.MAX_LIFE):
            return Cause.PREEMPTION, f"{m.instance}: had notice of {m.notice.value}"
        if m.said == "preempted":
            return Cause.PREEMPTION, f"{m.instance}: said so when it shut down"
    return None


def _stopped(attempt: AttemptState) -> tuple[Cause, str] | None:
    if not attempt.failed:
        return Cause.OWNER, attempt.hint or "stopped on request"
    return None


def _lost(machines: list[InstanceState], attempt: AttemptState) -> tuple[Cause, str] | None:
    for m in machines:
        if attempt.ended.get(m.token) == AGENT_KILLED:
            return Cause.NODE_LOSS, f"{m.instance}: its agent was killed, and its ranks with it"
        if m.end in (InstanceEnd.LOST, InstanceEnd.BOOT_FAILED):
            return Cause.NODE_LOSS, f"{m.instance}: {m.end.value}, says the provider"
        if m.silent:
            return Cause.NODE_LOSS, f"{m.instance}: silent"
        if m.prepared_from is not None and m.prepared_from >= attempt.begun_at:
            # Its ranks went with the agent, and the others' crashed for want of them.
            return Cause.NODE_LOSS, f"{m.instance}: its agent was started anew"
        if m.end is InstanceEnd.OWNER:
            return Cause.OWNER, f"{m.instance}: ended by us: {m.leave_reason}"
    if attempt.hint == "lease expired":
        return Cause.NODE_LOSS, "a machine heard nothing from the server for a whole lease"
    return None


def _cut_off(attempt: AttemptState) -> tuple[Cause, str] | None:
    return (Cause.UNREACHABLE_PEER, attempt.hint) if attempt.unreachable else None


def _healthy(
    machines: list[InstanceState], attempt: AttemptState, heard: Mapping[InstanceId, float], calm_s: float
) -> tuple[Cause, str] | None:
    assert attempt.ended_at is not None
    for m in machines:
        if m.instance is None or heard.get(m.instance, 0.0) < attempt.ended_at + calm_s:
            return None
    if OUTCOME_FAILED not in attempt.ended.values():
        return Cause.OWNER, f"{attempt.hint}, on healthy machines"
    return Cause.USER_ERROR, f"{attempt.hint}, on healthy machines"
