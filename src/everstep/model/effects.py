"""Effects: what the brain wants done, as data.

Each carries the event that records the intent before anything is done.
"""

from __future__ import annotations

from dataclasses import dataclass

from everstep.model.events import (
    Decided,
    Event,
    LaunchIntended,
    TerminateIntended,
    VolumeDeleteIntended,
    VolumeIntended,
)
from everstep.model.ids import InstanceId, JobId


@dataclass(frozen=True, slots=True)
class Launch:
    """Lease a machine."""

    job: JobId
    event: LaunchIntended


@dataclass(frozen=True, slots=True)
class Terminate:
    """End a machine."""

    job: JobId
    event: TerminateIntended


@dataclass(frozen=True, slots=True)
class EnsureVolume:
    """Make a disk."""

    job: JobId
    event: VolumeIntended


@dataclass(frozen=True, slots=True)
class DeleteVolume:
    """Delete a disk."""

    job: JobId
    event: VolumeDeleteIntended


@dataclass(frozen=True, slots=True)
class Note:
    """Nothing but a fact that the planner concluded."""

    job: JobId
    event: Event


@dataclass(frozen=True, slots=True)
class SendOrders:
    """The orders of an instance changed: tell its agent.

    What they are is a function of the job's state (``orders``).
    """

    job: JobId
    instance: InstanceId


Effect = Launch | Terminate | EnsureVolume | DeleteVolume | Note | SendOrders


@dataclass(frozen=True, slots=True)
class Decision:
    """What ``plan`` returns for one job.

    Attributes:
        effects: in the order in which they are to be recorded and done.
        record: reasons, candidates and inputs; journalled when there are effects or the wait changed.
        wake_at: UTC seconds of the next look; None = when something happens.
    """

    job: JobId
    effects: tuple[Effect, ...]
    record: Decided
    wake_at: float | None
