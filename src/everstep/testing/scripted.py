"""Scripted worlds: what a cloud, its machines, their agents and the users do, as data.

The same script drives the live loop in virtual time and the simulator's heap (``testing.scripted_run``). Give delays
that are no multiples of each other: instants that coincide are settled by the order of planning, which is the same in
both drivers only as far as each plans the same things.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from everstep.model.ids import JobId
from everstep.model.offers import Offer
from everstep.model.task import Task

FIRST_JOB = JobId("j-1")


@dataclass(frozen=True, slots=True)
class Submission:
    """A task comes in at ``at`` (seconds since the beginning, as all instants of a script)."""

    at: float
    job: JobId
    task: Task


@dataclass(frozen=True, slots=True)
class MarketAt:
    """From ``at`` on these are the offers."""

    at: float
    offers: tuple[Offer, ...]


@dataclass(frozen=True, slots=True)
class LaunchScript:
    """How one launch goes.

    Attributes:
        delay_s: until the call answers.
        error: ``kind`` of the typed error that is the final answer; empty for a machine.
        first: errors of the calls before that, by kind (throttled, unreachable).
        lost_answer: the first call makes the machine, but its answer is lost.
    """

    delay_s: float = 0.8137
    error: str = ""
    first: tuple[str, ...] = ()
    lost_answer: bool = False


@dataclass(frozen=True, slots=True)
class AgentScript:
    """How the agent of a machine behaves: seconds it takes for what it does.

    Attributes:
        boot_s: from the machine's start to the join; None = it never joins.
        setup_s: set-up. setup_rc: its exit code.
        look_s: from new orders to acting on them.
        check_s: probing the peers. unreachable: it reaches nobody.
        start_s: starting the ranks.
        beat_s: between heartbeats.
        outputs_s: bringing outputs home.
    """

    boot_s: float | None = 6.1313
    setup_s: float = 1.3171
    setup_rc: int = 0
    look_s: float = 0.0573
    check_s: float = 0.2131
    unreachable: bool = False
    start_s: float = 0.3179
    beat_s: float = 1.0019
    outputs_s: float = 0.7321


@dataclass(frozen=True, slots=True)
class TrainingScript:
    """How the training runs: ``steps`` of ``step_s`` seconds, a save every ``save_every_s``, and one on request.

    Attributes:
        spread_s: how far the ranks' words about the same thing lie apart.
        crash_s: how long the others take to notice that one is gone.
        fails_at: steps at which the user's program fails by itself, one for each time it does.
    """

    steps: int = 40
    step_s: float = 1.0303
    save_every_s: float = 7.0707
    progress_s: float = 2.1121
    restore_s: float = 0.4242
    spread_s: float = 0.0617
    crash_s: float = 0.2929
    fails_at: tuple[int, ...] = ()


class FaultKind(StrEnum):
    """What goes wrong."""

    PREEMPT = "preempt"
    """The vendor takes the machine back, ``seconds`` after a notice (0 = without one)."""
    KILL = "kill"
    """The machine dies; the vendor's list says so."""
    FREEZE = "freeze"
    """The agent is silent for ``seconds``, its ranks stand still, then it goes on."""
    CRASH = "crash"
    """The user's program fails on that machine."""
    RESTART = "restart"
    """The agent dies with its ranks and joins again after ``seconds``."""
    API_DOWN = "api_down"
    """The vendor's lists cannot be had for ``seconds``."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    Attributes:
        who: ``rank:N`` (of the newest attempt of ``job`` at that moment) or ``machine:N`` (the N-th made, from 1).
    """

    at: float
    kind: FaultKind
    who: str = ""
    seconds: float = 0.0
    job: JobId = FIRST_JOB


@dataclass(frozen=True, slots=True)
class Request:
    """A user asks: ``cancel``, ``pause``, ``unpause``, ``retry``, ``restore`` (``text`` = base) or ``exec``."""

    at: float
    kind: str
    job: JobId = FIRST_JOB
    text: str = ""


@dataclass(frozen=True, slots=True)
class ScriptedWorld:
    """Everything that happens, apart from what everstep decides.

    Attributes:
        launches: by the order of first calls; later ones go as ``LaunchScript()`` says.
        agents: by the order in which machines were made; later ones behave as ``AgentScript()``.
        trainings: by job; others train as ``TrainingScript()`` says.
        shared: zone -> folder that all its machines see.
        until: when it ends.
        poll_s, offers_s: rhythm of the looks at the vendor.
    """

    name: str
    submissions: tuple[Submission, ...]
    markets: tuple[MarketAt, ...]
    launches: tuple[LaunchScript, ...] = ()
    agents: tuple[AgentScript, ...] = ()
    trainings: dict[str, TrainingScript] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()
    requests: tuple[Request, ...] = ()
    shared: dict[str, str] = field(default_factory=dict)
    until: float = 200.0
    poll_s: float = 4.9871
    offers_s: float = 5.0149
    end_s: float = 0.4139
    """How long the vendor takes to end a machine."""
    disk_s: float = 0.6151
    """How long the vendor takes to make or delete a disk."""
