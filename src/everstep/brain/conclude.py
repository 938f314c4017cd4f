"""What can be concluded about a job from what was heard of it and from what time it is.

A conclusion is a fact for the journal, not an order: it changes the job's state, and what follows from it is decided on
the next look.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from everstep.brain import guard
from everstep.brain.hopeless import hopeless
from everstep.brain.needs import vacant
from everstep.brain.settle import SETTLE_LIMIT_S, settle
from everstep.brain.snapshot import Snapshot
from everstep.model.events import AttemptOverdue, Event, GaveUp, InstanceSilent, KeepExpired
from everstep.model.ids import InstanceId
from everstep.model.job import GangPhase, Goal, InstancePhase, JobPhase, JobState


@dataclass(frozen=True, slots=True)
class Conclusions:
    """What is concluded about one job now.

    Attributes:
        facts: events for the journal, each with the reason that people read, in the order to record them.
        wakes: when there may be more to conclude, UTC seconds.
    """

    facts: list[tuple[Event, str]] = field(default_factory=list)
    wakes: list[float] = field(default_factory=list)


def conclude(job: JobState, snapshot: Snapshot, now: float) -> Conclusions:
    """Why attempts ended, who has fallen silent, what takes too long, what is spent, late or of no use any more.

    Args:
        job: whose.
        snapshot: telemetry, offers and how patient the brain is.
        now: UTC seconds.
    """
    found = Conclusions()
    _causes(found, job, snapshot, now)
    _silence(found, job, snapshot, now)
    _overdue(found, job, snapshot, now)
    if job.phase is JobPhase.RELEASING and job.keep_until is not None and now >= job.keep_until:
        found.facts.append((KeepExpired(), "kept long enough for debugging"))
    if job.phase not in (JobPhase.RELEASING, JobPhase.PAUSED) and not job.phase.ended and job.goal is Goal.RUN:
        facts, wakes = guard.guards(job, snapshot.heard, snapshot.offers, now)
        found.facts.extend(facts)
        found.wakes.extend(wakes)
        _no_use(found, job, now)
    return found


def _causes(found: Conclusions, job: JobState, snapshot: Snapshot, now: float) -> None:
    for attempt in job.attempts:
        if attempt.phase is not GangPhase.ENDED or attempt.settled_at is not None:
            continue
        last_words = _last_words(job, snapshot)
        verdict = settle(job, attempt, heard=last_words, now=now, calm_s=snapshot.settings.calm_s)
        if verdict is not None:
            text = f"attempt {attempt.no} ended by {verdict.cause.value}: {verdict.evidence}"
            found.facts.append((verdict, text))
        elif attempt.ended_at is not None:
            found.wakes.append(min(now + 0.5, attempt.ended_at + SETTLE_LIMIT_S))


def _last_words(job: JobState, snapshot: Snapshot) -> dict[InstanceId, float]:
    told = ((m.instance, snapshot.heard.get(m.instance)) for m in job.instances.values() if m.instance)
    return {instance: heard.last for instance, heard in told if heard is not None}


def _silence(found: Conclusions, job: JobState, snapshot: Snapshot, now: float) -> None:
    limit_s = snapshot.settings.silence_s
    for m in job.instances.values():
        if m.instance is None or m.silent or m.phase not in (InstancePhase.JOINED, InstancePhase.READY):
            continue
        heard = snapshot.heard.get(m.instance)
        if heard is None:
            continue
        if now - heard.last > limit_s:
            silent = InstanceSilent(m.instance, heard.last, heard.step, heard.step_at)
            found.facts.append((silent, f"{m.instance} has been silent for {now - heard.last:.1f} s"))
        else:
            found.wakes.append(heard.last + limit_s + 0.01)


def _overdue(found: Conclusions, job: JobState, snapshot: Snapshot, now: float) -> None:
    """A gang that does not tell how its check or its stop went must not hold the job up for ever."""
    attempt, settings = job.attempt, snapshot.settings
    if attempt is None or attempt.phase not in (GangPhase.CHECKING, GangPhase.STOPPING):
        return
    if attempt.phase is GangPhase.CHECKING:
        due, text = attempt.begun_at + settings.check_limit_s, "the check of the gang did not end in time"
    else:
        # Ranks that never started need no time to save.
        grace_s = job.task.stop_grace_s if set(attempt.started) - set(attempt.ended) else 0.0
        due, text = job.since + grace_s + settings.stop_margin_s, "some ranks did not tell their end in time"
    if now >= due:
        found.facts.append((AttemptOverdue(attempt.no, text), f"attempt {attempt.no}: {text}"))
    else:
        found.wakes.append(due)


def _no_use(found: Conclusions, job: JobState, now: float) -> None:
    text = hopeless(job)
    if text:
        found.facts.append((GaveUp(text), text))
        return
    limit_s = job.task.recovery.max_wait_s
    if limit_s is not None and job.waiting_since is not None and vacant(job):
        if now >= job.waiting_since + limit_s:
            text = f"no capacity for {now - job.waiting_since:.0f} s (recovery.max_wait is {limit_s:.0f} s)"
            found.facts.append((GaveUp(text), text))
        else:
            found.wakes.append(job.waiting_since + limit_s)
