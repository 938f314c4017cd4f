"""The life of one job: what its events make of it.

An event first moves the machine and the attempt it speaks of (``instance``, ``gang``), then the job's own row
applies, and at last ``_follow`` draws the consequence: begin an attempt when every slot is ready, stop when the goal
changed, end when nothing is left. Messages of an older attempt are ignored: that is the fence.
"""

from __future__ import annotations

from collections import Counter

from everstep.brain.lifecycle import disks
from everstep.brain.lifecycle.beginning import begin, may_begin, ranked, replacements_ready, skipped
from everstep.brain.lifecycle.budgets import charge, fail
from everstep.brain.lifecycle.changing import replace
from everstep.brain.lifecycle.gang import GANG_TABLE, begin_stop, gang_step, late_word, with_attempt
from everstep.brain.lifecycle.instance import INSTANCE_EVENTS, instance_step
from everstep.brain.lifecycle.moves import movers_ready
from everstep.brain.lifecycle.refusals import forgetful
from everstep.brain.lifecycle.table import Move, check_target, look_up, rows
from everstep.model.causes import Cause, NoticeKind
from everstep.model.errors import UnlistedTransition
from everstep.model.events import (
    AttemptOverdue,
    AttemptsSkipped,
    BudgetSpent,
    CancelRequested,
    CauseSettled,
    CheckpointAudited,
    CheckpointSaved,
    DeadlineAlarm,
    Decided,
    Event,
    ExecRequested,
    FolderGrew,
    GaveUp,
    InstanceBarred,
    InstanceEnded,
    InstanceHeard,
    InstanceJoined,
    InstanceReady,
    InstanceSilent,
    JobSubmitted,
    KeepExpired,
    LaunchFailed,
    LaunchIntended,
    LaunchSucceeded,
    LeaseExpired,
    NoticeReceived,
    OutputsStored,
    PauseRequested,
    PeersChecked,
    ProgressSeen,
    RanksEnded,
    RanksStarted,
    Rejected,
    Restored,
    RestoreRequested,
    RetryRequested,
    SetupFailed,
    ShutdownReported,
    TerminateIntended,
    UnpauseRequested,
    VolumeDeleted,
    VolumeDeleteIntended,
    VolumeFailed,
    VolumeIntended,
    VolumeReady,
)
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
)
from everstep.model.units import format_money

_TAKEN_BACK = "moving off a machine that will be taken back"

J = JobPhase
_ACTIVE = (J.ACQUIRING, J.CHECKING, J.RUNNING, J.STOPPING)
_OPEN = (*_ACTIVE, J.RELEASING)
_ENDED = (J.SUCCEEDED, J.FAILED, J.CANCELLED)
_RESTING = (*_ENDED, J.PAUSED)
_ALL = tuple(J)
_END_OF = {Goal.PAUSE: J.PAUSED, Goal.SUCCEED: J.SUCCEEDED, Goal.FAIL: J.FAILED, Goal.CANCEL: J.CANCELLED}
_PHASE_WHILE = {GangPhase.CHECKING: J.CHECKING, GangPhase.RUNNING: J.RUNNING, GangPhase.STOPPING: J.STOPPING}


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
        return _late_word(state, event)
    move = look_up(JOB_TABLE, state.phase, event, f"job {state.id}")
    told = _crowned(state, _machines_and_gang(state, event, now))
    after = _follow(move.do(told, event, now), now)
    if after.phase is not state.phase:
        after = replace(after, since=now)
    check_target(move, state.phase, after.phase, event, f"job {state.id}")
    return after


def accepts(state: JobState, event: Event) -> bool:
    """Whether the job's table lists the event in the present phase (used to refuse user requests politely)."""
    if isinstance(event, PauseRequested) and state.goal is not Goal.RUN:
        return False
    if isinstance(event, RetryRequested) and state.phase is JobPhase.SUCCEEDED:
        return False  # nothing is left to do; journals of before this was refused have it
    if isinstance(event, ExecRequested) and state.phase is JobPhase.RELEASING and state.keep_until is None:
        return False  # the machines are on their way out, unless they are kept for exactly this
    return (state.phase, type(event)) in JOB_TABLE


def _stale(state: JobState, event: Event) -> bool:
    attempt = getattr(event, "attempt", None)
    return attempt is not None and not isinstance(event, CauseSettled) and attempt != state.attempt_no


def _late_word(state: JobState, event: Event) -> JobState:
    """A message of another attempt changes nothing (the fence) but what is known of that attempt: bill and cause."""
    attempt = next((a for a in state.attempts if a.no == getattr(event, "attempt", None)), None)
    if attempt is None or not isinstance(event, RanksEnded | LeaseExpired):
        return state
    teller = state.by_instance(event.instance)
    if teller is None or teller.token not in attempt.members:
        return state
    after = late_word(attempt, event)
    return state if after is attempt else with_attempt(state, after)


# --- Machines and the attempt ----------------------------------------------------------------------------------------


def _crowned(before: JobState, after: JobState) -> JobState:
    """The job's success, at the moment its attempt succeeds. Only a cancel or a wish to go back is stronger."""
    old, new = before.attempt, after.attempt
    if old is None or new is None or old.phase is GangPhase.ENDED or new.phase is not GangPhase.ENDED:
        return after
    if new.cause is not Cause.SUCCESS or after.goal is Goal.CANCEL or after.base_wanted:
        return after
    return replace(after, goal=Goal.SUCCEED, why="", exit_code=0, keep_until=None, kept_from=None)


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
        return charge(state, event, now)
    attempt = state.attempt
    if isinstance(event, AttemptOverdue) and attempt is not None:
        return with_attempt(state, gang_step(attempt, event, attempt.members[0], now))
    if attempt is None or token not in attempt.members or (attempt.phase, type(event)) not in GANG_TABLE:
        if attempt is None or getattr(event, "attempt", None) is None:
            return state
        raise UnlistedTransition(f"job {state.id}: {type(event).__name__} of attempt {attempt.no} by a stranger")
    state = with_attempt(state, gang_step(attempt, event, token, now))
    return _blame(state, attempt) if isinstance(event, PeersChecked) else state


def _blame(state: JobState, before: AttemptState) -> JobState:
    """Counts the attempts in a row in which most of the gang could not reach a machine, once a check is over."""
    attempt = state.attempt
    if attempt is None or before.phase is not GangPhase.CHECKING or attempt.phase is GangPhase.CHECKING:
        return state
    named = Counter(address for addresses in attempt.unreachable.values() for address in addresses)
    most = max(named.values(), default=0)
    members = {token: state.instances[token] for token in attempt.members}
    counted = {
        token: replace(m, unreachable=m.unreachable + 1 if most and named[m.address] == most else 0)
        for token, m in members.items()
    }
    return replace(state, instances={**state.instances, **counted})


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
        move=e.move,
    )
    s = forgetful(s, now)
    return replace(s, instances={**s.instances, e.token: machine}, launches=max(s.launches, e.launch_no))


def _noticed(s: JobState, e: NoticeReceived, now: float) -> JobState:
    """Rule 6: the whole gang saves. A rebalance hint asks for a save now, without a deadline."""
    attempt = s.attempt
    member = s.by_instance(e.instance)
    if attempt is None or attempt.phase is not GangPhase.RUNNING or member is None:
        return s
    if member.token not in attempt.members:
        return s
    return _save_by(s, e.deadline if e.notice is not NoticeKind.REBALANCE else None)


def _save_by(s: JobState, deadline: float | None) -> JobState:
    if s.save is not None and s.save.by is not None and (deadline is None or s.save.by <= deadline):
        return s
    return replace(s, save=SaveOrder(s.save_seq + 1, deadline), save_seq=s.save_seq + 1)


def _cancel(s: JobState, e: CancelRequested, now: float) -> JobState:
    if s.goal is Goal.FAIL and s.kept_from is not None:
        # It has failed, and stays that: what is given back is the machines that were kept to look at.
        return _keep_expired(s, KeepExpired(), now)
    return replace(s, goal=Goal.CANCEL, why=e.reason or f"cancelled by {e.actor}", exit_code=130)


def _cancel_paused(s: JobState, e: CancelRequested, now: float) -> JobState:
    return replace(_cancel(s, e, now), phase=J.RELEASING)


def _pause(s: JobState, e: PauseRequested, now: float) -> JobState:
    if s.goal is not Goal.RUN:
        return s  # on its way to another end already
    return replace(s, goal=Goal.PAUSE, why=e.reason or f"paused by {e.actor}", waiting_since=None)


def _budget(s: JobState, e: BudgetSpent, now: float) -> JobState:
    if s.goal is not Goal.RUN:
        return s
    return replace(s, goal=Goal.PAUSE, why=f"the budget is spent ({format_money(e.cost_usd)})", waiting_since=None)


def _unpause(s: JobState, e: UnpauseRequested, now: float) -> JobState:
    return replace(s, goal=Goal.RUN, phase=J.ACQUIRING, why="", waiting_since=now, alarm="")


def _retry(s: JobState, e: RetryRequested, now: float) -> JobState:
    return _afresh(s, now)


def _afresh(s: JobState, now: float) -> JobState:
    """An ended job runs again, with fresh failure budgets."""
    return replace(
        s, goal=Goal.RUN, phase=J.ACQUIRING, why="", waiting_since=now, user_failures=0, barren=0, exit_code=None,
        ended_at=None, alarm="", quarantined="", keep_until=None, old_launches=s.launches,
    )  # fmt: skip


def _restore(s: JobState, e: RestoreRequested, now: float) -> JobState:
    s = replace(s, base_wanted=e.base)
    if s.phase.ended:
        return _afresh(s, now)
    if s.phase is J.PAUSED:
        return replace(s, goal=Goal.RUN, phase=J.ACQUIRING, why="", waiting_since=now)
    if s.goal is Goal.RUN:
        s = replace(s, why=f"going back to checkpoint {e.base}")
    if s.attempt is not None and s.attempt.phase in (GangPhase.CHECKING, GangPhase.RUNNING):
        return with_attempt(s, begin_stop(s.attempt, f"restore {e.base}", now))
    return s


def _exec(s: JobState, e: ExecRequested, now: float) -> JobState:
    return replace(s, execs=(*s.execs[-15:], (e.exec_id, e.command)))


def _gave_up(s: JobState, e: GaveUp, now: float) -> JobState:
    return fail(s, e.reason, now) if s.goal is Goal.RUN else s


def _alarm(s: JobState, e: DeadlineAlarm, now: float) -> JobState:
    return replace(s, alarm=e.text)


def _decided(s: JobState, e: Decided, now: float) -> JobState:
    return replace(s, wait=e.wait, decisions=s.decisions + 1)


def _rejected(s: JobState, e: Rejected, now: float) -> JobState:
    return replace(s, quarantined=e.text, alarm=f"quarantined: {e.text}")


def _keep_expired(s: JobState, e: KeepExpired, now: float) -> JobState:
    # Outputs have from now on to come home.
    return s if s.keep_until is None else replace(s, keep_until=None, kept_to=now, since=now)


# --- Consequences ----------------------------------------------------------------------------------------------------


def _follow(s: JobState, now: float) -> JobState:
    """The phase that goal, attempt and machines imply; begins and stops attempts."""
    if s.phase in _RESTING:
        return s
    attempt = s.attempt
    if attempt is not None and attempt.phase is not GangPhase.ENDED:
        s = _while_active(s, attempt, now)
        if s.attempt is not None and s.attempt.phase is not GangPhase.ENDED:
            return s
    s = replace(s, save=None)
    if s.goal is Goal.RUN:
        # Begin at most once per event: the new attempt starts in CHECKING.
        return begin(s, now) if may_begin(s) else _acquiring(s, now)
    if any(machine.alive for machine in s.instances.values()):
        return replace(s, phase=J.RELEASING, waiting_since=None, wait="")
    ended = _END_OF[s.goal]
    if s.keep_until is not None:
        s = replace(s, keep_until=None, kept_to=now)
    return replace(s, phase=ended, ended_at=now if ended.ended else None, waiting_since=None, wait="", execs=())


def _while_active(s: JobState, attempt: AttemptState, now: float) -> JobState:
    if attempt.phase is not GangPhase.STOPPING and s.goal is not Goal.RUN:
        attempt = begin_stop(attempt, s.why, now)
    elif attempt.phase in (GangPhase.CHECKING, GangPhase.RUNNING) and replacements_ready(s, attempt):
        hint = "moving to machines that were leased for it" if movers_ready(s) else _TAKEN_BACK
        attempt = begin_stop(attempt, hint, now)
    s = with_attempt(s, attempt)
    if attempt.phase is GangPhase.ENDED:
        return s
    if attempt.phase is GangPhase.RUNNING and s.phase is not J.RUNNING:
        s = _save_for_known_notices(s, attempt)
    phase = _PHASE_WHILE[attempt.phase]
    waiting_since = s.waiting_since if phase is J.STOPPING else None
    if phase is s.phase and waiting_since == s.waiting_since:
        return s
    return replace(s, phase=phase, waiting_since=waiting_since)


def _save_for_known_notices(s: JobState, attempt: AttemptState) -> JobState:
    """Notices that came while the gang was being checked ask for a save as soon as it runs."""
    members = (s.instances[token] for token in attempt.members)
    for machine in members:
        if machine.notice is not None and machine.notice is not NoticeKind.REBALANCE:
            s = _save_by(s, machine.notice_deadline)
    return s


def _acquiring(s: JobState, now: float) -> JobState:
    return replace(s, phase=J.ACQUIRING, waiting_since=s.waiting_since if s.waiting_since is not None else now)


# --- The table -------------------------------------------------------------------------------------------------------

# Facts that change what machines and attempts are known to be, but never where the job stands.
_QUIET: tuple[type[Event], ...] = (
    RanksStarted, Restored, CheckpointSaved, CheckpointAudited, ProgressSeen, FolderGrew, SetupFailed,
    ShutdownReported, OutputsStored, LaunchSucceeded, InstanceBarred,
)  # fmt: skip
# Facts that take a member away, or that can give a machine back or take it out of what can be counted on.
_LOSSES: tuple[type[Event], ...] = (InstanceEnded, InstanceSilent, InstanceJoined)
_GAINS: tuple[type[Event], ...] = (InstanceReady, InstanceHeard, TerminateIntended)
_ENDINGS: tuple[type[Event], ...] = (RanksEnded, LeaseExpired, AttemptOverdue)
_STARTS = (J.ACQUIRING, J.CHECKING, J.RUNNING)
_AFTER_STOP = (J.STOPPING, *_STARTS, J.RELEASING, J.PAUSED, J.FAILED, J.CANCELLED)
_EVERY_END = (J.SUCCEEDED, J.FAILED, J.CANCELLED, J.PAUSED)

JOB_TABLE: dict[tuple[JobPhase, type[Event]], Move[JobState, JobPhase]] = {
    **rows(_ALL, _QUIET, _facts),
    # Restart first: a machine that is ready, or a failure that turns out to be nobody's, begins the next attempt.
    **rows((J.ACQUIRING,), (*_GAINS, *_LOSSES, *_ENDINGS, PeersChecked), _facts, _STARTS),
    **rows((J.ACQUIRING,), (NoticeReceived,), _noticed, _STARTS),
    **rows((J.ACQUIRING,), (CauseSettled,), _facts, (*_STARTS, J.RELEASING, J.FAILED)),
    **rows((J.CHECKING,), (PeersChecked,), _facts, (*_STARTS, J.STOPPING)),
    **rows((J.CHECKING,), (*_GAINS, *_LOSSES, LeaseExpired, AttemptOverdue), _facts, (J.CHECKING, J.ACQUIRING)),
    # Ranks that run already: of a journal that was put back to an earlier hour.
    **rows((J.CHECKING,), (RanksEnded,), _facts, (J.CHECKING, J.ACQUIRING, J.RELEASING)),
    **rows((J.CHECKING,), (NoticeReceived,), _noticed, (J.CHECKING, J.ACQUIRING)),
    **rows((J.CHECKING,), (CauseSettled,), _facts, (J.CHECKING, J.RELEASING)),
    **rows((J.RUNNING,), (*_LOSSES, *_ENDINGS), _facts, (*_STARTS, J.RELEASING)),
    **rows((J.RUNNING,), _GAINS, _facts, (J.RUNNING, J.STOPPING)),
    **rows((J.RUNNING,), (NoticeReceived,), _noticed, (J.RUNNING, J.STOPPING)),
    **rows((J.RUNNING,), (CauseSettled,), _facts, (J.RUNNING, J.STOPPING)),
    **rows((J.RUNNING,), (PeersChecked,), _facts),
    **rows((J.STOPPING,), (*_LOSSES, *_ENDINGS), _facts, _AFTER_STOP),
    **rows((J.STOPPING,), (*_GAINS, NoticeReceived, CauseSettled, PeersChecked), _facts),
    **rows((J.RELEASING,), (InstanceEnded, LaunchFailed), _facts, (J.RELEASING, *_EVERY_END)),
    **rows((J.RELEASING,), (InstanceSilent, InstanceJoined, NoticeReceived, CauseSettled, PeersChecked), _facts),
    **rows((J.RELEASING,), (*_GAINS, *_ENDINGS), _facts),
    **rows((*_ACTIVE, *_RESTING), (LaunchFailed,), _facts),
    **rows(_RESTING, (*_GAINS, *_LOSSES, *_ENDINGS, NoticeReceived, CauseSettled, PeersChecked), _facts),
    **rows(_ACTIVE, (LaunchIntended,), _intended),
    **rows(_OPEN, (CancelRequested,), _cancel, (J.STOPPING, J.RELEASING, J.CANCELLED)),
    # A launch thought refused may have turned up meanwhile: then there is something to release.
    **rows((J.PAUSED,), (CancelRequested,), _cancel_paused, (J.RELEASING, J.CANCELLED)),
    **rows(_ACTIVE, (PauseRequested,), _pause, (J.STOPPING, J.RELEASING, J.PAUSED)),
    **rows(_ACTIVE, (BudgetSpent,), _budget, (J.STOPPING, J.RELEASING, J.PAUSED)),
    **rows((J.PAUSED,), (UnpauseRequested,), _unpause, _STARTS),
    **rows(_ENDED, (RetryRequested,), _retry, _STARTS),
    **rows(_RESTING, (RestoreRequested,), _restore, _STARTS),
    **rows(_ACTIVE, (RestoreRequested,), _restore, (*_STARTS, J.STOPPING)),
    **rows((J.RUNNING, J.RELEASING), (ExecRequested,), _exec),
    **rows(_ACTIVE, (GaveUp,), _gave_up, (J.STOPPING, J.RELEASING, J.FAILED)),
    **rows((J.ACQUIRING, J.CHECKING, J.RUNNING), (AttemptsSkipped,), skipped, _STARTS),
    **rows((J.STOPPING,), (AttemptsSkipped,), skipped, _AFTER_STOP),
    **rows((J.RELEASING, *_RESTING), (AttemptsSkipped,), skipped),
    # One decision may conclude several things, of which the first settles the matter.
    **rows((J.RELEASING, *_RESTING), (BudgetSpent, GaveUp), _facts),
    **rows(_ALL, (KeepExpired,), _keep_expired),
    **rows(_ALL, (DeadlineAlarm,), _alarm),
    **rows(_ALL, (Decided,), _decided),
    **rows(_ALL, (Rejected,), _rejected),
    **rows(_ACTIVE, (VolumeIntended,), disks.intended),
    **rows(_ALL, (VolumeReady,), disks.ready),
    **rows(_ALL, (VolumeFailed,), disks.failed),
    **rows(_ALL, (VolumeDeleteIntended,), disks.deleting),
    **rows(_ALL, (VolumeDeleted,), disks.deleted),
}

__all__ = ["JOB_TABLE", "accepts", "ranked", "submitted", "transition"]
