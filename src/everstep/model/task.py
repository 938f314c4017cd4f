"""What the user wants run: the validated form of a task file.

Parsing and error messages live in ``everstep.client.taskfile``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from everstep.model.gang import Gang, SlotGroup
from everstep.model.offers import MachineRequirement


class SpotMode(StrEnum):
    """``resources.spot``: AUTO lets the selector choose between spot and on-demand."""

    TRUE = "true"
    FALSE = "false"
    AUTO = "auto"


class OnNoCapacity(StrEnum):
    """``recovery.on_no_capacity``: what to do when no pool has the machine."""

    WAIT = "wait"
    ON_DEMAND = "on_demand"
    FAIL = "fail"


class CheckpointMode(StrEnum):
    """``checkpoint.mode``: who saves and resumes.

    AUTO looks at the script: everstep, unless the script uses ``everstep.train`` or a framework that has a loop of its
    own. SCRIPT: everstep, whatever the script looks like. LIBRARY: the script itself. OFF: nobody, ``everstep.train``
    does not save either.
    """

    AUTO = "auto"
    SCRIPT = "script"
    LIBRARY = "library"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class Recovery:
    """How failures are met.

    Attributes:
        max_restarts: restarts after failures of the *user's program*; preemptions are not counted.
        no_progress_limit: attempts in a row without evidence of progress before the job fails.
        on_no_capacity: what to do in a drought. None = the selector decides (spot auto: on-demand; spot true: wait).
        max_wait_s: give up after waiting so long for capacity; None = wait for ever.
        boot_timeout_s: an instance that has not joined by then is replaced and counts as a failed boot.
        cooldown_s: how long a pool that failed is avoided.
        keep_on_failure_s: keep the machines so long after a failure, billed visibly; 0 = release at once.
    """

    max_restarts: int = 0
    no_progress_limit: int = 3
    on_no_capacity: OnNoCapacity | None = None
    max_wait_s: float | None = None
    boot_timeout_s: float = 600.0
    cooldown_s: float = 1800.0
    keep_on_failure_s: float = 0.0


@dataclass(frozen=True, slots=True)
class CheckpointSpec:
    """Where and when checkpoints are made.

    Attributes:
        dir: path on the nodes, empty = chosen by everstep.
        every_s: None = ``auto``.
        on_notice: empty (library), a signal name or a command.
        keep: how many.
        mode: who saves and resumes.
        mirror: second place for checkpoints, ``s3://BUCKET/PREFIX``, ``gs://`` or a folder; empty = none.
        audit: for how many steps the first save of each start is tried out in a child; 0 = it is not.
    """

    dir: str = ""
    every_s: float | None = None
    on_notice: str = ""
    keep: int = 3
    mode: CheckpointMode = CheckpointMode.AUTO
    mirror: str = ""
    audit: int = 0


@dataclass(frozen=True, slots=True)
class Work:
    """How much there is to do; without it deadlines and budgets are refused unless progress is reported (rule 14)."""

    steps: int | None = None
    hours: float | None = None
    on: str = ""
    """Machine type that ``hours`` refers to."""


@dataclass(frozen=True, slots=True)
class Objective:
    """What is to be reached.

    Attributes:
        minimize: ``cost`` or ``time``.
        deadline_s: relative to submission.
        deadline_at: UTC seconds.
        budget_usd: upper bound of the bill.
    """

    minimize: str = "cost"
    deadline_s: float | None = None
    deadline_at: float | None = None
    budget_usd: float | None = None


@dataclass(frozen=True, slots=True)
class Mount:
    """One entry of ``file_mounts``: a local path or folder (uploaded, ``digest`` = its content) or a bucket URI."""

    target: str
    source: str
    mode: str = "COPY"
    digest: str = ""


_ONE_MACHINE = Gang((SlotGroup("worker", MachineRequirement(), 1),))


@dataclass(frozen=True, slots=True)
class Task:
    """A validated task. Secrets are here by name only; their values never enter the journal.

    Attributes:
        name: for people.
        run: shell text, executed once per node.
        argv: instead of ``run``: a command started once per rank.
        setup: shell text, executed once per instance.
        envs: plain variables.
        secret_names: variables whose values the server keeps apart.
        workdir_digest: sha256 of the uploaded folder, empty for none.
        gang: the machines.
        spot: may spot be used.
        max_price_usd_per_h: cap of spot offers; None = each offer's own on-demand price.
        policy: name of the selector; empty = the default.
        outputs: paths to bring home before a disk is deleted; empty = the checkpoint folder.
        stop_grace_s: between SIGTERM and SIGKILL when ranks are stopped.
    """

    name: str = "task"
    run: str = ""
    argv: tuple[str, ...] = ()
    setup: str = ""
    envs: dict[str, str] = field(default_factory=dict)
    secret_names: tuple[str, ...] = ()
    workdir_digest: str = ""
    mounts: tuple[Mount, ...] = ()
    gang: Gang = _ONE_MACHINE
    spot: SpotMode = SpotMode.AUTO
    max_price_usd_per_h: float | None = None
    policy: str = ""
    recovery: Recovery = Recovery()
    checkpoint: CheckpointSpec = CheckpointSpec()
    outputs: tuple[str, ...] = ()
    work: Work = Work()
    objective: Objective = Objective()
    labels: dict[str, str] = field(default_factory=dict)
    stop_grace_s: float = 30.0

    @property
    def archives(self) -> frozenset[str]:
        """The sha256 of every uploaded folder that its machines need."""
        return frozenset(filter(None, (self.workdir_digest, *(mount.digest for mount in self.mounts))))
