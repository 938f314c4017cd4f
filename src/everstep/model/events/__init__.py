"""Events: facts that decisions or bills depend on. They are what the journal holds.

Heartbeats, progress, metrics and logs are not events. Every class here is one kind of journal line; ``SCHEMA`` gives
the version of its shape, and ``everstep.store.upcast`` brings older shapes up to date on reading.
"""

from __future__ import annotations

import re
from typing import Any

from everstep.model.codec import from_dict, to_dict
from everstep.model.events.asked import (
    CancelRequested,
    ExecRequested,
    JobSubmitted,
    PauseRequested,
    RestoreRequested,
    RetryRequested,
    UnpauseRequested,
)
from everstep.model.events.capacity import (
    InstanceEnded,
    LaunchFailed,
    LaunchIntended,
    LaunchSucceeded,
    TerminateIntended,
    VolumeDeleted,
    VolumeDeleteIntended,
    VolumeFailed,
    VolumeIntended,
    VolumeReady,
)
from everstep.model.events.concluded import (
    AttemptOverdue,
    AttemptsSkipped,
    BudgetSpent,
    Candidate,
    CauseSettled,
    DeadlineAlarm,
    Decided,
    GaveUp,
    KeepExpired,
    Rejected,
)
from everstep.model.events.event import Event
from everstep.model.events.told import (
    CheckpointAudited,
    CheckpointSaved,
    FolderGrew,
    InstanceBarred,
    InstanceHeard,
    InstanceJoined,
    InstanceReady,
    InstanceSilent,
    LeaseExpired,
    NoticeReceived,
    OutputsStored,
    PeersChecked,
    ProgressSeen,
    RanksEnded,
    RanksStarted,
    Restored,
    SetupFailed,
    ShutdownReported,
)

__all__ = [
    "KINDS",
    "SCHEMA",
    "AttemptOverdue",
    "AttemptsSkipped",
    "BudgetSpent",
    "CancelRequested",
    "Candidate",
    "CauseSettled",
    "CheckpointAudited",
    "CheckpointSaved",
    "DeadlineAlarm",
    "Decided",
    "Event",
    "ExecRequested",
    "FolderGrew",
    "GaveUp",
    "InstanceBarred",
    "InstanceEnded",
    "InstanceHeard",
    "InstanceJoined",
    "InstanceReady",
    "InstanceSilent",
    "JobSubmitted",
    "KeepExpired",
    "LaunchFailed",
    "LaunchIntended",
    "LaunchSucceeded",
    "LeaseExpired",
    "NoticeReceived",
    "OutputsStored",
    "PauseRequested",
    "PeersChecked",
    "ProgressSeen",
    "RanksEnded",
    "RanksStarted",
    "Rejected",
    "RestoreRequested",
    "Restored",
    "RetryRequested",
    "SetupFailed",
    "ShutdownReported",
    "TerminateIntended",
    "UnpauseRequested",
    "VolumeDeleteIntended",
    "VolumeDeleted",
    "VolumeFailed",
    "VolumeIntended",
    "VolumeReady",
    "decode",
    "encode",
    "words_of",
]

SCHEMA: dict[str, int] = {}
"""Version of the shape of each kind; 1 unless listed."""

KINDS: dict[str, type[Event]] = {c.__name__: c for c in Event.__subclasses__()}
"""Every kind of event by name."""


def words_of(kind: str) -> str:
    """The name of a kind for people: ``cause settled`` for ``CauseSettled``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", kind).lower()


def encode(event: Event) -> tuple[str, int, dict[str, Any]]:
    """``(kind, schema, body)`` for the journal."""
    kind = type(event).__name__
    return kind, SCHEMA.get(kind, 1), to_dict(event)


def decode(kind: str, body: Any) -> Event:
    """The event that ``encode`` wrote; raises KeyError for an unknown kind."""
    return from_dict(KINDS[kind], body)
