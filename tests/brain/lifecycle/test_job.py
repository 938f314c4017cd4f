from __future__ import annotations

from dataclasses import replace

import pytest

from everstep.brain.lifecycle import accepts, orders, transition
from everstep.brain.lifecycle.job import ranked
from everstep.model.causes import Cause, InstanceEnd, NoticeKind
from everstep.model.events import (
    AttemptOverdue,
    AttemptsSkipped,
    BudgetSpent,
    CancelRequested,
    CauseSettled,
    CheckpointSaved,
    Event,
    ExecRequested,
    FolderGrew,
    GaveUp,
    InstanceEnded,
    InstanceHeard,
    InstanceJoined,
    InstanceReady,
    InstanceSilent,
    KeepExpired,
    LeaseExpired,
    NoticeReceived,
    OutputsStored,
    PauseRequested,
    PeersChecked,
    ProgressSeen,
    RanksEnded,
    RanksStarted,
    Restored,
    RestoreRequested,
    RetryRequested,
    SetupFailed,
    ShutdownReported,
    TerminateIntended,
    UnpauseRequested,
)
from everstep.model.handshake import EXIT_REFUSED
from everstep.model.ids import InstanceId
from everstep.model.job import GangPhase, Goal, JobPhase, JobState
from everstep.model.task import Recovery
from tests.brain.making import fold, fresh, machine, prepared, running

I1, I2, I3 = (InstanceId(f"i-{n}") for n in (1, 2, 3))


def gone(instance: InstanceId, end: InstanceEnd = InstanceEnd.LOST) -> Event:
    return InstanceEnded(instance, 50.0, end)


def failed(instance: InstanceId, attempt: int = 1, rc: int = 3) -> Event:
    return RanksEnded(instance, attempt, "failed", rc)


def restarts(n: int, **fields: object) -> Recovery:
    return replace(Recovery(max_restarts=n), **fields)  # type: ignore[arg-type]


def settled(state: JobState, cause: Cause, attempt: int | None = None) -> JobState:
    number = state.attempt_no if attempt is None else attempt
    return transition(state, CauseSettled(number, cause, "evidence"), 60.0)


# --- Begin -----------------------------------------------------------------------------------------------------------


def test_one_node_runs_at_once_several_are_checked_first() -> None:
    assert prepared(1).phase is JobPhase.RUNNING
    state = prepared(2)
    assert state.phase is JobPhase.CHECKING
    assert transition(state, PeersChecked(I1, 1), 1.0).phase is JobPhase.CHECKING
    assert running(2).phase is JobPhase.RUNNING


def test_nothing_begins_before_every_slot_is_ready() -> None:
    state = fold(fresh(2), [*machine(1), *machine(2)[:3]])
    assert (state.phase, state.attempt) == (JobPhase.ACQUIRING, None)


def test_the_lowest_surviving_rank_becomes_master_and_the_others_keep_theirs() -> None:
    state = fold(running(3), [gone(I1), *machine(4, slot=0)], 60.0)
    assert state.attempt is not None
    assert state.attempt.members == ("t-2", "t-4", "t-3")
    assert state.attempt.master_port == 9002
    assert [m.token for m in ranked(state)] == ["t-2", "t-4", "t-3"]


def test_a_lost_child_is_replaced_in_its_own_rank() -> None:
    state = fold(running(3), [gone(I2), *machine(4, slot=1)], 60.0)
    assert state.attempt is not None
    assert state.attempt.members == ("t-1", "t-4", "t-3")


def test_the_master_of_a_new_attempt_has_the_port_that_its_agent_told_last() -> None:
    state = fold(running(), [InstanceReady(I1, 9555)])
    state = transition(state, LeaseExpired(I1, 1), 5.0)
    assert state.attempt is not None
    assert (state.attempt.no, state.attempt.master_port) == (2, 9555)


# --- Restart first, cause later --------------------------------------------------------------------------------------


def test_with_a_restart_left_a_failed_attempt_is_repeated_at_once() -> None:
    state = transition(running(recovery=restarts(1)), failed(I1), 9.0)
    assert (state.phase, state.attempt_no, state.user_failures) == (JobPhase.RUNNING, 2, 0)
    state = settled(state, Cause.USER_ERROR, 1)
    assert (state.user_failures, state.phase) == (1, JobPhase.RUNNING)


def test_without_a_restart_left_the_cause_decides() -> None:
    state = transition(running(), failed(I1), 9.0)
    assert (state.phase, state.attempt_no) == (JobPhase.ACQUIRING, 1)
    ended = settled(state, Cause.USER_ERROR)
    assert (ended.phase, ended.goal, ended.exit_code) == (JobPhase.RELEASING, Goal.FAIL, 3)
    assert settled(state, Cause.NODE_LOSS).attempt_no == 2


def test_failures_whose_cause_is_open_do_not_buy_more_restarts_than_allowed() -> None:
    state = fold(running(recovery=restarts(1)), [failed(I1)], 9.0)
    state = fold(state, [failed(I1, attempt=2)], 10.0)
    assert (state.attempt_no, state.phase) == (2, JobPhase.ACQUIRING)


def test_with_a_lost_machine_the_attempt_restarts_whatever_the_budget() -> None:
    state = fold(running(2), [gone(I2, InstanceEnd.PREEMPTED), *machine(3, slot=1)], 60.0)
    assert (state.attempt_no, state.phase) == (2, JobPhase.CHECKING)


def test_only_user_errors_charge_the_budget() -> None:
    for cause in Cause:
        state = settled(transition(running(recovery=restarts(5)), failed(I1), 9.0), cause, 1)
        assert state.user_failures == (1 if cause in (Cause.USER_ERROR, Cause.SETUP_FAILED) else 0)


def test_a_refusal_fails_the_job_with_its_reason_whatever_is_left_of_the_budget() -> None:
    tail = "everstep: a warning\nTraceback\neverstep: train.py has changed since the save\nlast"
    refusal = RanksEnded(I1, 1, "failed", EXIT_REFUSED, tail=tail)
    state = settled(transition(running(recovery=restarts(5)), refusal, 9.0), Cause.USER_ERROR, 1)
    assert (state.goal, state.exit_code) == (Goal.FAIL, EXIT_REFUSED)
    assert state.why == "refused to go on: train.py has changed since the save"


def test_a_program_that_exits_with_the_code_of_a_refusal_and_gives_no_reason_failed_like_any_other() -> None:
    state = transition(running(recovery=restarts(5)), failed(I1, rc=EXIT_REFUSED), 9.0)
    assert settled(state, Cause.USER_ERROR, 1).goal is Goal.RUN


def test_a_cause_is_charged_once() -> None:
    state = transition(running(recovery=restarts(5)), failed(I1), 9.0)
    once = settled(state, Cause.USER_ERROR, 1)
    assert settled(once, Cause.USER_ERROR, 1) == once


def test_the_job_fails_while_the_restarted_attempt_runs_when_the_old_cause_says_so() -> None:
    state = fold(running(recovery=restarts(1)), [ProgressSeen(I1, 1, 1), failed(I1)], 9.0)
    state = replace(state, user_failures=1)
    state = settled(state, Cause.USER_ERROR, 1)
    assert (state.phase, state.goal) == (JobPhase.STOPPING, Goal.FAIL)
    stop = orders(state, state.instances["t-1"])["stop"]  # type: ignore[index]
    assert (stop["save"], stop["grace_s"]) == (False, 0.0)
    state = transition(state, RanksEnded(I1, 2, "stopped"), 11.0)
    assert state.phase is JobPhase.RELEASING
    assert transition(state, gone(I1, InstanceEnd.OWNER), 12.0).phase is JobPhase.FAILED


# --- Progress --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "evidence",
    [ProgressSeen(I1, 2, 7), CheckpointSaved(I1, 2, 7), FolderGrew(I1, 2), RanksEnded(I1, 2, "failed", steps_done=4)],
)
def test_any_evidence_of_progress_ends_a_barren_row(evidence: Event) -> None:
    state = settled(fold(running(recovery=restarts(9)), [failed(I1)]), Cause.NODE_LOSS, 1)
    assert state.barren == 1
    state = fold(state, [evidence, failed(I1, 2)])
    assert settled(state, Cause.NODE_LOSS, 2).barren == 0


def test_barren_attempts_fail_a_job_that_could_show_progress_and_warn_about_one_that_cannot() -> None:
    def run(first: list[Event]) -> JobState:
        state = fold(running(recovery=restarts(0, no_progress_limit=2)), first)
        for number in (1, 2):
            state = settled(fold(state, [LeaseExpired(I1, number)]), Cause.NODE_LOSS, number)
        return state

    shown = run([Restored(I1, 1, None)])
    assert (shown.goal, "2 attempts in a row" in shown.why) == (Goal.FAIL, True)
    blind = run([])
    assert (blind.goal, "2 attempts in a row" in blind.alarm) == (Goal.RUN, True)


def test_what_we_stopped_ourselves_is_not_barren() -> None:
    state = fold(running(), [PauseRequested("u"), RanksEnded(I1, 1, "stopped")])
    assert settled(state, Cause.OWNER).barren == 0


# --- Notice and loss -------------------------------------------------------------------------------------------------


def test_a_notice_asks_the_whole_gang_to_save_once() -> None:
    notice = NoticeReceived(I2, NoticeKind.TERMINATE, 90.0)
    state = fold(running(3), [notice, notice])
    for token in state.instances:
        assert orders(state, state.instances[token])["save"] == {"seq": 1, "by": 90.0}
    earlier = transition(state, NoticeReceived(I1, NoticeKind.TERMINATE, 80.0), 1.0)
    assert earlier.save is not None
    assert (earlier.save.seq, earlier.save.by) == (2, 80.0)
    later = transition(earlier, NoticeReceived(I3, NoticeKind.TERMINATE, 85.0), 1.0)
    assert later.save == earlier.save


def test_a_rebalance_hint_asks_for_a_save_now_and_dooms_nobody() -> None:
    state = transition(running(2), NoticeReceived(I2, NoticeKind.REBALANCE, 90.0), 1.0)
    assert state.save is not None
    assert state.save.by is None
    assert not any(m.doomed for m in state.instances.values())


def test_a_notice_during_the_check_asks_for_the_save_as_soon_as_ranks_run() -> None:
    state = fold(prepared(2), [NoticeReceived(I2, NoticeKind.TERMINATE, 90.0)])
    assert state.save is None
    state = fold(state, [PeersChecked(I1, 1), PeersChecked(I2, 1)])
    assert state.save is not None
    assert state.save.by == 90.0


def test_the_gang_moves_when_the_replacement_is_ready_and_not_before() -> None:
    state = fold(running(2), [NoticeReceived(I2, NoticeKind.TERMINATE, 90.0), *machine(3, slot=1)[:3]])
    assert state.phase is JobPhase.RUNNING
    state = transition(state, InstanceReady(I3, 9003), 20.0)
    assert state.phase is JobPhase.STOPPING
    assert orders(state, state.instances["t-1"])["stop"]["save"] is True  # type: ignore[index]
    state = fold(state, [RanksEnded(I1, 1, "saved"), RanksEnded(I2, 1, "saved")], 21.0)
    assert state.attempt is not None
    assert (state.attempt_no, state.attempt.members) == (2, ("t-1", "t-3"))


def test_a_machine_lost_while_stopping_ends_the_stop() -> None:
    state = fold(running(2), [PauseRequested("u"), RanksEnded(I1, 1, "saved"), gone(I2)])
    assert state.phase is JobPhase.RELEASING
    assert state.attempt is not None
    assert not state.attempt.failed


def test_a_pause_during_the_check_needs_no_word_of_ranks_that_never_ran() -> None:
    state = transition(prepared(2), PauseRequested("u"), 3.0)
    assert state.phase is JobPhase.RELEASING


def test_a_stop_that_nobody_confirms_ends_when_it_is_overdue() -> None:
    state = fold(running(2), [PauseRequested("u"), AttemptOverdue(1, "late")], 9.0)
    assert state.phase is JobPhase.RELEASING
    assert transition(running(2), AttemptOverdue(1, "late"), 9.0).phase is JobPhase.RUNNING


def test_an_agent_that_joins_again_has_lost_its_ranks_and_prepares_anew() -> None:
    state = transition(running(2), InstanceJoined(I2, "10.0.0.2", 7100), 30.0)
    assert state.phase is JobPhase.ACQUIRING
    assert state.attempt is not None
    assert state.attempt.failed
    assert state.instances["t-2"].prepared_from == 30.0  # type: ignore[index]
    assert transition(state, InstanceReady(I2, 9102), 31.0).attempt_no == 2


def test_a_silent_machine_that_comes_back_before_it_was_replaced_is_used_again() -> None:
    state = fold(running(2), [InstanceSilent(I2, 1.0)])
    assert state.phase is JobPhase.ACQUIRING
    state = fold(state, [InstanceHeard(I2)])
    assert (state.phase, state.attempt_no) == (JobPhase.CHECKING, 2)


def test_who_cannot_be_reached_by_most_twice_in_a_row_is_not_counted_on() -> None:
    state = prepared(3)
    for number in (1, 2):
        told = {I1: ("10.0.0.2",), I2: ("10.0.0.1", "10.0.0.3"), I3: ("10.0.0.2",)}
        state = fold(state, [PeersChecked(i, number, missed) for i, missed in told.items()])
        state = settled(state, Cause.UNREACHABLE_PEER, number)
    assert [m.doomed for m in state.instances.values()] == [False, True, False]
    assert state.phase is JobPhase.ACQUIRING


def test_success_of_all_nodes_is_success_and_a_later_loss_takes_nothing_back() -> None:
    state = fold(running(2), [RanksEnded(I1, 1, "ok"), gone(I1)])
    assert state.phase is JobPhase.RUNNING
    state = transition(state, RanksEnded(I2, 1, "ok"), 70.0)
    assert (state.phase, state.goal, state.exit_code) == (JobPhase.RELEASING, Goal.SUCCEED, 0)


def test_late_figures_of_an_old_attempt_complete_its_account_and_nothing_else() -> None:
    state = fold(running(2), [gone(I2), *machine(3, slot=1)], 60.0)
    late = RanksEnded(I1, 1, "failed", 1, step=40, first_step_at=10.0, last_step_at=49.0, steps_done=40)
    after = transition(state, late, 61.0)
    assert (after.attempts[0].steps_done, after.attempts[0].last_step_at) == (40, 49.0)
    assert after.attempts[0].phase is GangPhase.ENDED
    assert replace(after, attempts=state.attempts) == state


def last_words(attempt: int) -> list[Event]:
    """Everything that an agent may tell of its machine."""
    return [
        InstanceReady(I1, 9001), SetupFailed(I1, 1), PeersChecked(I1, attempt, ("10.0.0.2",)),
        RanksStarted(I1, attempt, 1, 5.0), Restored(I1, attempt, None), CheckpointSaved(I1, attempt, 7),
        ProgressSeen(I1, attempt, 7), FolderGrew(I1, attempt), NoticeReceived(I1, NoticeKind.TERMINATE, 9.0),
        *(RanksEnded(I1, attempt, outcome, 1, step=8) for outcome in ("ok", "failed", "saved", "stopped")),
        LeaseExpired(I1, attempt), OutputsStored(I1, 1, 1), ShutdownReported(I1, "preempted"),
    ]  # fmt: skip


@pytest.mark.parametrize("phase", JobPhase)
def test_facts_of_a_machine_that_has_ended_are_welcome_in_every_phase(phase: JobPhase) -> None:
    before = phases()[phase] if phase is not JobPhase.ACQUIRING else fold(running(2), [gone(I2)])
    if before.by_instance(I1) is None:
        before = replace(before, instances=fold(fresh(), machine(1)).instances)
    state = transition(before, gone(I1), 20.0)
    for attempt in {1, max(state.attempt_no, 1), state.attempt_no + 1}:
        for event in last_words(attempt):
            after = transition(state, event, 21.0)
            machine_state = after.by_instance(I1)
            assert machine_state is not None
            assert not machine_state.alive
            assert after.phase is state.phase or not state.phase.ended


# --- What users ask --------------------------------------------------------------------------------------------------


def phases() -> dict[JobPhase, JobState]:
    """A job in each phase."""
    stopping = transition(running(2), PauseRequested("u"), 5.0)
    releasing = fold(stopping, [RanksEnded(I1, 1, "saved"), RanksEnded(I2, 1, "saved")])
    paused = fold(releasing, [gone(I1, InstanceEnd.OWNER), gone(I2, InstanceEnd.OWNER)])
    done = fold(running(), [RanksEnded(I1, 1, "ok")])
    return {
        JobPhase.ACQUIRING: fresh(2),
        JobPhase.CHECKING: prepared(2),
        JobPhase.RUNNING: running(2),
        JobPhase.STOPPING: stopping,
        JobPhase.RELEASING: releasing,
        JobPhase.PAUSED: paused,
        JobPhase.SUCCEEDED: transition(done, gone(I1, InstanceEnd.OWNER), 9.0),
        JobPhase.FAILED: transition(fresh(), GaveUp("no"), 9.0),
        JobPhase.CANCELLED: transition(fresh(), CancelRequested("u"), 9.0),
    }


def test_the_examples_are_what_they_say() -> None:
    assert {phase: state.phase for phase, state in phases().items()} == {phase: phase for phase in JobPhase}


ALLOWED = {
    CancelRequested("u"): {
        JobPhase.ACQUIRING, JobPhase.CHECKING, JobPhase.RUNNING, JobPhase.STOPPING, JobPhase.RELEASING, JobPhase.PAUSED,
    },
    PauseRequested("u"): {JobPhase.ACQUIRING, JobPhase.CHECKING, JobPhase.RUNNING},
    UnpauseRequested("u"): {JobPhase.PAUSED},
    RetryRequested("u"): {JobPhase.FAILED, JobPhase.CANCELLED},
    RestoreRequested("u", "1:5"): set(JobPhase) - {JobPhase.RELEASING},
    ExecRequested("u", "e", "ls"): {JobPhase.RUNNING},
}  # fmt: skip


@pytest.mark.parametrize("event", ALLOWED, ids=lambda e: type(e).__name__)
def test_what_may_be_asked_in_which_phase(event: Event) -> None:
    assert {phase for phase, state in phases().items() if accepts(state, event)} == ALLOWED[event]
    for phase in ALLOWED[event]:
        transition(phases()[phase], event, 20.0)  # leads to a phase that its row lists


@pytest.mark.parametrize("phase", sorted(ALLOWED[CancelRequested("u")]))
def test_cancel_wins_in_every_phase(phase: JobPhase) -> None:
    state = transition(phases()[phase], CancelRequested("u"), 20.0)
    assert state.goal is Goal.CANCEL
    for weaker in (BudgetSpent(1.0), GaveUp("no"), KeepExpired()):
        assert transition(state, weaker, 21.0).goal is Goal.CANCEL
    for machine_state in [m for m in state.instances.values() if m.alive]:
        assert machine_state.instance is not None
        state = transition(state, gone(machine_state.instance, InstanceEnd.OWNER), 22.0)
    assert state.phase is JobPhase.CANCELLED


@pytest.mark.parametrize("ended", [JobPhase.SUCCEEDED, JobPhase.FAILED, JobPhase.CANCELLED])
@pytest.mark.parametrize("event", [RetryRequested("u"), RestoreRequested("u", "1:5")])
def test_an_ended_job_runs_again_with_fresh_budgets(ended: JobPhase, event: Event) -> None:
    state = replace(phases()[ended], user_failures=3, barren=2)
    again = transition(state, event, 30.0)
    assert (again.phase, again.goal, again.user_failures, again.barren) == (JobPhase.ACQUIRING, Goal.RUN, 0, 0)
    assert (again.ended_at, again.exit_code, again.why) == (None, None, "")
    again = fold(again, machine(9, slot=0), 31.0)
    assert again.phase is JobPhase.RUNNING
    assert again.attempt_no == state.attempt_no + 1
    assert again.attempt is not None
    assert again.attempt.base_wanted == getattr(event, "base", "")


def test_restore_stops_the_gang_and_begins_from_the_older_base() -> None:
    state = transition(running(), RestoreRequested("u", "1:5"), 5.0)
    assert state.phase is JobPhase.STOPPING
    state = transition(state, RanksEnded(I1, 1, "ok"), 6.0)  # it was through, but the user wants to go back
    assert state.attempt is not None
    assert (state.phase, state.attempt_no, state.attempt.base_wanted) == (JobPhase.RUNNING, 2, "1:5")
    assert orders(state, state.instances["t-1"])["base"] == "1:5"  # type: ignore[index]


@pytest.mark.parametrize("earlier", [(), (PauseRequested("u"),), (BudgetSpent(1.0),)])
def test_a_stop_to_go_back_saves_nothing_since_a_save_collects(earlier: tuple[Event, ...]) -> None:
    state = fold(running(), [*earlier, RestoreRequested("u", "1:5")], 5.0)
    stop = orders(state, state.instances["t-1"])["stop"]  # type: ignore[index]
    assert (stop["save"], stop["grace_s"]) == (False, 0.0)


def test_each_attempt_is_told_where_to_start_until_one_has_started() -> None:
    state = fold(running(), [RestoreRequested("u", "1:5"), RanksEnded(I1, 1, "stopped")], 5.0)
    state = fold(state, [gone(I1), *machine(2, slot=0)], 6.0)
    told = [(a.no, a.base_wanted, a.base_since) for a in state.attempts]
    assert told == [(1, "", 0), (2, "1:5", 2), (3, "1:5", 2)], "the second was lost before it had restored"
    document = orders(state, state.instances["t-2"])  # type: ignore[index]
    assert (document["base"], document["base_since"]) == ("1:5", 2)
    state = fold(state, [Restored(I2, 3, "1:5"), gone(I2), *machine(3, slot=0)], 7.0)
    assert state.attempt is not None
    assert (state.attempt.no, state.attempt.base_wanted, state.attempt.base_since) == (4, "", 0)


def test_a_job_that_is_through_while_it_is_being_paused_has_succeeded() -> None:
    state = fold(running(), [PauseRequested("u"), RanksEnded(I1, 1, "ok")])
    assert state.goal is Goal.SUCCEED


def test_machines_are_kept_for_debugging_after_a_failure_until_the_time_is_over() -> None:
    recovery = restarts(0, keep_on_failure_s=600.0)
    state = settled(transition(running(recovery=recovery), failed(I1), 9.0), Cause.USER_ERROR)
    assert (state.phase, state.keep_until, state.kept_from) == (JobPhase.RELEASING, 660.0, 60.0)
    assert orders(state, state.instances["t-1"])["phase"] == "hold"  # type: ignore[index]
    state = transition(state, KeepExpired(), 660.0)
    assert (state.keep_until, state.kept_to, state.since) == (None, 660.0, 660.0)
    assert orders(state, state.instances["t-1"])["phase"] == "release"  # type: ignore[index]


def test_a_cancel_of_a_failed_job_gives_back_what_was_kept_and_no_more() -> None:
    recovery = restarts(0, keep_on_failure_s=600.0)
    kept = settled(transition(running(recovery=recovery), failed(I1, rc=9), 9.0), Cause.USER_ERROR)
    state = fold(kept, [CancelRequested("u"), CancelRequested("u", "quickly")], 70.0)
    assert orders(state, state.instances["t-1"])["phase"] == "release"  # type: ignore[index]
    state = transition(state, gone(I1, InstanceEnd.OWNER), 80.0)
    assert (state.phase, state.exit_code, state.why) == (JobPhase.FAILED, 9, kept.why)
    assert (state.kept_from, state.kept_to) == (60.0, 70.0)


def test_orders_change_for_every_member_when_an_attempt_ends() -> None:
    state = running(2)
    before = [orders(state, m)["phase"] for m in state.instances.values()]
    state = transition(state, gone(I2), 9.0)
    after = orders(state, state.instances["t-1"])  # type: ignore[index]
    assert before == ["run", "run"]
    assert (after["phase"], after["stop"]["save"]) == ("hold", False)


def test_a_machine_that_is_leaving_is_not_used_again() -> None:
    state = fold(running(2), [gone(I1), TerminateIntended(I2, "x"), *machine(3, slot=0)], 9.0)
    assert state.phase is JobPhase.ACQUIRING


def test_a_restored_script_that_tells_where_it_stands_has_not_got_on_yet() -> None:
    """Rule 5: an attempt that restores and dies again and again is no progress."""
    state = running()
    state = fold(state, [Restored(I1, 1, "9:40"), ProgressSeen(I1, 1, 40)], 5.0)
    assert state.attempt is not None
    assert not state.attempt.progressed
    state = fold(state, [ProgressSeen(I1, 1, 41)], 6.0)
    assert state.attempt is not None
    assert state.attempt.progressed


def test_numbers_of_attempts_that_the_journal_forgot_are_not_given_out_again() -> None:
    state = running()
    assert state.attempt_no == 1
    calm = fold(state, [AttemptsSkipped(1001, "the journal was put back")], 7.0)
    assert (calm.attempts, calm.attempt_floor) == (state.attempts, 1001), "what may well go on is left alone"
    state = fold(state, [AttemptsSkipped(1001, "the journal was put back", running=True)], 7.0)
    assert [a.no for a in state.attempts] == [1, 1002]
    forgotten = state.attempts[0]
    assert (forgotten.phase, forgotten.failed, forgotten.hint) == (GangPhase.ENDED, False, "the journal was put back")
    # What an agent says of the attempt that we knew is as stale as that of one we never heard of.
    assert fold(state, [CheckpointSaved(I1, 1, 9), CheckpointSaved(I1, 900, 9)], 8.0).attempts == state.attempts


def test_skipped_numbers_wait_for_the_next_attempt_of_a_job_that_rests() -> None:
    state = fold(
        running(), [CancelRequested("u"), RanksEnded(I1, 1, "stopped"), InstanceEnded(I1, 9.0, InstanceEnd.OWNER)]
    )
    assert state.phase is JobPhase.CANCELLED
    state = fold(state, [AttemptsSkipped(40, "put back")], 9.0)
    assert (state.phase, state.attempt_no, state.attempt_floor) == (JobPhase.CANCELLED, 1, 40)
