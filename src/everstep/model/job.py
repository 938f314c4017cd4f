"""The state of one job: what the fold of its events gives. Immutable; only ``brain.lifecycle`` makes new ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from everstep.model.causes import Cause, InstanceEnd, NoticeKind
from everstep.model.gang import Slot
from everstep.model.ids import InstanceId, JobId, LaunchToken, VolumeId
from everstep.model.offers import Offer
from everstep.model.task import Task


class JobPhase(StrEnum):
    """Phase of a job."""

    ACQUIRING = "acquiring"
    """Waiting until every slot has a prepared machine: at first, and again in every recovery."""
    CHECKING = "checking"
    """All machines are there; they check that they reach each other."""
    RUNNING = "running"
    STOPPING = "stopping"
    """Ranks are being stopped on purpose, after a save."""
    RELEASING = "releasing"
    """Nothing runs; outputs come home, machines are given back."""
    PAUSED = "paused"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        """Nothing more happens unless a user asks."""
        return self in (JobPhase.SUCCEEDED, JobPhase.FAILED, JobPhase.CANCELLED)


class Goal(StrEnum):
    """Where a job is heading."""

    RUN = "run"
    PAUSE = "pause"
    SUCCEED = "succeed"
    FAIL = "fail"
    CANCEL = "cancel"


class InstancePhase(StrEnum):
    """Phase of a machine."""

    LAUNCHING = "launching"
    """Intent recorded, no answer yet: alive or not, nobody knows."""
    BOOTING = "booting"
    JOINED = "joined"
    READY = "ready"
    LEAVING = "leaving"
    """We asked the provider to end it."""
    ENDED = "ended"
    REFUSED = "refused"
    """The launch failed; there never was a machine."""


class GangPhase(StrEnum):
    """Phase of an attempt."""

    CHECKING = "checking"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"


UNREACHABLE_LIMIT = 2
"""A machine that its peers could not reach in so many attempts in a row is replaced."""


@dataclass(frozen=True, slots=True)
class InstanceState:
    """One machine, from intent to end.

    Attributes:
        token, slot, offer, max_price_usd_per_h, shared_folder, volume, move: from the launch.
        instance: the provider's id once known.
        started_at, ended_at, end: by the provider; what is billed.
        price_usd_per_h: what is billed per market hour.
        intended_at, joined_at, ready_at: our own times, UTC seconds.
        notice, notice_deadline: strongest warning in force.
        silent: no word for too long.
        outputs_stored: its outputs came home.
        said: last words of the agent, ``preempted`` or ``normal``.
        leave_reason: why we end it.
        prepared_from: when its agent was started anew and began to prepare again, None if it never was.
        barred_at: since when somebody with its token could not prove to be it, None once it has joined.
        unreachable: in how many attempts in a row the gang's check named it as one that others cannot reach.
        failure: what is wrong with it, or was.
        refusal: what its provider said when the call that launched it failed although a sweep had found it already.
    """

    token: LaunchToken
    launch_no: int
    slot: Slot
    offer: Offer
    intended_at: float
    phase: InstancePhase = InstancePhase.LAUNCHING
    max_price_usd_per_h: float | None = None
    shared_folder: str = ""
    volume: VolumeId | None = None
    instance: InstanceId | None = None
    started_at: float | None = None
    price_usd_per_h: float = 0.0
    joined_at: float | None = None
    ready_at: float | None = None
    setup_s: float = 0.0
    address: str = ""
    probe_port: int = 0
    port: int = 0
    gpus: int = 0
    notice: NoticeKind | None = None
    notice_deadline: float | None = None
    notice_at: float | None = None
    silent: bool = False
    outputs_stored: bool = False
    said: str = ""
    leave_reason: str = ""
    leave_at: float | None = None
    ended_at: float | None = None
    end: InstanceEnd | None = None
    failure: str = ""
    prepared_from: float | None = None
    barred_at: float | None = None
    unreachable: int = 0
    move: int = 0
    refusal: str = ""

    @property
    def alive(self) -> bool:
        """Costs money, or may: everything between intent and end."""
        return self.phase not in (InstancePhase.ENDED, InstancePhase.REFUSED)

    @property
    def doomed(self) -> bool:
        """Not to be counted on: it is leaving, silent, cut off from its peers, or will be taken back."""
        return (
            not self.alive
            or self.phase is InstancePhase.LEAVING
            or self.silent
            or self.unreachable >= UNREACHABLE_LIMIT
            or self.notice in (NoticeKind.TERMINATE, NoticeKind.MAX_LIFE)
        )


@dataclass(frozen=True, slots=True)
class Saved:
    """A published checkpoint: step and when we heard of it (UTC seconds)."""

    step: int
    at: float
    save_s: float = 0.0
    stall_s: float = 0.0
    bytes: int = 0
    durable: bool = True


@dataclass(frozen=True, slots=True)
class Audited:
    """What came of the audit of a save; see ``CheckpointAudited``."""

    save: str
    verdict: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class AttemptState:
    """One incarnation of the gang.

    Attributes:
        no: its number, the fence.
        members: machines by node rank; the first is the master.
        base_wanted: ``attempt:step`` to start from, empty = newest visible. base_since: the first attempt told so.
        base: what it did start from, None = from scratch; only meaningful once ``restored_at`` is set.
        checked: members that told how their check went. unreachable: addresses that they could not reach, by member.
        ended: outcome by member.
        step, total: last progress known. first_step_at ... steps_done: see ``RanksEnded``.
        stall_s: for how long training stood still for saves, as its saves and in the end its ranks told.
        audit: of its newest save that was audited, or of one that was not exact.
        cause: UNKNOWN until settled. settled_at: when.
    """

    no: int
    members: tuple[LaunchToken, ...]
    master_port: int
    begun_at: float
    base_wanted: str = ""
    base_since: int = 0
    phase: GangPhase = GangPhase.CHECKING
    checked: tuple[LaunchToken, ...] = ()
    started: tuple[LaunchToken, ...] = ()
    ended: dict[str, str] = field(default_factory=dict)
    spawned_at: float | None = None
    restored_at: float | None = None
    restore_s: float = 0.0
    base: str | None = None
    saves: tuple[Saved, ...] = ()
    audit: Audited | None = None
    progressed: bool = False
    step: int | None = None
    total: int | None = None
    first_step_at: float | None = None
    last_step_at: float | None = None
    steps_done: int = 0
    stall_s: float = 0.0
    ended_at: float | None = None
    failed: bool = False
    rc: int = 0
    tail: str = ""
    hint: str = ""
    cause: Cause = Cause.UNKNOWN
    evidence: str = ""
    settled_at: float | None = None
    unreachable: dict[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class VolumeState:
    """A disk of a slot. ``created_at`` and ``deleted_at`` are what is billed; ``failed_at``: it could not be made."""

    slot: Slot
    name: str
    zone: str
    provider: str
    size_gib: float
    volume: VolumeId | None = None
    created_at: float | None = None
    price_usd_per_gib_h: float = 0.0
    deleting: bool = False
    deleted_at: float | None = None
    failed_at: float | None = None


@dataclass(frozen=True, slots=True)
class SaveOrder:
    """Ask the gang to save: ``seq`` grows with each new request, ``by`` is UTC seconds or None for now."""

    seq: int
    by: float | None


@dataclass(frozen=True, slots=True)
class JobState:
    """Everything the brain knows of a job.

    Attributes:
        phase, since: where it is and since when (UTC seconds).
        goal: where it is heading.
        why: one line for people: the reason of the goal, or of the failure.
        instances: every machine ever, by launch token; of launches that were refused only the latest.
        refusals: how many refused launches are not in ``instances`` any more, by the meaning of their error.
        attempts: all attempts, the last one is the current or latest.
        user_failures: settled user errors since submission or retry (charges ``max_restarts``).
        barren: attempts in a row that ended without evidence of progress.
        waiting_since: since when a slot is missing, None if none is.
        wait: what the job waits for.
        launches: number of launches so far, gives ``launch_no``. old_launches: those before the last retry; their
            failures are forgiven.
        decisions: number of decisions so far, part of each decision's seed.
        base_wanted: the next attempt must start from this.
        attempt_floor: numbers of attempts up to this one are not given out.
        exit_code: of the followed job, once ended.
        keep_until: machines are kept until then for debugging. kept_from, kept_to: when they were, for the bill.
        quarantined: text of the rejected move, empty if well.
    """

    id: JobId
    task: Task
    user: str
    project: str
    submitted_at: float
    phase: JobPhase = JobPhase.ACQUIRING
    since: float = 0.0
    goal: Goal = Goal.RUN
    why: str = ""
    instances: dict[LaunchToken, InstanceState] = field(default_factory=dict)
    attempts: tuple[AttemptState, ...] = ()
    volumes: dict[str, VolumeState] = field(default_factory=dict)
    user_failures: int = 0
    barren: int = 0
    waiting_since: float | None = None
    wait: str = ""
    launches: int = 0
    decisions: int = 0
    base_wanted: str = ""
    attempt_floor: int = 0
    save: SaveOrder | None = None
    save_seq: int = 0
    execs: tuple[tuple[str, str], ...] = ()
    exit_code: int | None = None
    keep_until: float | None = None
    quarantined: str = ""
    alarm: str = ""
    ended_at: float | None = None
    old_launches: int = 0
    kept_from: float | None = None
    kept_to: float | None = None
    refusals: dict[str, int] = field(default_factory=dict)

    @property
    def attempt(self) -> AttemptState | None:
        """The current or latest attempt."""
        return self.attempts[-1] if self.attempts else None

    @property
    def attempt_no(self) -> int:
        """Number of the newest attempt, 0 before the first."""
        return self.attempts[-1].no if self.attempts else 0

    def by_instance(self, instance: InstanceId) -> InstanceState | None:
        """The machine with that provider id."""
        for state in self.instances.values():
            if state.instance == instance:
                return state
        return None
