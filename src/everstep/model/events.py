"""Events: facts that decisions or bills depend on. They are what the journal holds.

Heartbeats, progress, metrics and logs are not events. Every class here is one kind of journal line; ``SCHEMA`` gives
the version of its shape, and ``everstep.store.upcast`` brings older shapes up to date on reading.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from everstep.model.causes import Cause, InstanceEnd, NoticeKind
from everstep.model.codec import from_dict, to_dict
from everstep.model.gang import Slot
from everstep.model.ids import InstanceId, JobId, LaunchToken, VolumeId
from everstep.model.offers import Offer
from everstep.model.task import Task


class Event:
    """Base of all events of a job."""

    __slots__ = ()


# --- What users ask --------------------------------------------------------------------------------------------------


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
    """Run an ended job again: same id, same checkpoints, fresh failure budgets."""

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


# --- Capacity --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LaunchIntended(Event):
    """We are about to lease a machine; journalled before the call (rule 1)."""

    token: LaunchToken
    launch_no: int
    slot: Slot
    offer: Offer
    max_price_usd_per_h: float | None
    shared_folder: str = ""
    """Folder that all machines of the zone see, empty for none."""
    volume: VolumeId | None = None
    move: int = 0
    """The machine is to relieve one that works: number of the first launch of that move; 0 = it fills a gap."""


@dataclass(frozen=True, slots=True)
class LaunchSucceeded(Event):
    """The provider gave a machine; billing starts at ``started_at`` (UTC seconds, the provider's)."""

    token: LaunchToken
    instance: InstanceId
    started_at: float
    price_usd_per_h: float


@dataclass(frozen=True, slots=True)
class LaunchFailed(Event):
    """The provider said no. ``error`` is the ``kind`` of a ``ProviderError``."""

    token: LaunchToken
    error: str
    message: str


@dataclass(frozen=True, slots=True)
class TerminateIntended(Event):
    """We are about to end a machine."""

    instance: InstanceId
    reason: str


@dataclass(frozen=True, slots=True)
class InstanceEnded(Event):
    """The machine is gone, as the provider tells it.

    Attributes:
        ended_at: UTC seconds by the provider, end of billing.
        end: why; PREEMPTED and LOST count as events of the hazard.
        last_step: last step heard of, when the job's ranks can no longer tell.
    """

    instance: InstanceId
    ended_at: float
    end: InstanceEnd
    last_step: int | None = None
    last_step_at: float | None = None


@dataclass(frozen=True, slots=True)
class VolumeIntended(Event):
    """We are about to make a disk for a slot."""

    slot: Slot
    name: str
    zone: str
    provider: str
    size_gib: float


@dataclass(frozen=True, slots=True)
class VolumeReady(Event):
    """The disk is there."""

    slot: Slot
    volume: VolumeId
    created_at: float
    price_usd_per_gib_h: float = 0.0


@dataclass(frozen=True, slots=True)
class VolumeFailed(Event):
    """The disk could not be made."""

    slot: Slot
    error: str
    message: str


@dataclass(frozen=True, slots=True)
class VolumeDeleteIntended(Event):
    """We are about to delete a disk."""

    volume: VolumeId


@dataclass(frozen=True, slots=True)
class VolumeDeleted(Event):
    """The disk is gone; billing ends at ``deleted_at``."""

    volume: VolumeId
    deleted_at: float


# --- What agents tell ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class InstanceJoined(Event):
    """The agent of a machine came in with its token."""

    instance: InstanceId
    address: str
    probe_port: int
    gpus: int = 0
    agent: str = ""
    booted_at: float = 0.0


@dataclass(frozen=True, slots=True)
class InstanceReady(Event):
    """Set-up is done and the agent holds ``port`` in case its machine becomes master."""

    instance: InstanceId
    port: int
    setup_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SetupFailed(Event):
    """The task's ``setup`` exited non-zero."""

    instance: InstanceId
    rc: int
    tail: str = ""


@dataclass(frozen=True, slots=True)
class NoticeReceived(Event):
    """A machine will be, or may be, taken back. ``deadline``: UTC seconds, None = unknown."""

    instance: InstanceId
    notice: NoticeKind
    deadline: float | None
    source: str = "agent"


@dataclass(frozen=True, slots=True)
class InstanceSilent(Event):
    """No word from the agent for longer than the limit, and the provider does not say that the machine is gone."""

    instance: InstanceId
    last_heard: float
    last_step: int | None = None
    last_step_at: float | None = None


@dataclass(frozen=True, slots=True)
class InstanceHeard(Event):
    """A silent agent is back."""

    instance: InstanceId


@dataclass(frozen=True, slots=True)
class ShutdownReported(Event):
    """Last words of an agent: ``preempted`` or ``normal``."""

    instance: InstanceId
    how: str


@dataclass(frozen=True, slots=True)
class PeersChecked(Event):
    """Which addresses of the gang this machine could not reach; empty = all well."""

    instance: InstanceId
    attempt: int
    unreachable: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RanksStarted(Event):
    """The ranks of one machine run."""

    instance: InstanceId
    attempt: int
    ranks: int
    spawned_at: float


@dataclass(frozen=True, slots=True)
class ProgressSeen(Event):
    """First sign of progress in an attempt, or a new total: evidence for rule 5, work for rule 14."""

    instance: InstanceId
    attempt: int
    step: int
    total: int | None = None
    first_step_at: float | None = None


@dataclass(frozen=True, slots=True)
class Restored(Event):
    """The attempt goes on from ``base`` (``attempt:step``), or starts afresh (None)."""

    instance: InstanceId
    attempt: int
    base: str | None
    restore_s: float = 0.0


@dataclass(frozen=True, slots=True)
class CheckpointSaved(Event):
    """A manifest was published."""

    instance: InstanceId
    attempt: int
    step: int
    bytes: int = 0
    save_s: float = 0.0
    stall_s: float = 0.0
    durable: bool = True


@dataclass(frozen=True, slots=True)
class FolderGrew(Event):
    """The checkpoint folder of a script that does not use our library grew."""

    instance: InstanceId
    attempt: int


@dataclass(frozen=True, slots=True)
class RanksEnded(Event):
    """The ranks of one machine ended.

    Attributes:
        outcome: an ``OUTCOME_*`` of the handshake.
        rc, signal, failed_rank: of the first rank that failed.
        step, total: last progress.
        first_step_at, last_step_at, steps_done, stall_s: what the ranks measured, for the account of useful work.
        tail: last lines of the failed rank.
        agent_killed: they did not end by themselves; their agent was killed, and they with it.
    """

    instance: InstanceId
    attempt: int
    outcome: str
    rc: int = 0
    signal: int | None = None
    failed_rank: int | None = None
    step: int | None = None
    total: int | None = None
    first_step_at: float | None = None
    last_step_at: float | None = None
    steps_done: int = 0
    stall_s: float = 0.0
    tail: str = ""
    agent_killed: bool = False


@dataclass(frozen=True, slots=True)
class LeaseExpired(Event):
    """The agent heard nothing from us for a whole lease; its ranks saved and stopped."""

    instance: InstanceId
    attempt: int


@dataclass(frozen=True, slots=True)
class OutputsStored(Event):
    """``outputs`` reached the server (or did not: ``error``)."""

    instance: InstanceId
    files: int = 0
    bytes: int = 0
    error: str = ""


# --- What the planner concludes --------------------------------------------------------------------------------------


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


SCHEMA: dict[str, int] = {}
"""Version of the shape of each kind; 1 unless listed."""

KINDS: dict[str, type[Event]] = {c.__name__: c for c in Event.__subclasses__()}
"""Every kind of event by name."""


def encode(event: Event) -> tuple[str, int, dict[str, Any]]:
    """``(kind, schema, body)`` for the journal."""
    kind = type(event).__name__
    return kind, SCHEMA.get(kind, 1), to_dict(event)


def decode(kind: str, body: Any) -> Event:
    """The event that ``encode`` wrote; raises KeyError for an unknown kind."""
    return from_dict(KINDS[kind], body)
