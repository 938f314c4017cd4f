"""What agents tell of their machines, and what is known from their silence."""

from __future__ import annotations

from dataclasses import dataclass

from everstep.model.causes import NoticeKind
from everstep.model.events.event import Event
from everstep.model.ids import InstanceId


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
class InstanceBarred(Event):
    """Somebody came with the token of a machine and could not prove to be it. ``why``: holds nothing secret."""

    instance: InstanceId
    why: str


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
    """The attempt goes on from ``base`` (``attempt:step``), or starts afresh (None).

    ``missed``: what was asked for as the base and is gone; empty if nothing was, or that is it.
    """

    instance: InstanceId
    attempt: int
    base: str | None
    restore_s: float = 0.0
    missed: str = ""


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
class CheckpointAudited(Event):
    """A save was restored beside the training, trained on from, and compared with it.

    Attributes:
        save: which, ``attempt:step``.
        verdict: ``exact``, ``differs``, ``refuses`` or ``unknown``.
        text: for people, with the first object that differs.
    """

    instance: InstanceId
    attempt: int
    save: str
    verdict: str
    text: str = ""


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
