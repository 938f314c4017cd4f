"""What the server answers, as light frozen types. The server builds the very same ones, so the two cannot drift apart.

Times are UTC seconds, money is USD. Reading is tolerant: unknown keys are ignored and missing ones take their
default, so that a client understands a server that is a little older or newer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class ProviderHealth:
    """Whether a provider answers; ``error`` says why not."""

    name: str
    ok: bool
    error: str = ""


@dataclass(frozen=True, slots=True)
class Health:
    """The server about itself.

    ``jobs`` counts live jobs by phase, and those ``ended``; ``handshake`` is ``[oldest, newest]`` it speaks; ``backup``
    says when the last backup was made and what is wrong with them, empty if none are; ``files`` where folders, outputs
    and logs go and what is wrong there, empty if they stay with the server.
    """

    version: str
    deployment: str
    pid: int
    started_at: float
    now: float
    jobs: dict[str, int] = field(default_factory=dict)
    providers: tuple[ProviderHealth, ...] = ()
    handshake: tuple[int, ...] = ()
    backup: str = ""
    files: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """A job on one line.

    Attributes:
        market: ``spot``, ``on_demand``, ``static``, ``reserved``, ``mixed``; empty while no machine is held.
        price_usd_per_h: what all machines held now cost together, per market hour.
        instances: ``{"alive": n, "ready": n}``.
        preemptions: machines that were taken from the job. recoveries: attempts that took up the work again after
            the loss of a machine or a rank.
        wait: what the job waits for. why: reason of the goal or the failure. alarm: a promise that cannot be kept.
    """

    job: str
    name: str
    phase: str
    goal: str = ""
    since: float = 0.0
    submitted_at: float = 0.0
    ended_at: float | None = None
    attempt: int = 0
    step: int | None = None
    total: int | None = None
    nodes: int = 1
    instances: dict[str, int] = field(default_factory=dict)
    market: str = ""
    price_usd_per_h: float = 0.0
    cost_usd: float = 0.0
    wait: str = ""
    why: str = ""
    alarm: str = ""
    exit_code: int | None = None
    user: str = ""
    project: str = ""
    preemptions: int = 0
    recoveries: int = 0

    @property
    def ended(self) -> bool:
        """Nothing more happens unless a user asks."""
        return self.phase in ("succeeded", "failed", "cancelled")


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptView:
    """One incarnation of the gang.

    ``members`` are instances by node rank; ``base`` is where it took up (``attempt:step``); ``audit``
    is what came of trying out one of its saves, for people.
    """

    attempt: int
    phase: str
    begun_at: float
    members: tuple[str, ...] = ()
    base: str | None = None
    spawned_at: float | None = None
    restored_at: float | None = None
    first_step_at: float | None = None
    last_step_at: float | None = None
    ended_at: float | None = None
    step: int | None = None
    steps_done: int = 0
    cause: str = ""
    evidence: str = ""
    rc: int = 0
    tail: str = ""
    hint: str = ""
    audit: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceView:
    """One machine. ``last_heard`` is None before its agent's first word (or after a restart of the server)."""

    token: str
    phase: str
    slot: str
    provider: str = ""
    zone: str = ""
    machine_type: str = ""
    market: str = ""
    price_usd_per_h: float = 0.0
    instance: str = ""
    address: str = ""
    gpus: int = 0
    intended_at: float = 0.0
    started_at: float | None = None
    joined_at: float | None = None
    ready_at: float | None = None
    ended_at: float | None = None
    end: str = ""
    notice: str = ""
    notice_deadline: float | None = None
    silent: bool = False
    last_heard: float | None = None
    leave_reason: str = ""
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeView:
    """A disk of a slot."""

    name: str
    slot: str
    provider: str
    zone: str
    size_gib: float
    volume: str = ""
    created_at: float | None = None
    deleted_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointView:
    """A published checkpoint; a later attempt can start from one that is ``visible`` and ``kept``.

    Attributes:
        visible: not written by an attempt after its successor had begun.
        kept: not deleted by then: of the visible ones the newest ``keep`` stay, and the one the attempt began from.
    """

    attempt: int
    step: int
    at: float
    bytes: int = 0
    durable: bool = True
    visible: bool = True
    kept: bool = True
    keep: int = 0

    @property
    def restorable(self) -> bool:
        """A new attempt can start from it."""
        return self.visible and self.kept


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDetail(JobView):
    """Everything about a job that is not a stream.

    ``task`` is the task as submitted; it names secrets, it holds none. ``warnings`` are those of agents of machines
    that are there, and are gone with them.
    """

    attempts: tuple[AttemptView, ...] = ()
    machines: tuple[InstanceView, ...] = ()
    volumes: tuple[VolumeView, ...] = ()
    saves: tuple[CheckpointView, ...] = ()
    metrics: dict[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    keep_until: float | None = None
    user_failures: int = 0
    task: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EventView:
    """One line of a job's journal: ``text`` for people, ``body`` for programs.

    ``version`` numbers the job's events from 1 on: it is what ``Client.events`` takes as ``after``.
    """

    version: int
    at: float
    kind: str
    text: str
    body: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CandidateView:
    """An alternative that was weighed."""

    what: str
    price_usd_per_h: float
    score: float | None
    verdict: str


@dataclass(frozen=True, slots=True)
class DecisionView:
    """One decision of the planner and its reasons."""

    at: float
    effects: tuple[str, ...] = ()
    candidates: tuple[CandidateView, ...] = ()
    reasons: tuple[str, ...] = ()
    inputs: dict[str, str] = field(default_factory=dict)
    wait: str = ""
    wake_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LineView:
    """One charge of a bill."""

    kind: str
    resource: str
    provider: str = ""
    zone: str = ""
    machine_type: str = ""
    market: str = ""
    start: float = 0.0
    end: float | None = None
    quantity: float = 0.0
    price_usd: float = 0.0
    cost_usd: float = 0.0
    price_source: str = ""
    price_as_of: float = 0.0
    reclaimed: bool = False
    instance: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountView:
    """The bill of a job. ``overhead`` is in billed instance-seconds by cause."""

    lines: tuple[LineView, ...] = ()
    cost_usd: float = 0.0
    on_demand_cost_usd: float = 0.0
    saved_usd: float = 0.0
    saved_fraction: float = 0.0
    useful_instance_s: float = 0.0
    billed_instance_s: float = 0.0
    lost_steps: int = 0
    overhead: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobCost:
    """The bill of a job on one line."""

    job: str
    name: str
    cost_usd: float
    on_demand_cost_usd: float = 0.0
    saved_fraction: float = 0.0


@dataclass(frozen=True, slots=True)
class Costs:
    """What all jobs cost."""

    jobs: tuple[JobCost, ...] = ()
    total_usd: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPart:
    """A piece of one log: ``offset`` is where ``text`` starts, ``end`` where it ends, in bytes of the whole log.

    ``rank`` is a number, ``setup`` or ``exec-ID``; ``node`` is the machine's place in the attempt. ``eof``: no more
    will come. ``continues``: the text of the rank in an earlier attempt was cut where this goes on. ``note``: why
    what the attempt printed again could not be cut.
    """

    attempt: int
    node: int
    rank: str
    instance: str = ""
    offset: int = 0
    end: int = 0
    text: str = ""
    eof: bool = False
    continues: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class ExecResult:
    """What a command did on one machine. ``rc`` is None while it runs, or for ever if the machine was lost."""

    instance: str
    rc: int | None
    text: str
    lost: bool = False


@dataclass(frozen=True, slots=True)
class ExecView:
    """A command beside the ranks: ``done`` once every machine has answered or is gone."""

    done: bool
    results: tuple[ExecResult, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferView:
    """What can be leased now.

    Attributes:
        as_of: when the price was read.
        available: how many could start now; None: the provider does not say.
        bound: why the account cannot hold even one (a quota); empty: it can.
        advice: how likely the vendor thinks that some can be had, 0 to 1; None: it was not asked, or does not say.
        advice_as_of: when it was asked.
    """

    provider: str
    region: str
    zone: str
    machine_type: str
    market: str
    accelerator: str = ""
    accelerator_count: int = 0
    cpus: float = 0.0
    memory_gib: float = 0.0
    price_usd_per_h: float = 0.0
    on_demand_usd_per_h: float = 0.0
    as_of: float = 0.0
    source: str = ""
    available: int | None = None
    bound: str = ""
    advice: float | None = None
    advice_as_of: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanView:
    """What would be done if the task were submitted now; nothing was.

    Attributes:
        offers: one per machine that would be leased now.
        choice: provider, zone, machine type and market of the first of them.
        hourly_usd: what they cost together.
        wait: what would be waited for when there are none.
        unsold: why no wait can help, in one line: nothing on sale fits the task. Empty: it may come.
        candidates: what was weighed.
    """

    offers: tuple[OfferView, ...] = ()
    choice: dict[str, Any] = field(default_factory=dict)
    hourly_usd: float = 0.0
    wait: str = ""
    unsold: str = ""
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    candidates: tuple[CandidateView, ...] = ()
    policy: str = ""
    spot: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownView:
    """A resource that carries our tag and that the journal does not know."""

    provider: str = ""
    kind: str = ""
    id: str = ""
    zone: str = ""
    machine_type: str = ""
    market: str = ""
    job: str | None = None
    started_at: float = 0.0
    price_usd_per_h: float = 0.0
    size_gib: float = 0.0


@dataclass(frozen=True, slots=True)
class OutputFile:
    """A file that came home: path below the job's outputs, size in bytes."""

    path: str
    bytes: int
