"""Which machines and disks are to go."""

from __future__ import annotations

from collections.abc import Iterator

from everstep.brain.lifecycle.moves import called_off, movers
from everstep.brain.lifecycle.orders import outputs_due
from everstep.brain.needs import is_untouched
from everstep.model.events import TerminateIntended, VolumeDeleteIntended
from everstep.model.job import UNREACHABLE_LIMIT, GangPhase, Goal, InstancePhase, InstanceState, JobPhase, JobState

_RELEASE_GRACE_S = 10.0
_LATE_S = 60.0
_BARRED_S = 120.0
"""Whoever could not prove to be a machine may be somebody else, who has read its token: the machine gets so long to
come itself. Its agent does not try twice."""


def leavers(state: JobState, now: float, *, outputs_timeout_s: float) -> Iterator[TerminateIntended]:
    """Machines that are not needed any more, with the reason.

    Args:
        state: the job.
        now: UTC seconds.
        outputs_timeout_s: how long a machine may take to bring its outputs home.
    """
    for machine in state.instances.values():
        # A launch without an answer has no id to end; it is asked again until it has one (rule 1).
        if machine.instance is None or not machine.alive or machine.phase is InstancePhase.LEAVING:
            continue
        reason = _reason(state, machine, now, outputs_timeout_s)
        if reason:
            yield TerminateIntended(machine.instance, reason)


def next_look(state: JobState, now: float, *, outputs_timeout_s: float) -> float | None:
    """When a timeout after ``now`` may make a machine a leaver, UTC seconds; None if none can."""
    times = []
    for m in state.instances.values():
        if m.phase in (InstancePhase.BOOTING, InstancePhase.JOINED):
            times.append(_ready_by(state, m))
            times.extend(() if m.barred_at is None else (m.barred_at + _BARRED_S,))
        if m.alive and m.phase is not InstancePhase.LEAVING and m.notice_deadline is not None:
            times.append(_no_refund_from(m))
        if state.phase is JobPhase.RELEASING and m.alive and m.phase is not InstancePhase.LEAVING:
            times.append(state.since + (outputs_timeout_s if outputs_due(state, m) else _RELEASE_GRACE_S))
    if state.keep_until is not None:
        times.append(state.keep_until)
    return min((at for at in times if at > now), default=None)


def _ready_by(state: JobState, m: InstanceState) -> float:
    since = m.intended_at if m.prepared_from is None else m.prepared_from
    return since + state.task.recovery.boot_timeout_s


def _reason(state: JobState, m: InstanceState, now: float, outputs_timeout_s: float) -> str:
    if state.phase.ended or state.phase is JobPhase.PAUSED:
        return f"the job is {state.phase.value}"
    if state.phase is JobPhase.RELEASING:
        return _released(state, m, now, outputs_timeout_s)
    attempt = state.attempt
    active = attempt is not None and attempt.phase is not GangPhase.ENDED
    if active and attempt is not None and m.token in attempt.members and not m.silent:
        return ""
    if m.phase in (InstancePhase.BOOTING, InstancePhase.JOINED):
        if now >= _ready_by(state, m):
            after = "its launch" if m.prepared_from is None else "its agent was started anew"
            return f"not ready {state.task.recovery.boot_timeout_s:.0f} s after {after}"
        if m.failure and (m.barred_at is None or now >= m.barred_at + _BARRED_S):
            return m.failure.splitlines()[0]
    if m.doomed:
        return "" if _refund_ahead(m, now) else _doom(m)
    if _has_no_disk(state, m):
        return "its disk is being deleted"
    if active and _spare(state, m):
        if m.move and m in movers(state):
            return "the move that it was leased for is called off" if called_off(state) else ""
        return "another machine has its place"
    if not active and _behind(state, m):
        return "another machine is nearer to having its place"
    return ""


def _released(state: JobState, m: InstanceState, now: float, outputs_timeout_s: float) -> str:
    if state.keep_until is not None:
        return ""
    why = state.goal.value if state.goal is not Goal.FAIL else "failed"
    if not outputs_due(state, m) or m.outputs_stored or m.silent or m.said:
        return f"{why}: nothing more to do"
    return f"{why}: outputs did not come home in time" if now >= state.since + outputs_timeout_s else ""


def _doom(m: InstanceState) -> str:
    if m.silent:
        return "it is silent"
    return "its peers cannot reach it" if m.unreachable >= UNREACHABLE_LIMIT else "it will be taken back"


def _refund_ahead(m: InstanceState, now: float) -> bool:
    """The vendor bills nothing if it takes the machine back by itself soon enough: then we do not end it ourselves."""
    if m.notice_deadline is None or m.started_at is None or m.silent:
        return False
    return m.notice_deadline < _free_until(m, m.started_at) and now < _no_refund_from(m)


def _free_until(m: InstanceState, started_at: float) -> float:
    return started_at + m.offer.billing.free_if_reclaimed_within_s / m.offer.billing.time_scale


def _no_refund_from(m: InstanceState) -> float:
    """From when on waiting for the vendor is of no use, UTC seconds."""
    assert m.notice_deadline is not None
    # A vendor that is late by more than a minute has changed its mind: no free ride on a machine that bills.
    patience = m.notice_deadline + _LATE_S
    return patience if m.started_at is None else min(patience, _free_until(m, m.started_at))


def _spare(state: JobState, m: InstanceState) -> bool:
    """Some other machine of the slot works in the active attempt, and is not going away."""
    assert state.attempt is not None
    members = (state.instances[token] for token in state.attempt.members)
    return any(other.slot == m.slot and not other.doomed for other in members)


def _has_no_disk(state: JobState, m: InstanceState) -> bool:
    """Its launch was told to fail, its disk was given up, and then it came: what it would save would be lost."""
    gone = {v.volume for v in state.volumes.values() if v.deleting or v.deleted_at is not None}
    return m.volume is not None and m.volume in gone


_NEAR = (InstancePhase.BOOTING, InstancePhase.JOINED, InstancePhase.READY)


def _behind(state: JobState, m: InstanceState) -> bool:
    """Another machine of the slot is nearer to being ready: one of them came although its launch was told to fail."""
    if m.move or m.phase not in _NEAR:
        return False
    rivals = (o for o in state.instances.values() if o.slot == m.slot and o.phase in _NEAR and not o.doomed)
    return any(_nearness(other) > _nearness(m) for other in rivals if other is not m and not other.move)


def _nearness(m: InstanceState) -> tuple[int, float, int]:
    return _NEAR.index(m.phase), -(m.started_at or m.intended_at), -m.launch_no


def dead_volumes(state: JobState) -> Iterator[VolumeDeleteIntended]:
    """Disks that may be deleted: the job ended, no machine is left, and what was on them came home or is not wanted.

    Of a job that failed, those are kept on which something may be.
    """
    if not state.phase.ended or any(m.alive for m in state.instances.values()):
        return
    stored = {m.volume for m in state.instances.values() if m.outputs_stored and not m.failure}
    for volume in state.volumes.values():
        if volume.volume is None or volume.deleting or volume.deleted_at is not None:
            continue
        is_done = state.phase is JobPhase.CANCELLED or (state.phase is JobPhase.SUCCEEDED and volume.volume in stored)
        if is_done or is_untouched(state, volume):
            yield VolumeDeleteIntended(volume.volume)
