"""One run: a server, its cloud, jobs that are interrupted, a server that is killed; and the judgement in the end."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Protocol

from everstep.brain.economics.ledger import account
from everstep.control.controller import Controller
from everstep.control.options import Options
from everstep.model.causes import InstanceEnd
from everstep.model.errors import Conflict
from everstep.model.events import CancelRequested, Event, JobSubmitted, PauseRequested, UnpauseRequested
from everstep.model.gang import Gang, SlotGroup, ZoneRule
from everstep.model.ids import DeploymentId, InstanceId, JobId
from everstep.model.job import JobState
from everstep.model.ledger import LineKind
from everstep.model.offers import AcceleratorWish, MachineRequirement, Market
from everstep.model.task import Recovery, Task
from everstep.ports import LaunchRequest, Provider
from everstep.store.memory import MemoryStore
from everstep.testing.fault_runs.weather import Sure, Weather, run_in_weather
from everstep.testing.faults import OrderedFaults
from everstep.testing.scripted import AgentScript, ScriptedWorld, TrainingScript
from everstep.testing.scripted_agents import ScriptedAgents
from everstep.testing.scripted_cloud import Machine
from everstep.testing.scripted_run import DEPLOYMENT, EmptyVault, LiveStage
from everstep.testing.virtual import VirtualClock

START = 1_900_000_000.0
"""UTC seconds at which every run begins."""
_LOOK_S = 0.5
_STORM_S = 420.0
_PATIENCE_S = 3600.0
_UNTOLD_S = 180.0
"""No vendor tells when a disk was deleted. When the answer to the deletion is lost, the disk is on our bill until a
later call finds that it is gone."""
_MACHINE = MachineRequirement((AcceleratorWish("T4", 1), AcceleratorWish("L4", 1)))
"""Each vendor sells one of them."""
_TRAINING = TrainingScript(steps=30, step_s=4.0303, save_every_s=21.07, progress_s=5.1121)
_AGENT = AgentScript(boot_s=3.1313, beat_s=1.0019)


@dataclass(frozen=True, slots=True)
class Seen:
    """A machine in the vendor's books.

    Attributes:
        token: of its launch.
        void: it was taken back before anybody was told of it.
        runs: it is up, and nothing ends it. over: it has ended.
        deadline: when it will be taken back, if that is announced.
    """

    instance: InstanceId
    token: str
    zone: str
    void: bool
    runs: bool
    over: bool
    deadline: float | None = None


@dataclass(frozen=True, slots=True)
class Bill:
    """What one thing costs by the vendor's meter: start and end, UTC seconds, and USD."""

    start: float
    end: float | None
    usd: float


class Vendor(Protocol):
    """A fake cloud, as a run needs it. ``machines`` and ``disks`` look into its books, ``left`` asks over the wire."""

    name: str
    faults: OrderedFaults

    def kinds(self, call: str) -> Sequence[str]:
        """Faults that a call of that name may meet again and again."""
        ...

    def start(self, clock: VirtualClock) -> None:
        """Serves, by that clock."""
        ...

    def stop(self) -> None:
        """Serves no more."""
        ...

    def provider(self, rng: Random) -> Provider:
        """A new one, as a new process has it."""
        ...

    def machines(self) -> list[Seen]:
        """All that ever were, in order."""
        ...

    def disks(self) -> list[str]:
        """Ids of all disks that outlive their machines, those that were deleted included."""
        ...

    def take_back(self, instance: InstanceId, notice_s: float) -> None:
        """The vendor takes a machine back."""
        ...

    def lose(self, instance: InstanceId) -> None:
        """Its host dies."""
        ...

    def run_dry(self, zone: str, launches: int) -> None:
        """So many launches in the zone find no room."""
        ...

    def left(self) -> set[str]:
        """Ids of all that costs, as a client sees it that is not ours."""
        ...

    def charges(self) -> Mapping[str, Bill]:
        """The meter, by id."""
        ...

    def trouble(self) -> list[str]:
        """What went wrong in the fake itself."""
        ...


@dataclass(frozen=True, slots=True)
class Scene:
    """What happens in a run, apart from the weather.

    Attributes:
        nodes: machines of each job.
        events: instant (seconds since the beginning), what happens, and a number that picks to whom.
    """

    nodes: tuple[int, ...]
    events: tuple[tuple[float, str, int], ...]


@dataclass
class Run:
    """What a run left.

    Attributes:
        states: of the jobs at the end.
        met: faults that calls met.
        problems: what is wrong; empty if nothing is.
    """

    states: dict[JobId, JobState] = field(default_factory=dict)
    met: Counter[tuple[str, str, bool]] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


def scene_of(rng: Random) -> Scene:
    """A scene, drawn."""
    nodes = tuple(rng.choice((1, 2, 2, 3)) for _ in range(rng.choice((1, 1, 2))))
    kinds = ("notice", "notice", "at_once", "lose", "kill_server", "kill_server", "dry", "pause", "cancel")
    chosen = [rng.choice(kinds) for _ in range(rng.randint(2, 6))]
    times = sorted(rng.uniform(2.0, _STORM_S) for _ in chosen)
    return Scene(nodes, tuple((at, kind, rng.randrange(1000)) for at, kind in zip(times, chosen, strict=True)))


def play(vendor: Vendor, seed: int, *, sure: Sure | None = None, shared: bool = False) -> Run:
    """The run of a seed, judged.

    Args:
        vendor: a fresh one.
        seed: of the scene, the weather and all else that is drawn.
        sure: a fault that is certain to be met.
        shared: all machines see one folder: no disks, so that a gang is launched by one call.
    """
    rng = Random(seed)
    weather = Weather(Random(rng.getrandbits(64)), vendor.kinds, sure=sure)
    scene = scene_of(rng)

    async def main(clock: VirtualClock) -> Run:
        vendor.start(clock)
        vendor.faults.weather = weather.meets
        site = _Site(vendor, scene, weather, clock, rng, shared=shared)
        try:
            await site.run()
        finally:
            await site.kill()
            vendor.stop()
        return site.result

    return run_in_weather(main, weather, start=START)


class _Site:
    """A server that is killed and started again, and the world around it."""

    def __init__(
        self, vendor: Vendor, scene: Scene, weather: Weather, clock: VirtualClock, rng: Random, *, shared: bool
    ) -> None:
        self.result = Run()
        self._shared = shared
        self._vendor = vendor
        self._scene = scene
        self._weather = weather
        self._clock = clock
        self._rng = rng
        self._stage = LiveStage(clock)
        self._store = MemoryStore(wall=clock.now)
        self._asked: dict[str, LaunchRequest] = {}
        self._machines: dict[InstanceId, Machine] = {}
        self._up = False
        self._jobs = [JobId(f"j-{n}") for n, _ in enumerate(scene.nodes, 1)]
        self._world = ScriptedWorld(
            "faults", (), (), agents=(_AGENT,) * 200, trainings={j: _TRAINING for j in self._jobs}
        )
        self._provider = self._new_provider()
        self._controller = self._new_controller()
        self._agents = ScriptedAgents(self._world, self._stage, self._controller.desk)

    # --- the server --------------------------------------------------------------------------------------------------

    def _new_provider(self) -> Any:
        provider: Any = self._vendor.provider(Random(self._rng.getrandbits(64)))
        launch = provider.launch

        async def remember(requests: Sequence[LaunchRequest], *, all_or_nothing: bool) -> Any:
            self._asked |= {r.token: r for r in requests}
            return await launch(requests, all_or_nothing=all_or_nothing)

        async def anyone(*args: object, **named: object) -> None:
            """Scripted agents have no document that the vendor signed."""

        provider.launch, provider.check_identity = remember, anyone
        if self._shared:
            provider.shared_folder = lambda zone: "/shared"
        return provider

    def _new_controller(self) -> Controller:
        return Controller(
            store=self._store,
            providers={self._provider.name: self._provider},
            deployment=DeploymentId(DEPLOYMENT),
            key=b"scripted",
            server_url=lambda: "http://127.0.0.1:1",
            vault=EmptyVault(),
            clock=self._clock,
            options=Options(offers_s=30.0),
            exclusive=True,
        )

    async def _start(self) -> None:
        # A server starts however bad the weather is: what it cannot see at once it looks for later.
        await self._controller.start()
        self._up = True
        self._agents.catch_up()

    async def kill(self) -> None:
        """kill -9: no task of the server goes on; what it asked the vendor for happens all the same."""
        self._up = False
        mine = {asyncio.current_task(), *self._stage._tasks}
        tasks = [t for t in asyncio.all_tasks() if t not in mine]
        # Python 3.11's wait_for loses a cancellation that comes together with its result; kill -9 is never lost.
        while going := [task for task in tasks if not task.done()]:
            for task in going:
                task.cancel()
            await asyncio.wait(going, timeout=0.0)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _revive(self) -> None:
        self._provider.close()
        self._provider = self._new_provider()
        self._controller = self._new_controller()
        self._agents.reconnect(self._controller.desk)
        await self._start()

    # --- what happens ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """The whole of it."""
        self._look()
        await self._start()
        for job, nodes in zip(self._jobs, self._scene.nodes, strict=True):
            self._controller.put(job, JobSubmitted(job, _task(nodes), "user", "default"))
        began = self._clock.now()
        for at, kind, number in self._scene.events:
            await self._clock.sleep(max(began + at - self._clock.now(), 0.0))
            await self._happens(kind, number)
        await self._clock.sleep(max(began + _STORM_S - self._clock.now(), 0.0))
        self._weather.calm = True
        await self._clock.sleep(60.0)
        for job in self._jobs:
            await self._ask(job, UnpauseRequested("user"))
        await self._until(lambda: all(s.phase.ended for s in self._states()), 1800.0)
        for job in self._jobs:
            await self._ask(job, CancelRequested("user"))
        await self._until(self._settled, _PATIENCE_S)
        await self._clock.sleep(150.0)  # what was asked for and comes late is there by now, and seen
        await self._judge()

    async def _happens(self, kind: str, number: int) -> None:
        there = [m for m in self._vendor.machines() if m.runs and not m.over and not m.void]
        one = there[number % len(there)] if there else None
        job = self._jobs[number % len(self._jobs)]
        if kind == "kill_server":
            await self.kill()
            await self._clock.sleep(number % 50 + 0.37)
            await self._revive()
        elif kind == "pause":
            await self._ask(job, PauseRequested("user", "lunch"))
        elif kind == "cancel" and number % 3 == 0:
            await self._ask(job, CancelRequested("user"))
        elif one is not None and kind == "notice":
            self._vendor.take_back(one.instance, 5.0 + number % 20)
        elif one is not None and kind == "at_once":
            self._vendor.take_back(one.instance, 0.0)
        elif one is not None and kind == "lose":
            self._vendor.lose(one.instance)
        elif one is not None and kind == "dry":
            self._vendor.run_dry(one.zone, 1 + number % 3)

    async def _ask(self, job: JobId, event: Event) -> None:
        with suppress(Conflict):  # it does not fit the state of the job, which is the user's to live with
            await self._controller.ask(job, event)

    async def _until(self, holds: Callable[[], bool], limit_s: float) -> None:
        end = self._clock.now() + limit_s
        while not holds() and self._clock.now() < end:
            await self._clock.sleep(1.0)

    def _states(self) -> list[JobState]:
        return [self._controller.states[j] for j in self._jobs if j in self._controller.states]

    def _settled(self) -> bool:
        return all(
            s.phase.ended
            and not any(m.alive for m in s.instances.values())
            and all(v.deleted_at is not None for v in s.volumes.values() if v.deleting)
            for s in self._states()
        )

    # --- machines and their agents -----------------------------------------------------------------------------------

    def _look(self) -> None:
        """What happens to machines in the vendor's books happens to their agents."""
        self._stage.after(_LOOK_S, self._look)
        for seen in self._vendor.machines():
            machine = self._machines.get(seen.instance)
            if machine is None and seen.runs and not seen.over and seen.token in self._asked:
                number = len(self._machines) + 1
                machine = Machine(seen.instance, number, self._asked[seen.token], self._clock.now())
                self._machines[seen.instance] = machine
                self._agents.boot(machine)
            if machine is None or not machine.alive:
                continue
            if seen.over:
                machine.ended_at = self._clock.now()
                self._agents.gone(machine)
            elif seen.deadline is not None and machine.deadline is None:
                machine.deadline = seen.deadline
                self._agents.warn(machine)

    # --- the judgement -----------------------------------------------------------------------------------------------

    async def _judge(self) -> None:
        result, states = self.result, self._states()
        result.states = {s.id: s for s in states}
        result.met = self._weather.met
        result.problems += self._vendor.trouble()
        if self._controller.failed is not None and self._controller.failed.done():
            result.problems.append(f"the server died: {self._controller.failed.exception()!r}")
        result.problems += [f"an agent died: {error!r}" for error in self._stage.errors]
        result.problems += [f"{s.id} is {s.phase.value}, quarantined: {s.quarantined!r}" for s in states
                            if s.quarantined or not s.phase.ended]  # fmt: skip
        if len(states) != len(self._jobs):
            result.problems.append(f"jobs were forgotten: {sorted(result.states)}")
        result.problems += [f"not known to the journal: {r.id}" for r in self._controller.around.unknown()]
        result.problems += _leaks(states, self._vendor.left())
        # Of a gang that was refused, what had started is taken back; the call that marks it so may have been lost.
        refused = {str(m.token) for state in states for m in state.instances.values() if m.instance is None}
        machines = [replace(m, void=m.void or (m.over and m.token in refused)) for m in self._vendor.machines()]
        result.problems += _doubles(states, machines, self._vendor.disks())
        result.problems += _bill(states, self._vendor.charges(), machines, self._clock.now())


def _task(nodes: int) -> Task:
    gang = Gang((SlotGroup("worker", _MACHINE, nodes, zones=ZoneRule.SAME_ZONE if nodes > 1 else ZoneRule.ANY),))
    recovery = Recovery(cooldown_s=45.0, boot_timeout_s=240.0, max_restarts=3)
    return replace(Task(name="t", run="true", gang=gang, recovery=recovery), outputs=("out",))


def _leaks(states: Sequence[JobState], left: set[str]) -> list[str]:
    """What costs and should not; disks of failed jobs are kept on purpose, and the journal knows them."""
    kept = {str(v.volume) for s in states for v in s.volumes.values() if v.volume and v.deleted_at is None}
    leaving = {str(v.volume) for s in states for v in s.volumes.values() if v.deleting}
    found = [f"left behind: {one}" for one in sorted(left - (kept - leaving))]
    return found + [f"gone, but the journal has it: {one}" for one in sorted(kept - left)]


def _doubles(states: Sequence[JobState], machines: Sequence[Seen], made: Sequence[str]) -> list[str]:
    known = {str(m.instance) for s in states for m in s.instances.values() if m.instance}
    real = [m for m in machines if not m.void]
    found = [f"{n} machines of the launch {token}" for token, n in Counter(m.token for m in real).items() if n > 1]
    found += [f"no job's machine: {m.instance}" for m in real if m.instance not in known]
    disks = {str(v.volume) for s in states for v in s.volumes.values() if v.volume}
    return found + [f"no job's disk: {d}" for d in made if d not in disks]


def _bill(states: Sequence[JobState], meter: Mapping[str, Bill], machines: Sequence[Seen], now: float) -> list[str]:
    """The ledger against the meter: every machine and disk of ours, by the cent of a cent."""
    told = {line.resource: line for state in states for line in account(state, now).lines}
    # EC2 tells when a spot request was closed, but not when the host of an on-demand machine failed: until a list shows
    # that, the machine is on our bill.
    untold = {
        str(m.instance)
        for state in states
        for m in state.instances.values()
        if m.end is InstanceEnd.LOST and m.offer.market is Market.ON_DEMAND and m.offer.provider == "aws"
    }
    found = []
    for resource, bill in meter.items():
        line = told.get(resource)
        # A machine's own disk is on the line of its machine; what nobody knows is told by ``_doubles``.
        if line is None or (line.end is None and bill.end is None):
            continue
        times = f"{line.start} to {line.end}, {bill.start} to {bill.end} by the meter"
        if line.end is None or bill.end is None or abs(line.start - bill.start) > 1.0:
            found.append(f"{resource}: {times}")
        elif (line.kind is LineKind.DISK or resource in untold) and 0.0 < line.end - bill.end < _UNTOLD_S:
            continue
        elif abs(line.cost_usd - bill.usd) > 0.0005:
            found.append(f"{resource}: ${line.cost_usd:.5f}, ${bill.usd:.5f} by the meter; {times}")
    charged = {str(m.instance) for m in machines if not m.void} & set(meter)
    return found + [f"charged, and on no bill: {one}" for one in sorted(charged - set(told))]
