"""The life of one attempt. Members are named by launch token; a member that was lost counts as ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from everstep.brain.lifecycle.changing import replace
from everstep.brain.lifecycle.table import Move, check_target, look_up, rows
from everstep.model.causes import Cause
from everstep.model.events import (
    AttemptOverdue,
    CauseSettled,
    CheckpointAudited,
    CheckpointSaved,
    Event,
    FolderGrew,
    InstanceEnded,
    InstanceJoined,
    InstanceSilent,
    LeaseExpired,
    PeersChecked,
    ProgressSeen,
    RanksEnded,
    RanksStarted,
    Restored,
)
from everstep.model.handshake import EXIT_REFUSED, OUTCOME_OK, REFUSAL
from everstep.model.ids import LaunchToken
from everstep.model.job import AttemptState, Audited, GangPhase, JobState, Saved

E = TypeVar("E", bound=Event)
N = TypeVar("N", int, float)
G = GangPhase
LOST = "lost"
"""Outcome of a member whose machine went away before its ranks could say how they ended."""
AGENT_KILLED = "agent_killed"
"""Outcome of a member whose ranks died with their agent: nothing that the user's program did."""
_KEPT_SAVES = 16

REFUSED = "refused to go on: "
"""How the hint of an attempt begins whose ranks would not go on, since that would not be exact."""


@dataclass(frozen=True, slots=True)
class Told(Generic[E]):
    """An event and the member that told it, or that it is about."""

    token: LaunchToken
    event: E


def _latest(a: N | None, b: N | None) -> N | None:
    return b if a is None else a if b is None else max(a, b)


def _earliest(a: float | None, b: float | None) -> float | None:
    return b if a is None else a if b is None else min(a, b)


def _finish(a: AttemptState, now: float, *, failed: bool, hint: str) -> AttemptState:
    if a.phase is G.ENDED:
        return a
    return replace(a, phase=G.ENDED, ended_at=now, failed=failed, hint=a.hint or hint)


def _checked(a: AttemptState, t: Told[PeersChecked], now: float) -> AttemptState:
    a = replace(a, checked=a.checked if t.token in a.checked else (*a.checked, t.token))
    if t.event.unreachable:
        a = replace(a, unreachable={**a.unreachable, t.token: t.event.unreachable})
    if not set(a.checked) >= set(a.members):
        return a  # who is to blame is clear only when everybody has told
    if not a.unreachable:
        return replace(a, phase=G.RUNNING)
    pairs = (f"node {a.members.index(LaunchToken(k))} cannot reach {', '.join(v)}" for k, v in a.unreachable.items())
    return _finish(a, now, failed=True, hint="; ".join(pairs))


def _started(a: AttemptState, t: Told[RanksStarted], now: float) -> AttemptState:
    started = a.started if t.token in a.started else (*a.started, t.token)
    return replace(a, started=started, spawned_at=_earliest(a.spawned_at, t.event.spawned_at))


def _restored(a: AttemptState, t: Told[Restored], now: float) -> AttemptState:
    if a.restored_at is not None:
        return a
    return replace(a, restored_at=now, restore_s=t.event.restore_s, base=t.event.base)


def _saved(a: AttemptState, t: Told[CheckpointSaved], now: float) -> AttemptState:
    if any(s.step == t.event.step for s in a.saves):
        return _saved_again(a, t.event)
    if len(a.saves) == _KEPT_SAVES and a.saves[0].step < t.event.step < a.saves[1].step:
        return a  # told again, of one that is not kept here any more
    save = Saved(t.event.step, now, t.event.save_s, t.event.stall_s, t.event.bytes, t.event.durable)
    # The first save and the newest few are all that accounting and restore lists need; the rest is in the journal.
    saves = (*a.saves, save)
    if len(saves) > _KEPT_SAVES:
        saves = (saves[0], *saves[1 - _KEPT_SAVES :])
    # Ranks of a machine that is lost do not tell in the end for how long they stood still.
    stall_s = a.stall_s + t.event.stall_s
    return replace(a, saves=saves, progressed=True, step=_latest(a.step, t.event.step), stall_s=stall_s)


def _saved_again(a: AttemptState, e: CheckpointSaved) -> AttemptState:
    """Told again after a restart of the server, or when it is durable at last: mirrored, or copied to a second node.

    What was durable once stays it, in whatever order the facts come.
    """
    if not e.durable or all(s.durable for s in a.saves if s.step == e.step):
        return a
    return replace(a, saves=tuple(replace(s, durable=True) if s.step == e.step else s for s in a.saves))


def _audited(a: AttemptState, t: Told[CheckpointAudited], now: float) -> AttemptState:
    if a.audit is not None and a.audit.verdict in ("differs", "refuses") and t.event.verdict in ("exact", "unknown"):
        return a  # another save that is well makes this one no better
    return replace(a, audit=Audited(t.event.save, t.event.verdict, t.event.text))


def _base_step(a: AttemptState) -> int:
    """Where the attempt started: a restored script that tells this very step has not got on yet."""
    base = a.base or a.base_wanted
    return int(base.partition(":")[2]) if base else 0


def _progress(a: AttemptState, t: Told[ProgressSeen], now: float) -> AttemptState:
    return replace(
        a,
        progressed=a.progressed or t.event.step > _base_step(a),
        step=_latest(a.step, t.event.step),
        total=t.event.total if t.event.total is not None else a.total,
        first_step_at=_earliest(a.first_step_at, t.event.first_step_at),
    )


def _grew(a: AttemptState, t: Told[FolderGrew], now: float) -> AttemptState:
    return replace(a, progressed=True)


def _figures(a: AttemptState, e: RanksEnded) -> AttemptState:
    """What the ranks measured; every member reports the same steps, so the furthest counts."""
    return replace(
        a,
        step=_latest(a.step, e.step),
        total=e.total if e.total is not None else a.total,
        first_step_at=_earliest(a.first_step_at, e.first_step_at),
        last_step_at=_latest(a.last_step_at, e.last_step_at),
        steps_done=max(a.steps_done, e.steps_done),
        stall_s=max(a.stall_s, e.stall_s),
        progressed=a.progressed or e.steps_done > 0,
    )


def _ranks_ended(a: AttemptState, t: Told[RanksEnded], now: float) -> AttemptState:
    if t.token in a.ended and a.ended[t.token] != LOST:
        return a
    outcome = AGENT_KILLED if t.event.agent_killed else t.event.outcome
    a = replace(_figures(a, t.event), ended={**a.ended, t.token: outcome})
    if a.phase is G.ENDED:
        return a
    everyone = set(a.ended) >= set(a.members)
    if t.event.outcome == OUTCOME_OK:
        # One node may finish a moment before the others; the attempt is done when all are.
        done = everyone and all(o == OUTCOME_OK for o in a.ended.values())
        return _succeed(a, now) if done else (_finish(a, now, failed=False, hint="stopped") if everyone else a)
    if a.phase is G.STOPPING:
        return _finish(a, now, failed=False, hint="stopped") if everyone else a
    a = replace(a, rc=t.event.rc or a.rc, tail=t.event.tail or a.tail)
    return _finish(a, now, failed=True, hint=_refusal(t.event) or _failure(t.event))


def _failure(e: RanksEnded) -> str:
    how = f"signal {e.signal}" if e.signal else f"exit code {e.rc}"
    rank = "" if e.failed_rank is None else f" rank {e.failed_rank}"
    return f"{e.outcome}:{rank} {how}"


def _refusal(e: RanksEnded) -> str:
    """Why the ranks would not go on, in their own words; "" if they did not refuse."""
    if e.rc != EXIT_REFUSED:
        return ""
    lines = [line[len(REFUSAL) :] for line in e.tail.splitlines() if line.startswith(REFUSAL)]
    return f"{REFUSED}{lines[-1]}" if lines else ""


def _succeed(a: AttemptState, now: float) -> AttemptState:
    a = _finish(a, now, failed=False, hint="every rank exited 0")
    return replace(a, cause=Cause.SUCCESS, evidence="every rank exited 0", settled_at=now)


def _lease(a: AttemptState, t: Told[LeaseExpired], now: float) -> AttemptState:
    a = replace(a, ended={**a.ended, t.token: "lease"})
    return _finish(a, now, failed=True, hint="lease expired")


def _lease_told(a: AttemptState, t: Told[LeaseExpired], now: float) -> AttemptState:
    return _late_lease(a)


def _late_lease(a: AttemptState) -> AttemptState:
    """The ranks told their end first; this is why they ended."""
    return replace(a, hint="lease expired") if a.failed and a.settled_at is None else a


def _member_lost(a: AttemptState, t: Told[Event], now: float) -> AttemptState:
    if a.ended.get(t.token) == OUTCOME_OK:
        return a  # its ranks were through already: a machine that goes away afterwards takes nothing with it
    a = replace(a, ended={t.token: LOST, **a.ended})
    e = t.event
    if isinstance(e, InstanceEnded | InstanceSilent) and e.last_step is not None:
        a = replace(
            a,
            progressed=a.progressed or e.last_step > _base_step(a),
            step=_latest(a.step, e.last_step),
            last_step_at=_latest(a.last_step_at, e.last_step_at),
        )
    if a.phase is G.STOPPING and not set(a.ended) >= set(a.members):
        return a
    return _finish(a, now, failed=a.phase is not G.STOPPING, hint="a machine of the gang is gone")


def _member_ended(a: AttemptState, t: Told[Event], now: float) -> AttemptState:
    if isinstance(t.event, RanksEnded):
        return _ranks_ended(a, Told(t.token, t.event), now)
    return _member_lost(a, t, now)


def _settled(a: AttemptState, t: Told[CauseSettled], now: float) -> AttemptState:
    return replace(a, cause=t.event.cause, evidence=t.event.evidence, settled_at=now)


def _overdue(a: AttemptState, t: Told[AttemptOverdue], now: float) -> AttemptState:
    return _finish(a, now, failed=a.phase is not G.STOPPING, hint=t.event.text)


def _same(a: AttemptState, t: Told[Event], now: float) -> AttemptState:
    return a


_ACTIVE = (G.CHECKING, G.RUNNING, G.STOPPING)
_ANY = (*_ACTIVE, G.ENDED)
_LOSSES: tuple[type[Event], ...] = (InstanceEnded, InstanceSilent, InstanceJoined)

GANG_TABLE: dict[tuple[GangPhase, type[Event]], Move[AttemptState, GangPhase]] = {
    **rows((G.CHECKING,), (PeersChecked,), _checked, (G.CHECKING, G.RUNNING, G.ENDED)),
    **rows((G.RUNNING, G.STOPPING, G.ENDED), (PeersChecked,), _same),
    **rows(_ANY, (RanksStarted,), _started),
    **rows(_ANY, (Restored,), _restored),
    **rows(_ANY, (CheckpointSaved,), _saved),
    **rows(_ANY, (CheckpointAudited,), _audited),
    **rows(_ANY, (ProgressSeen,), _progress),
    **rows(_ANY, (FolderGrew,), _grew),
    **rows((G.CHECKING, G.RUNNING), (RanksEnded, *_LOSSES), _member_ended, (G.CHECKING, G.RUNNING, G.ENDED)),
    **rows((G.STOPPING,), (RanksEnded, *_LOSSES), _member_ended, (G.STOPPING, G.ENDED)),
    **rows((G.ENDED,), (RanksEnded, *_LOSSES), _member_ended),
    **rows(_ACTIVE, (LeaseExpired,), _lease, (G.ENDED,)),
    **rows((G.ENDED,), (LeaseExpired,), _lease_told),
    **rows((G.CHECKING, G.STOPPING), (AttemptOverdue,), _overdue, (G.ENDED,)),
    **rows((G.RUNNING, G.ENDED), (AttemptOverdue,), _same),
    # The cause may be settled long after the next attempt began.
    **rows((G.ENDED,), (CauseSettled,), _settled),
}


def gang_step(attempt: AttemptState, event: Event, token: LaunchToken, now: float) -> AttemptState:
    """One event in the life of an attempt, told by (or about) the member ``token``; raises UnlistedTransition."""
    move = look_up(GANG_TABLE, attempt.phase, event, f"attempt {attempt.no}")
    after = move.do(attempt, Told(token, event), now)
    check_target(move, attempt.phase, after.phase, event, f"attempt {attempt.no}")
    return after


def end_unknown(attempt: AttemptState, hint: str, now: float) -> AttemptState:
    """The attempt is over because what we know of it is out of date; nobody is to blame."""
    return _finish(attempt, now, failed=False, hint=hint)


def begin_stop(attempt: AttemptState, hint: str, now: float) -> AttemptState:
    """The gang is asked to stop; the hint says why. While it checks no rank runs, so it has ended at once."""
    if attempt.phase is G.CHECKING:
        return _finish(attempt, now, failed=False, hint=hint)
    return replace(attempt, phase=G.STOPPING, hint=hint)


def late_word(attempt: AttemptState, event: RanksEnded | LeaseExpired) -> AttemptState:
    """An old attempt, told after its successor began what its ranks measured (for the account) or why they stopped."""
    after = _late_lease(attempt) if isinstance(event, LeaseExpired) else _figures(attempt, event)
    return attempt if after == attempt else after


def with_attempt(state: JobState, attempt: AttemptState) -> JobState:
    """The job with this attempt in the place of the one of its number."""
    if attempt is state.attempt:
        return state
    kept = tuple(attempt if a.no == attempt.no else a for a in state.attempts)
    return replace(state, attempts=kept)
