"""What the planner concludes from facts and from the clock."""

from __future__ import annotations

from dataclasses import dataclass, field

from everstep.model.causes import Cause
from everstep.model.events.event import Event


@dataclass(frozen=True, slots=True)
class CauseSettled(Event):
    """Why an attempt ended; the only thing that charges a budget (rule 4)."""

    attempt: int
    cause: Cause
    evidence: str


@dataclass(frozen=True, slots=True)
class AttemptOverdue(Event):
    """The gang did not tell the end of its check, or of its ranks, in time: the attempt counts as ended."""

    attempt: int
    text: str


@dataclass(frozen=True, slots=True)
class AttemptsSkipped(Event):
    """Attempts up to ``to`` were, or may have been, begun that this journal knows nothing of: it was put back to an
    earlier hour. Their numbers are not given out again, since agents and checkpoints fence by them.

    ``running``: attempt ``to`` runs right now, as an agent tells; then the one that the journal knows of is over.
    Else it may well go on, and is left alone.
    """

    to: int
    text: str
    running: bool = False


@dataclass(frozen=True, slots=True)
class BudgetSpent(Event):
    """The bill reached the budget: save, pause, keep the disk."""

    cost_usd: float


@dataclass(frozen=True, slots=True)
class KeepExpired(Event):
    """Machines kept for debugging have been kept long enough: they may go now."""


@dataclass(frozen=True, slots=True)
class DeadlineAlarm(Event):
    """The deadline cannot be kept any more; the earliest finish is shown."""

    earliest_finish: float
    text: str


@dataclass(frozen=True, slots=True)
class GaveUp(Event):
    """The job cannot go on: no capacity for too long, parameters that the vendor refuses, no progress."""

    reason: str


@dataclass(frozen=True, slots=True)
class Decided(Event):
    """One decision of the planner with its reasons and inputs; feeds ``everstep why``.

    Attributes:
        effects: one line per effect, for people.
        reasons: candidates with scores and why each was (not) taken.
        inputs: what was looked at: seed, digest of the offers, progress, cost so far.
        wait: what the job waits for, empty if nothing.
        wake_at: UTC seconds of the next look, None = when something happens.
    """

    effects: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    inputs: dict[str, str] = field(default_factory=dict)
    wait: str = ""
    wake_at: float | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """An alternative that was weighed: what, at what price, score (lower is better, USD/h of useful work), verdict."""

    what: str
    price_usd_per_h: float
    score: float | None
    verdict: str


@dataclass(frozen=True, slots=True)
class Rejected(Event):
    """A move that the table does not list; the job is quarantined with this text."""

    kind: str
    phase: str
    text: str
