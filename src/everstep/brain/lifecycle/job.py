"""The life of one job: what its events make of it.

An event first moves the machine and the attempt it speaks of (``instance``, ``gang``), then the job's own row
applies, and at last ``_follow`` draws the consequence: begin an attempt when every slot is ready, stop when the goal
changed, end when nothing is left. Messages of an older attempt are ignored: that is the fence.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from everstep.brain.lifecycle.gang import GANG_TABLE, begin_stop, gang_step
from everstep.brain.lifecycle.instance import INSTANCE_EVENTS, instance_step
from everstep.brain.lifecycle.table import Move, check_target, look_up, rows
from everstep.model.causes import Cause, NoticeKind
from everstep.model.errors import UnlistedTransition
from everstep.model.events import (
    BudgetSpent,
    CancelRequested,
    CauseSettled,
    DeadlineAlarm,
    Decided,
    Event,
    ExecRequested,
    GaveUp,
    InstanceJoined,
    JobSubmitted,
    KeepExpired,
    LaunchFailed,
    LaunchIntended,
    LaunchSucceeded,
    NoticeReceived,
    PauseRequested,
    Rejected,
    RestoreRequested,
    RetryRequested,
    UnpauseRequested,
    VolumeDeleted,
    VolumeDeleteIntended,
    VolumeFailed,
    VolumeIntended,
    VolumeReady,
)
from everstep.model.gang import Slot
from everstep.model.ids import InstanceId, LaunchToken
from everstep.model.job import (
    AttemptState,
    GangPhase,
    Goal,
    InstancePhase,
    InstanceState,
    JobPhase,
    JobState,
    SaveOrder,
    VolumeState,
)

J = JobPhase
_ACTIVE = (J.ACQUIRING, J.CHECKING, J.RUNNING, J.STOPPING)
_OPEN = (*_ACTIVE, J.RELEASING)
_ENDED = (J.SUCCEEDED, J.FAILED, J.CANCELLED)
_RESTING = (*_ENDED, J.PAUSED)
_ALL = tuple(J)
_END_OF = {Goal.PAUSE: J.PAUSED, Goal.SUCCEED: J.SUCCEEDED, Goal.FAIL: J.FAILED, Goal.CANCEL: J.CANCELLED}
_PHASE_WHILE = {GangPhase.CHECKING: J.CHECKING, GangPhase.RUNNING: J.RUNNING, GangPhase.STOPPING: J.STOPPING}
_REBASE_LIMIT = 64  # attempts kept in full; older ones are in the journal


def submitted(event: JobSubmitted, now: float) -> JobState:
    """The state of a job that has just come in."""
    return JobState(event.job, event.task, event.user, event.project, now, since=now, waiting_since=now)


def transition(state: JobState, event: Event, now: float) -> JobState:
    """The state after ``event``.

    Args:
        state: the job before it.
        event: any event but ``JobSubmitted``.
        now: UTC seconds.

    Raises:
        UnlistedTransition: a table does not list this event for the present phase.
    """
    if _stale(state, event):
        return state
    move = look_up(JOB_TABLE, state.phase, event, f"job {state.id}")
    after = _follow(move.do(_machines_and_gang(state, event, now), event, now), now)
    if after.phase is not state.phase:
        after = replace(after, since=now)
    check_target(move, state.phase, after.phase, event, f"job {state.id}")
    return after


def accepts(state: JobState, event: Event) -> bool:
    """Whether the job's table lists the event in the present phase (used to refuse user requests politely)."""
    return (state.phase, type(event)) in JOB_TABLE


def _stale(state: JobState, event: Event) -> bool:
    attempt = getattr(event, "attempt", None)
    return attempt is not None and not isinstance(event, CauseSettled) and attempt < state.attempt_no


# --- Machines and the attempt ----------------------------------------------------------------------------------------


def _machines_and_gang(state: JobState, event: Event, now: float) -> JobState:
    token = _token_of(state, event)
    if token is not None and type(event) in INSTANCE_EVENTS:
        before = state.instances[token]
        state = replace(state, instances={**state.instances, token: instance_step(before, event, now)})
        if isinstance(event, InstanceJoined) and before.phase is InstancePhase.BOOTING:
            return state  # the first join of a machine is no loss of a member
    return _gang(state, event, token, now)


def _gang(state: JobState, event: Event, token: LaunchToken | None, now: float) -> JobState:
    if isinstance(event, CauseSettled):
        return _settle(state, event, now)
    attempt = state.attempt
    if attempt is None or token not in attempt.members or (attempt.phase, type(event)) not in GANG_TABLE:
        if attempt is None or getattr(event, "attempt", None) is None:
            return state
        raise UnlistedTransition(f"job {state.id}: {type(event).__name__} of attempt {attempt.no} by a stranger")
    return _with_attempt(state, gang_step(attempt, event, token, now))


def _with_attempt(state: JobState, attempt: AttemptState) -> JobState:
    kept = tuple(attempt if a.no == attempt.no else a for a in state.attempts)
    return replace(state, attempts=kept)


def _token_of(state: JobState, event: Event) -> LaunchToken | None:
    token: LaunchToken | None = getattr(event, "token", None)
    if token is not None:
        if token not in state.instances and not isinstance(event, LaunchIntended):
            raise UnlistedTransition(f"job {state.id}: {type(event).__name__} for an unknown launch {token}")
        return None if isinstance(event, LaunchIntended) else token
    instance: InstanceId | None = getattr(event, "instance", None)
    if instance is None:
        return None
    known = state.by_instance(instance)
    if known is None:
        raise UnlistedTransition(f"job {state.id}: {type(event).__name__} for an unknown instance {instance}")
    return known.token


def _settle(state: JobState, event: CauseSettled, now: float) -> JobState:
    """Charges the budgets: the only place that does (rules 4 and 5)."""
    attempt = next((a for a in state.attempts if a.no == event.attempt), None)
    if attempt is None:
        return state
    settled = gang_step(attempt, event, attempt.members[0], now)
    state = replace(_with_attempt(state, settled), barren=0 if settled.progressed else state.barren + 1)
    if event.cause in (Cause.USER_ERROR, Cause.SETUP_FAILED):
        state = replace(state, user_failures=state.user_failures + 1)
        if state.user_failures > state.task.recovery.max_restarts and state.goal is Goal.RUN:
            return _fail(state, f"{event.evidence} (after {state.user_failures - 1} restarts)", now, settled.rc)
    if state.barren >= state.task.recovery.no_progress_limit and state.goal is Goal.RUN:
        text = f"{state.barren} attempts in a row ended without evidence of progress, the last by {event.cause.value}"
        if any(a.progressed or a.restored_at is not None for a in state.attempts):
            return _fail(state, text, now, settled.rc)
        # Nothing this script does can be seen from outside: failing it on a guess would be wrong (rule 5).
        state = replace(state, alarm=text + "; the script reports none, see everstep.train.progress")
    return state


def _fail(state: JobState, why: str, now: float, rc: int = 1) -> JobState:
    keep = state.task.recovery.keep_on_failure_s
    return replace(
        state,
        goal=Goal.FAIL,
        why=why,
        exit_code=rc or 1,
        keep_until=now + keep if keep > 0 else None,
        waiting_since=None,
    )


# --- Rows of the job's own table -------------------------------------------------------------------------------------


def _facts(s: JobState, e: Event, now: float) -> JobState:
    return s


def _intended(s: JobState, e: LaunchIntended, now: float) -> JobState:
    machine = InstanceState(
        token=e.token,
        launch_no=e.launch_no,
        slot=e.slot,
        offer=e.offer,
        intended_at=now,
        max_price_usd_per_h=e.max_price_usd_per_h,
        shared_folder=e.shared_folder,
        volume=e.volume,
    )
    return replace(s, instances={**s.instances, e.token: machine}, launches=max(s.launches, e.launch_no))


def _noticed(s: JobState, e: NoticeReceived, now: float) -> JobState:
    """Rule 6: the whole gang saves. A rebalance hint asks for a save now, without a deadline."""
    attempt = s.attempt
    member = s.by_instance(e.instance)
    if (
        attempt is None
        or attempt.phase is not GangPhase.RUNNING
        or member is None
        or member.token not in attempt.members
    ):
        return s
    deadline = e.deadline if e.notice is not NoticeKind.REBALANCE else None
    if s.save is not None and s.save.by is not None and (deadline is None or s.save.by <= deadline):
        return s
    return replace(s, save=SaveOrder(s.save_seq + 1, deadline), save_seq=s.save_seq + 1)


def _cancel(s: JobState, e: CancelRequested, now: float) -> JobState:
    return replace(s, goal=Goal.CANCEL, why=e.reason or f"cancelled by {e.actor}", keep_until=None, exit_code=130)


def _pause(s: JobState, e: PauseRequested, now: float) -> JobState:
    return replace(s, goal=Goal.PAUSE, why=e.reason or f"paused by {e.actor}", waiting_since=None)


def _budget(s: JobState, e: BudgetSpent, now: float) -> JobState:
    return replace(s, goal=Goal.PAUSE, why=f"the budget is spent (${e.cost_usd:.2f})", waiting_since=None)


def _unpause(s: JobState, e: UnpauseRequested, now: float) -> JobState:
    return replace(s, goal=Goal.RUN, phase=J.ACQUIRING, why="", waiting_since=now, alarm="")


def _retry(s: JobState, e: RetryRequested, now: float) -> JobState:
    return replace(
        s, goal=Goal.RUN, phase=J.ACQUIRING, why="", waiting_since=now, user_failures=0, barren=0, exit_code=None,
        ended_at=None, alarm="", quarantined="", keep_until=None,
    )  # fmt: skip


def _restore(s: JobState, e: RestoreRequested, now: float) -> JobState:
    s = replace(s, base_wanted=e.base, why=f"going back to checkpoint {e.base}")
    if s.attempt is not None and s.attempt.phase in (GangPhase.CHECKING, GangPhase.RUNNING):
        return _with_attempt(s, begin_stop(s.attempt, f"restore {e.base}"))
    return replace(s, goal=Goal.RUN, phase=J.ACQUIRING, waiting_since=now) if s.phase in _RESTING else s


def _exec(s: JobState, e: ExecRequested, now: float) -> JobState:
    return replace(s, execs=(*s.execs[-15:], (e.exec_id, e.command)))


def _gave_up(s: JobState, e: GaveUp, now: float) -> JobState:
    return _fail(s, e.reason, now)


def _alarm(s: JobState, e: DeadlineAlarm, now: float) -> JobState:
    return replace(s, alarm=e.text)


def _decided(s: JobState, e: Decided, now: float) -> JobState:
    return replace(s, wait=e.wait, decisions=s.decisions + 1)


def _rejected(s: JobState, e: Rejected, now: float) -> JobState:
    return replace(s, quarantined=e.text, alarm=f"quarantined: {e.text}")


def _volume_intended(s: JobState, e: VolumeIntended, now: float) -> JobState:
    return replace(s, volumes={**s.volumes, e.name: VolumeState(e.slot, e.name, e.zone, e.provider, e.size_gib)})


def _volume_ready(s: JobState, e: VolumeReady, now: float) -> JobState:
    def made(v: VolumeState) -> VolumeState:
        if v.slot != e.slot or v.volume is not None:
            return v
        return replace(v, volume=e.volume, created_at=e.created_at, price_usd_per_gib_h=e.price_usd_per_gib_h)

    return replace(s, volumes={name: made(v) for name, v in s.volumes.items()})


def _volume_failed(s: JobState, e: VolumeFailed, now: float) -> JobState:
    gone = {n: v for n, v in s.volumes.items() if not (v.slot == e.slot and v.volume is None)}
    return replace(s, volumes=gone, alarm=f"no disk for slot {e.slot}: {e.message}")


def _volume_deleting(s: JobState, e: VolumeDeleteIntended, now: float) -> JobState:
    return replace(
        s, volumes={n: replace(v, deleting=True) if v.volume == e.volume else v for n, v in s.volumes.items()}
    )


def _volume_deleted(s: JobState, e: VolumeDeleted, now: float) -> JobState:
    gone = {n: replace(v, deleted_at=e.deleted_at) if v.volume == e.volume else v for n, v in s.volumes.items()}
    return replace(s, volumes=gone)


def _keep_expired(s: JobState, e: KeepExpired, now: float) -> JobState:
    return replace(s, keep_until=None)


# --- Consequences ----------------------------------------------------------------------------------------------------


def _follow(s: JobState, now: float) -> JobState:
    """The phase that goal, attempt and machines imply; begins and stops attempts."""
    if s.phase in _RESTING:
        return s
    attempt = s.attempt
    if (
        attempt is not None
        and attempt.phase is GangPhase.ENDED
        and attempt.cause is Cause.SUCCESS
        and s.goal is Goal.RUN
    ):
        s = replace(s, goal=Goal.SUCCEED, why="", exit_code=0)
    if attempt is not None and attempt.phase is not GangPhase.ENDED:
        return _while_active(s, attempt)
    s = replace(s, save=None)
    if s.goal is Goal.RUN:
        # Begin at most once per event: the new attempt starts in CHECKING.
        return _begin(s, now) if _may_begin(s) else _acquiring(s, now)
    if any(machine.alive for machine in s.instances.values()):
        return replace(s, phase=J.RELEASING, waiting_since=None, wait="")
    ended = _END_OF[s.goal]
    return replace(s, phase=ended, ended_at=now if ended.ended else None, waiting_since=None, wait="", execs=())


def _while_active(s: JobState, attempt: AttemptState) -> JobState:
    if attempt.phase is not GangPhase.STOPPING and s.goal is not Goal.RUN:
        attempt = begin_stop(attempt, s.why)
        s = _with_attempt(s, attempt)
    elif attempt.phase is GangPhase.RUNNING and _replacements_ready(s, attempt):
        attempt = begin_stop(attempt, "moving off a machine that will be taken back")
        s = _with_attempt(s, attempt)
    phase = _PHASE_WHILE[attempt.phase]
    return replace(s, phase=phase, waiting_since=s.waiting_since if phase is J.STOPPING else None)


def _acquiring(s: JobState, now: float) -> JobState:
    return replace(s, phase=J.ACQUIRING, waiting_since=s.waiting_since if s.waiting_since is not None else now)


def _replacements_ready(s: JobState, attempt: AttemptState) -> bool:
    """Some member is doomed, and every slot of a doomed member has a prepared successor."""
    doomed = [s.instances[t] for t in attempt.members if s.instances[t].doomed]
    return bool(doomed) and all(_prepared(s, m.slot) is not None for m in doomed)


def _prepared(s: JobState, slot: Slot) -> InstanceState | None:
    """The machine that a new attempt would use for the slot: the newest that is ready and not doomed."""
    ready = [m for m in _of_slot(s, slot) if m.phase is InstancePhase.READY and not m.doomed]
    return max(ready, key=lambda m: m.launch_no, default=None)


def _of_slot(s: JobState, slot: Slot) -> Iterator[InstanceState]:
    return (m for m in s.instances.values() if m.slot == slot)


def _may_begin(s: JobState) -> bool:
    if s.quarantined or any(_prepared(s, slot) is None for slot in s.task.gang.slots):
        return False
    attempt = s.attempt
    if attempt is None or attempt.settled_at is not None or not attempt.failed:
        return True
    # Restart first, cause later: but with no restart left, a failure that may be the user's own waits for its cause.
    lost = any(not s.instances[t].alive or s.instances[t].doomed for t in attempt.members)
    return lost or s.user_failures < s.task.recovery.max_restarts


def _begin(s: JobState, now: float) -> JobState:
    members = ranked(s)
    no = s.attempt_no + 1
    attempt = AttemptState(
        no=no,
        members=tuple(m.token for m in members),
        master_port=members[0].port,
        begun_at=now,
        base_wanted=s.base_wanted,
        phase=GangPhase.CHECKING if len(members) > 1 else GangPhase.RUNNING,
    )
    attempts = (*s.attempts, attempt)
    if len(attempts) > _REBASE_LIMIT:
        attempts = (attempts[0], *attempts[-(_REBASE_LIMIT - 1) :])
    phase = J.CHECKING if len(members) > 1 else J.RUNNING
    return replace(s, phase=phase, attempts=attempts, base_wanted="", waiting_since=None, wait="", execs=())


def ranked(s: JobState) -> list[InstanceState]:
    """The prepared machines in order of node rank.

    Survivors keep their rank where they can. When the master is lost the lowest surviving rank takes its place, and the
    newcomer takes the rank that falls vacant (rule 7).
    """
    chosen = [m for slot in s.task.gang.slots if (m := _prepared(s, slot)) is not None]
    former = {} if s.attempt is None else {token: rank for rank, token in enumerate(s.attempt.members)}
    ranks: list[InstanceState | None] = [None] * len(chosen)
    newcomers = []
    for machine in chosen:
        rank = former.get(machine.token)
        if rank is None or rank >= len(ranks):
            newcomers.append(machine)
        else:
            ranks[rank] = machine
    first = next((r for r, m in enumerate(ranks) if m is not None), None)
    if first:
        ranks[0], ranks[first] = ranks[first], None
    fill = iter(newcomers)
    return [m if m is not None else next(fill) for m in ranks]


# --- The table -------------------------------------------------------------------------------------------------------

_LAUNCHES = (LaunchSucceeded, LaunchFailed)
_TOLD: tuple[type[Event], ...] = tuple(
    {event for _, event in GANG_TABLE} | set(INSTANCE_EVENTS) - {LaunchSucceeded, LaunchFailed, NoticeReceived}
)
# A late fact can end a release, and every fact can end or begin an attempt.
_ANYWHERE = frozenset(_OPEN) | frozenset(_RESTING)

JOB_TABLE: dict[tuple[JobPhase, type[Event]], Move[JobState, JobPhase]] = {
    **rows(_OPEN, (*_TOLD, *_LAUNCHES), _facts, _ANYWHERE),
    **rows(_RESTING, (*_TOLD, *_LAUNCHES), _facts),
    **rows(_OPEN, (NoticeReceived,), _noticed, _ANYWHERE),
    **rows(_RESTING, (NoticeReceived,), _facts),
    **rows(_ACTIVE, (LaunchIntended,), _intended),
    **rows(_OPEN, (CancelRequested,), _cancel, (J.STOPPING, J.RELEASING, J.CANCELLED)),
    **rows(
        (J.PAUSED,),
        (CancelRequested,),
        lambda s, e, now: replace(_cancel(s, e, now), phase=J.RELEASING),
        (J.CANCELLED,),
    ),
    **rows(_ACTIVE, (PauseRequested,), _pause, (J.STOPPING, J.RELEASING, J.PAUSED)),
    **rows(_ACTIVE, (BudgetSpent,), _budget, (J.STOPPING, J.RELEASING, J.PAUSED)),
    **rows((J.PAUSED,), (UnpauseRequested,), _unpause, (J.ACQUIRING,)),
    **rows(_ENDED, (RetryRequested,), _retry, (J.ACQUIRING,)),
    **rows((*_ACTIVE, *_RESTING), (RestoreRequested,), _restore, (J.ACQUIRING, J.STOPPING)),
    **rows((J.RUNNING,), (ExecRequested,), _exec),
    **rows(_ACTIVE, (GaveUp,), _gave_up, (J.STOPPING, J.RELEASING, J.FAILED)),
    **rows((J.RELEASING,), (KeepExpired,), _keep_expired, (J.RELEASING, J.FAILED)),
    **rows(_ALL, (DeadlineAlarm,), _alarm),
    **rows(_ALL, (Decided,), _decided),
    **rows(_ALL, (Rejected,), _rejected),
    **rows(_ACTIVE, (VolumeIntended,), _volume_intended),
    **rows(_ALL, (VolumeReady,), _volume_ready),
    **rows(_ALL, (VolumeFailed,), _volume_failed),
    **rows(_ALL, (VolumeDeleteIntended,), _volume_deleting),
    **rows(_ALL, (VolumeDeleted,), _volume_deleted),
}
