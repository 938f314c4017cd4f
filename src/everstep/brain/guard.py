"""Budget and deadline: guarantees, checked outside of any policy and before it (rules 9 and 14)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from everstep.brain.economics.ledger import cost_usd, price_usd_per_s
from everstep.model.events import BudgetSpent, DeadlineAlarm, Event
from everstep.model.ids import InstanceId
from everstep.model.job import AttemptState, JobState
from everstep.model.offers import Offer
from everstep.model.units import format_money

_CHANGEOVER_S = 120.0
"""Start of a machine and restore, until it has been measured."""


_LATE = "the deadline cannot be kept"
_LATER_S = 1.0
"""Looks at the deadline are never closer than this, and lie beyond the moment, not on it."""


class Told(Protocol):
    """What telemetry tells of a machine (see ``plan.Heard``)."""

    @property
    def step(self) -> int | None:
        """Last step."""
        ...

    @property
    def step_at(self) -> float | None:
        """When it was done, UTC seconds."""
        ...

    @property
    def total(self) -> int | None:
        """Steps in all."""
        ...


def guards(
    job: JobState, heard: Mapping[InstanceId, Told], offers: Sequence[Offer], now: float
) -> tuple[list[tuple[Event, str]], list[float]]:
    """What budget and deadline say now, and when to look again (UTC seconds)."""
    verdicts: list[tuple[Event, str]] = []
    wakes: list[float] = []
    _budget(job, now, verdicts, wakes)
    _deadline(job, heard, now, verdicts, wakes)
    return verdicts, wakes


def _budget(job: JobState, now: float, verdicts: list[tuple[Event, str]], wakes: list[float]) -> None:
    budget = job.task.objective.budget_usd
    if budget is None:
        return
    spent, rate = cost_usd(job, now), price_usd_per_s(job)
    # Saving and leaving cost too: they must fit into the budget.
    reserve = rate * (job.task.stop_grace_s + 10.0)
    if spent + reserve >= budget:
        verdicts.append((BudgetSpent(spent), f"{format_money(spent)} spent of a budget of {format_money(budget)}"))
    elif rate > 0:
        wakes.append(now + (budget - spent - reserve) / rate)


def _deadline(
    job: JobState, heard: Mapping[InstanceId, Told], now: float, verdicts: list[tuple[Event, str]], wakes: list[float]
) -> None:
    deadline = deadline_at(job)
    if deadline is None:
        return
    left = work_left_s(job, heard)
    if left is None:
        return
    finish = now + left + (0.0 if _running(job) else changeover_s(job))
    text = f"{_LATE}: {finish - deadline:.0f} s late at best"
    if finish > deadline and not job.alarm.startswith(_LATE):
        verdicts.append((DeadlineAlarm(finish, text), text))
    # The moments at which net and alarm would speak if no step were done until then; steps only put them off.
    net_at = deadline - left - 2 * changeover_s(job)
    late_at = now + deadline - finish
    wakes.extend(max(at, now) + _LATER_S for at in (net_at, late_at) if at >= now)


def deadline_at(job: JobState) -> float | None:
    """The job's deadline, UTC seconds."""
    objective = job.task.objective
    if objective.deadline_at is not None:
        return objective.deadline_at
    return None if objective.deadline_s is None else job.submitted_at + objective.deadline_s


def must_on_demand(job: JobState, heard: Mapping[InstanceId, Told], now: float) -> bool:
    """The safety net: once the time left is no more than the work left and two changeovers, spot is over."""
    deadline = deadline_at(job)
    left = None if deadline is None else work_left_s(job, heard)
    return deadline is not None and left is not None and deadline - now <= left + 2 * changeover_s(job)


def changeover_s(job: JobState) -> float:
    """From a launch to the first step, as this job has seen it; a cautious guess before."""
    seen = []
    before: AttemptState | None = None
    for a in job.attempts:
        # With nothing but survivors it took from the end of the attempt before.
        newcomers = [job.instances[t].intended_at for t in a.members if before is None or t not in before.members]
        since = max(newcomers) if newcomers else before.ended_at if before is not None else None
        if a.first_step_at is not None and since is not None:
            seen.append(a.first_step_at - since)
        before = a
    return max(seen, default=_CHANGEOVER_S)


def work_left_s(job: JobState, heard: Mapping[InstanceId, Told]) -> float | None:
    """Seconds of the clock of undisturbed training that are left, None while unknown (rule 14)."""
    step, total = progress(job, heard)
    step_s = seconds_per_step(job) or _present_step_s(job, step, heard)
    if total is not None and step_s is not None:
        return max(total - (step or 0), 0) * step_s
    hours = job.task.work.hours
    if hours is None:
        return None
    share = (step or 0) / total if total else 0.0
    return hours * 3600.0 * (1.0 - min(share, 1.0))


def progress(job: JobState, heard: Mapping[InstanceId, Told]) -> tuple[int | None, int | None]:
    """(last step, steps in all) as known now."""
    step = _kept_step(job)
    total = job.task.work.steps
    for a in job.attempts:
        total = a.total if a.total is not None else total
    for m in job.instances.values():
        told = heard.get(m.instance) if m.instance is not None and m.alive else None
        if told is not None and told.step is not None:
            step = told.step if step is None else max(step, told.step)
            total = told.total if told.total is not None else total
    return step, total


def _kept_step(job: JobState) -> int | None:
    """The step of the running attempt; before its first one, the step that it will go on from."""
    attempt = job.attempt
    if attempt is None:
        return None
    if job.base_wanted:
        return _step_of(job.base_wanted)
    if attempt.ended_at is None and attempt.step is not None:
        return attempt.step
    for a in reversed(job.attempts):
        if a.saves:
            return a.saves[-1].step
        if a.restored_at is not None or a.base_wanted:
            return _step_of(a.base or a.base_wanted)
    return None


def _step_of(base: str) -> int:
    return int(base.split(":")[1]) if base else 0


def seconds_per_step(job: JobState) -> float | None:
    """Mean duration of a step over all attempts that measured it, or whose last step is known."""
    spans = [(_span_s(a), _steps_of(a)) for a in job.attempts if _steps_of(a) > 1]
    steps = sum(n for _, n in spans)
    return sum(s for s, _ in spans) / steps if steps else None


def _present_step_s(job: JobState, step: int | None, heard: Mapping[InstanceId, Told]) -> float | None:
    """Duration of a step in the attempt that runs, by its telemetry; for a first attempt, which measured none yet."""
    attempt = job.attempt
    if attempt is None or attempt.first_step_at is None or attempt.ended_at is not None or step is None:
        return None
    done = step - _step_of(attempt.base or "") - 1
    machines = (job.instances[token].instance for token in attempt.members)
    at = max((told.step_at or 0.0 for i in machines if i is not None and (told := heard.get(i))), default=0.0)
    return (at - attempt.first_step_at) / done if done > 0 and at > attempt.first_step_at else None


def _steps_of(a: AttemptState) -> int:
    """Steps that fit into the span of an attempt."""
    if a.steps_done or a.step is None or a.first_step_at is None or a.last_step_at is None or a.restored_at is None:
        return a.steps_done
    # Its ranks could not tell: the last word of its telemetry counts, from the step that it went on from.
    return max(a.step - _step_of(a.base or ""), 0)


def _span_s(a: AttemptState) -> float:
    return 0.0 if a.first_step_at is None or a.last_step_at is None else a.last_step_at - a.first_step_at


def _running(job: JobState) -> bool:
    return job.attempt is not None and job.attempt.first_step_at is not None and job.attempt.ended_at is None


def progress_text(job: JobState, heard: Mapping[InstanceId, Told]) -> str:
    """``120/1000`` for the record of a decision."""
    step, total = progress(job, heard)
    return f"{'?' if step is None else step}/{'?' if total is None else total}"
