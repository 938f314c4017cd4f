"""What users ask of their jobs."""

from __future__ import annotations

from dataclasses import dataclass

from everstep.model.events.event import Event
from everstep.model.ids import JobId
from everstep.model.task import Task


@dataclass(frozen=True, slots=True)
class JobSubmitted(Event):
    """A task came in. It is the first event of a job's stream."""

    job: JobId
    task: Task
    user: str
    project: str


@dataclass(frozen=True, slots=True)
class CancelRequested(Event):
    """End the job, keep nothing running. Cancel wins over everything."""

    actor: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class PauseRequested(Event):
    """Save, give the machines back, keep the checkpoints."""

    actor: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class UnpauseRequested(Event):
    """Go on from the last checkpoint."""

    actor: str


@dataclass(frozen=True, slots=True)
class RetryRequested(Event):
    """Run a failed or cancelled job again: same id, same checkpoints, fresh failure budgets."""

    actor: str


@dataclass(frozen=True, slots=True)
class RestoreRequested(Event):
    """Go back to an older checkpoint: a new attempt with that base."""

    actor: str
    base: str
    """``attempt:step``."""


@dataclass(frozen=True, slots=True)
class ExecRequested(Event):
    """Run a command beside the ranks, on every machine of the gang."""

    actor: str
    exec_id: str
    command: str
