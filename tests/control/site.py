"""A server in virtual time, over a scripted vendor and scripted agents, with a journal that may make trouble."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from everstep.control.controller import LOOP, Controller
from everstep.model.events import Event, JobSubmitted
from everstep.model.ids import JOB_STREAMS, JobId
from everstep.model.job import InstancePhase, JobState
from everstep.model.task import Task
from everstep.ports import Append, Fence, NewRecord, Record
from everstep.store.memory import MemoryStore
from everstep.testing.scripted import ScriptedWorld, Submission
from everstep.testing.scripted_agents import ScriptedAgents
from everstep.testing.scripted_cloud import ScriptedProvider
from everstep.testing.scripted_run import START, LiveStage, ScriptedPlay, controller_for
from everstep.testing.virtual import VirtualClock, run_virtual
from tests.parity.worlds import world as plain_world

T = TypeVar("T")
JOB = JobId("j-1")


class MoodyStore(MemoryStore):
    """A journal in memory that is slow, or full, when it is told to be.

    Attributes:
        delay_s: each append takes so long.
        refuse: raised by each append while it is set.
        on_append: called before each append.
    """

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(wall=clock.now)
        self._clock = clock
        self.delay_s = 0.0
        self.refuse: Exception | None = None
        self.refuse_leases: Exception | None = None
        self.written: list[NewRecord] = []
        self.on_append: Callable[[Sequence[Append]], None] = lambda batch: None

    async def append(self, batch: Sequence[Append], fence: Fence | None) -> int:
        self.on_append(batch)
        self.written.extend(r for a in batch for r in a.records)
        if self.delay_s:
            await self._clock.sleep(self.delay_s)
        if self.refuse is not None:
            raise self.refuse
        return await super().append(batch, fence)

    async def lease(self, name: str, holder: str, ttl_s: float) -> Fence:
        if self.refuse_leases is not None:
            raise self.refuse_leases
        return await super().lease(name, holder, ttl_s)


class Site:
    """One installation. ``start`` may be called again after ``stop`` or ``kill``: the journal and the vendor stay."""

    def __init__(self, clock: VirtualClock, world: ScriptedWorld | None = None, **options: Any) -> None:
        self.clock = clock
        self.world = world or plain_world("site", submissions=())
        self.stage = LiveStage(clock)
        self.provider = ScriptedProvider(self.world, self.stage)
        self.store = MoodyStore(clock)
        self.options = options
        self.agents: ScriptedAgents | None = None
        self.controller = self._controller()

    def copy(self) -> Controller:
        """A server that nobody talks to, for a look at the journal."""
        return controller_for(self.world, self.clock, self.provider, self.store, **self.options)

    def _controller(self) -> Controller:
        controller = self.copy()
        if self.agents is None:
            self.agents = ScriptedAgents(self.world, self.stage, controller.desk)
            self.play = ScriptedPlay(self.world, self.stage, self.provider, self.agents)
        else:
            self.agents.reconnect(controller.desk)
        return controller

    async def start(self) -> Controller:
        """Starts the server; what the script says is planned at the first start."""
        await self.controller.start()
        assert self.agents is not None
        self.agents.catch_up()
        if self.world.submissions or self.world.faults or self.world.requests:
            self.play.begin(self)
            self.world = replace(self.world, submissions=(), faults=(), requests=())
        return self.controller

    def put(self, job: JobId, event: Event) -> Any:
        """The door of whichever server runs at that moment."""
        return self.controller.put(job, event)

    def ask(self, job: JobId, event: Event) -> Any:
        """See ``put``."""
        return self.controller.ask(job, event)

    async def restart(self, **options: Any) -> Controller:
        """Stops the server and starts another."""
        await self.controller.stop()
        self.options = {**self.options, **options}
        self.controller = self._controller()
        return await self.start()

    async def kill(self) -> None:
        """kill -9: tasks are gone, nothing is written any more."""
        doer = self.controller._doer
        tasks = [*self.controller._tasks, *doer._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*(t for t in tasks if isinstance(t, asyncio.Task)), return_exceptions=True)

    async def revive(self, **options: Any) -> Controller:
        """Another server after ``kill``."""
        self.options = {**self.options, **options}
        self.controller = self._controller()
        return await self.start()

    async def submit(self, task: Task, job: JobId = JOB) -> None:
        """A task under a name of our choice."""
        await self.controller.put(job, JobSubmitted(job, task, "user", "default"))

    async def ask_quietly(self, job: JobId, event: Event, *, submit: Task | None = None) -> None:
        """Puts something into the inbox without waiting for what becomes of it."""
        if submit is not None:
            self.controller.put(job, JobSubmitted(job, submit, "user", "default"))
        self.controller.put(job, event)

    async def until(self, holds: Callable[[], bool], limit_s: float = 300.0) -> None:
        """Lets time pass until it holds; fails after ``limit_s``."""
        end = self.clock.now() + limit_s
        while not (self.controller.states and holds()):
            assert self.clock.now() < end, f"still not so: {dict(self.controller.states)}"
            await self.clock.sleep(0.0501)

    def state(self, job: JobId = JOB) -> JobState:
        """The job."""
        return self.controller.states[job]

    @property
    def written(self) -> list[NewRecord]:
        """Every line that was handed to the journal, in order."""
        return self.store.written

    def in_phase(self, phase: InstancePhase, job: JobId = JOB) -> list[str]:
        """Machines of the job in that phase."""
        return [m.instance or "" for m in self.state(job).instances.values() if m.phase is phase]

    async def lines(self, job: JobId | None = None) -> list[Record]:
        """The journal of a job, of all jobs without one."""
        records = await self.store.read(limit=1_000_000)
        return [r for r in records if r.stream.startswith(JOB_STREAMS) and (job is None or r.stream == f"job/{job}")]

    async def kinds(self, job: JobId = JOB) -> list[str]:
        """Kinds of the job's lines."""
        return [r.kind for r in await self.lines(job)]


def on_site(main: Callable[[Site], Coroutine[Any, Any, T]], world: ScriptedWorld | None = None, **options: Any) -> T:
    """Runs ``main`` on a fresh site in virtual time and stops its server, also after a failure."""

    async def run(clock: VirtualClock) -> T:
        site = Site(clock, world, **options)
        try:
            result = await main(site)
        finally:
            await site.kill()
        assert site.stage.errors == []
        return result

    return run_virtual(run, start=START, last=LOOP)


def one_job(task: Task, **fields: Any) -> ScriptedWorld:
    """A world in which that task comes in at once."""
    return plain_world("site", submissions=(Submission(0.0107, JOB, task),), **fields)
