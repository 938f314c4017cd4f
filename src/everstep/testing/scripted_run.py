"""Runs a scripted world under either driver and gives the journal it leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from everstep.brain.plan import Settings
from everstep.control.controller import LOOP, Controller
from everstep.control.kernel import Kernel
from everstep.control.options import Options
from everstep.model.errors import Conflict, NotFound
from everstep.model.events import (
    CancelRequested,
    Event,
    ExecRequested,
    JobSubmitted,
    PauseRequested,
    RestoreRequested,
    RetryRequested,
    UnpauseRequested,
    encode,
)
from everstep.model.ids import JOB_STREAMS, DeploymentId, JobId
from everstep.model.job import JobState
from everstep.ports import Provider, Store
from everstep.sim.engine import Engine
from everstep.sim.strand import Timeline
from everstep.store.memory import MemoryStore
from everstep.testing.recording import RecordingKernel, Row
from everstep.testing.scripted import Fault, FaultKind, Request, ScriptedWorld
from everstep.testing.scripted_agents import Agent, ScriptedAgents
from everstep.testing.scripted_cloud import Machine, ScriptedProvider, Stage
from everstep.testing.virtual import VirtualClock, run_virtual

DEPLOYMENT = DeploymentId("d-scripted")
START = 100_000.0
"""UTC seconds at which every scripted world begins."""

_ASKED: dict[str, Callable[[str], Event]] = {
    "cancel": lambda text: CancelRequested("user", text),
    "pause": lambda text: PauseRequested("user", text),
    "unpause": lambda text: UnpauseRequested("user"),
    "retry": lambda text: RetryRequested("user"),
    "restore": lambda text: RestoreRequested("user", text),
    "exec": lambda text: ExecRequested("user", "e1", text),
}


class Door(Protocol):
    """The way into a driver."""

    def put(self, job: JobId, event: Event) -> Awaitable[None]:
        """Hands a fact over."""
        ...

    def ask(self, job: JobId, event: Event) -> Awaitable[object]:
        """Asks as a user."""
        ...


@dataclass
class Played:
    """What a run left.

    Attributes:
        journal: one mapping per line (``at``, ``job``, ``kind``, ``body``), numbers rounded to the microsecond.
        states: last state by job.
        refused: requests that were refused.
        provider: the vendor's side of it.
    """

    journal: list[dict[str, Any]] = field(default_factory=list)
    states: dict[JobId, JobState] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    provider: ScriptedProvider | None = None


class ScriptedPlay:
    """A scripted world on a stage, in front of a door."""

    def __init__(self, world: ScriptedWorld, stage: Stage, provider: ScriptedProvider, agents: ScriptedAgents) -> None:
        """See the class."""
        self._world = world
        self._stage = stage
        self._provider = provider
        self._agents = agents
        self.refused: list[str] = []
        provider.on_machine = agents.boot
        provider.on_end = agents.gone

    def begin(self, door: Door) -> None:
        """Plans everything that the script says."""
        for s in self._world.submissions:
            event = JobSubmitted(s.job, s.task, "user", "default")
            self._stage.after(s.at, lambda j=s.job, e=event: door.put(j, e))  # type: ignore[misc]
        for request in self._world.requests:
            self._stage.after(request.at, lambda r=request: self._stage.spawn(self._ask(door, r)))  # type: ignore[misc]
        for fault in self._world.faults:
            self._stage.after(fault.at, lambda f=fault: self._strike(f))  # type: ignore[misc]

    async def _ask(self, door: Door, request: Request) -> None:
        try:
            await door.ask(request.job, _ASKED[request.kind](request.text))
        except (Conflict, NotFound) as error:
            self.refused.append(f"{request.kind}: {error}")

    def _strike(self, fault: Fault) -> None:
        if fault.kind is FaultKind.API_DOWN:
            self._provider.down_until = self._stage.now() + fault.seconds
            return
        machine = self._who(fault)
        if machine is None or not machine.alive:
            return
        agent = self._agents.agents[machine.instance]
        if fault.kind is FaultKind.PREEMPT:
            self._provider.preempt(machine, fault.seconds)
            if machine.alive:
                self._agents.warn(machine)
        elif fault.kind is FaultKind.KILL:
            self._provider.lose(machine)
        elif fault.kind is FaultKind.FREEZE:
            self._agents.freeze(agent, fault.seconds)
        elif fault.kind is FaultKind.CRASH:
            self._agents.crash(agent)
        elif fault.kind is FaultKind.RESTART:
            self._agents.restart(agent, fault.seconds)

    def _who(self, fault: Fault) -> Machine | None:
        kind, _, number = fault.who.partition(":")
        if kind == "machine":
            found = [m for m in self._provider.machines.values() if m.number == int(number)]
            return found[0] if found else None
        ranked = [a for a in self._agents.agents.values() if self._is_rank(a, fault.job, int(number))]
        return ranked[-1].machine if ranked else None

    @staticmethod
    def _is_rank(agent: Agent, job: JobId, rank: int) -> bool:
        return agent.running is not None and agent.running.job == job and agent.rank == rank


# --- The heap ---------------------------------------------------------------------------------------------------------


def _options(world: ScriptedWorld) -> Options:
    return Options(poll_s=world.poll_s, offers_s=world.offers_s, settings=Settings())


def play_on_heap(world: ScriptedWorld, *, strict: bool = True, kernel: Kernel | None = None) -> Played:
    """Runs the world under the simulator's heap."""
    timeline = Timeline(START)
    provider = ScriptedProvider(world, timeline)
    engine = Engine(
        {provider.name: provider},
        deployment=DEPLOYMENT,
        timeline=timeline,
        options=_options(world),
        strict=strict,
        kernel=kernel,
    )
    play = ScriptedPlay(world, timeline, provider, ScriptedAgents(world, timeline, engine.desk))
    engine.begin()
    play.begin(engine)
    engine.run(START + world.until)
    lines = [_line(line.at, line.job, *_kind_body(line.event)) for line in engine.journal]
    return Played(lines, {**engine.ended, **engine.kernel.states}, play.refused, provider)


# --- The live loop ----------------------------------------------------------------------------------------------------


class LiveStage:
    """Time and tasks of a running asyncio loop."""

    def __init__(self, clock: VirtualClock) -> None:
        """Args: clock: of the loop that runs."""
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        self._tasks: set[asyncio.Task[None]] = set()
        self.errors: list[BaseException] = []

    def now(self) -> float:
        """UTC seconds."""
        return self._clock.now()

    async def sleep(self, seconds: float) -> None:
        """Waits."""
        await self._clock.sleep(seconds)

    def after(self, delay_s: float, act: Callable[[], object]) -> object:
        """Does something later."""
        return self._loop.call_later(max(delay_s, 0.0), act)

    def spawn(self, work: Coroutine[Any, Any, None]) -> object:
        """Starts a task."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._over)
        return task

    def _over(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.errors.append(task.exception())  # type: ignore[arg-type]


class EmptyVault:
    """A ``Vault`` without secrets."""

    def put(self, job: JobId, values: Mapping[str, str]) -> None:
        """See ``Vault``."""

    def get(self, job: JobId) -> Mapping[str, str]:
        """See ``Vault``."""
        return {}


def controller_for(
    world: ScriptedWorld, clock: VirtualClock, provider: Provider, store: Store, **more: Any
) -> Controller:
    """A real controller over that provider, in virtual time. ``more`` goes to the controller."""
    return Controller(
        store=store,
        providers={provider.name: provider},
        deployment=DEPLOYMENT,
        key=b"scripted",
        server_url=lambda: "http://127.0.0.1:1",
        vault=EmptyVault(),
        clock=clock,
        **{"options": _options(world), **more},
    )


def play_live(world: ScriptedWorld, *, strict: bool = True) -> Played:
    """Runs the world under the real controller, in virtual time."""
    return run_virtual(lambda clock: _play_live(world, clock, strict=strict), start=START, last=LOOP)


async def _play_live(world: ScriptedWorld, clock: VirtualClock, *, strict: bool) -> Played:
    stage = LiveStage(clock)
    provider = ScriptedProvider(world, stage)
    store = MemoryStore(wall=clock.now)
    controller = controller_for(world, clock, provider, store)
    controller.kernel.strict = strict
    play = ScriptedPlay(world, stage, provider, ScriptedAgents(world, stage, controller.desk))
    await controller.start()
    play.begin(controller)
    await clock.sleep(world.until)
    assert controller.failed is not None
    if controller.failed.done():
        controller.failed.result()
    if stage.errors:
        raise stage.errors[0]
    records = await store.read(limit=1_000_000)
    states = dict(controller.states)
    await controller.stop()
    lines = [
        _line(r.at, JobId(r.stream.removeprefix("job/")), r.kind, r.body)
        for r in records
        if r.stream.startswith(JOB_STREAMS)
    ]
    return Played(lines, states, play.refused, provider)


# --- Lines ------------------------------------------------------------------------------------------------------------


def _kind_body(event: Event) -> tuple[str, Mapping[str, Any]]:
    kind, _, body = encode(event)
    return kind, body


def _line(at: float, job: JobId, kind: str, body: Mapping[str, Any]) -> dict[str, Any]:
    return {"at": round(at, 6), "job": job, "kind": kind, "body": rounded(body)}


def rounded(value: Any) -> Any:
    """The value with every float in it rounded to the microsecond."""
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, Mapping):
        return {k: rounded(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(v) for v in value]
    return value


def record(world: ScriptedWorld) -> list[Row]:
    """A recording of the world, made on the heap."""
    kernel = RecordingKernel(DEPLOYMENT, strict=True)
    played = play_on_heap(world, kernel=kernel)
    return kernel.recording(played.states)
