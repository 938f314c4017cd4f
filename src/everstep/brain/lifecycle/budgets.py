"""What the settled cause of an attempt costs: failures of the user, attempts without progress (rules 4 and 5)."""

from __future__ import annotations

from dataclasses import replace

from everstep.brain.lifecycle.gang import REFUSED, gang_step, with_attempt
from everstep.model.causes import Cause
from everstep.model.events import CauseSettled
from everstep.model.job import AttemptState, Goal, JobState


def charge(state: JobState, event: CauseSettled, now: float) -> JobState:
    """The job after the cause of an attempt is settled. The only place that charges budgets."""
    attempt = next((a for a in state.attempts if a.no == event.attempt), None)
    if attempt is None or attempt.settled_at is not None:
        return state
    settled = gang_step(attempt, event, attempt.members[0], now)
    state = replace(with_attempt(state, settled), barren=_barren(state.barren, settled))
    if event.cause in (Cause.USER_ERROR, Cause.SETUP_FAILED):
        state = replace(state, user_failures=state.user_failures + 1)
        if settled.hint.startswith(REFUSED) and state.goal is Goal.RUN:
            # The same again would be refused again, whatever is left of the budget.
            return fail(state, settled.hint, now, settled.rc)
        if state.user_failures > state.task.recovery.max_restarts and state.goal is Goal.RUN:
            return fail(state, f"{event.evidence} (after {state.user_failures - 1} restarts)", now, settled.rc)
    limit = state.task.recovery.no_progress_limit
    latest = [a.cause for a in state.attempts if a.settled_at is not None][-limit:]
    if len(latest) == limit and set(latest) == {Cause.UNREACHABLE_PEER} and state.goal is Goal.RUN:
        return fail(
            state, f"the machines could not reach each other in {limit} attempts in a row: {event.evidence}", now
        )
    if state.barren >= state.task.recovery.no_progress_limit and state.goal is Goal.RUN:
        text = f"{state.barren} attempts in a row ended without evidence of progress, the last by {event.cause.value}"
        if any(a.progressed or a.restored_at is not None for a in state.attempts):
            return fail(state, text, now, settled.rc)
        # Nothing this script does can be seen from outside: failing it on a guess would be wrong (rule 5).
        state = replace(state, alarm=text + "; the script reports none, see everstep.train.progress")
    return state


def _barren(so_far: int, a: AttemptState) -> int:
    if a.progressed:
        return 0
    # What we stopped ourselves proves nothing about the job.
    return so_far if a.cause is Cause.OWNER and not a.failed else so_far + 1


def fail(state: JobState, why: str, now: float, rc: int = 1) -> JobState:
    """The job is to end as failed with ``rc``, its machines kept for debugging where the task says so."""
    keep = state.task.recovery.keep_on_failure_s
    return replace(
        state,
        goal=Goal.FAIL,
        why=why,
        # A signal as shells tell it: nobody can exit with a negative code.
        exit_code=128 - rc if rc < 0 else rc or 1,
        keep_until=now + keep if keep > 0 else None,
        kept_from=now if keep > 0 else None,
        kept_to=None,
        waiting_since=None,
    )
