"""The realistic driver: jobs under the code that runs live, in a simulated cloud over traces."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from everstep.brain.plan import Settings
from everstep.brain.select import SELECTORS, Selector
from everstep.control.kernel import Kernel, Line
from everstep.control.options import Options
from everstep.model.events import JobSubmitted
from everstep.model.ids import DeploymentId, InstanceId, JobId
from everstep.model.job import JobState
from everstep.model.task import Task
from everstep.sim.engine import Engine
from everstep.sim.lookout import Lookout
from everstep.sim.quiet import Ears, QuietLookout
from everstep.sim.strand import Timeline
from everstep.sim.world.agents import SimulatedAgents
from everstep.sim.world.cloud import SimulatedCloud, Tariff
from everstep.sim.world.conditions import Conditions, Workload
from everstep.sim.world.supply import Lot

DEPLOYMENT = DeploymentId("d-simulated")
_NEVER_S = 1e9
SETTINGS = Settings(silence_s=_NEVER_S, patience_s=1800.0)
"""Silence is the provider's to tell here, and whoever waits is woken when the market changes."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A job that comes in at ``at`` (UTC seconds), and what it does."""

    job: JobId
    task: Task
    work: Workload
    at: float


@dataclass(frozen=True, slots=True)
class World:
    """Everything apart from what everstep decides.

    Attributes:
        begins_at, until: UTC seconds; nothing is simulated after ``until``.
        tariff: USD per GB from region to region.
        shared: folder that all machines see; None = disks only.
        provider: its name.
    """

    lots: tuple[Lot, ...]
    begins_at: float
    until: float
    conditions: Conditions = field(default_factory=Conditions)
    seed: int = 0
    tariff: Tariff = lambda source, target: 0.0
    shared: str | None = "/bucket"
    provider: str = "world"


@dataclass(slots=True)
class Played:
    """What a run left.

    Attributes:
        journal: every line, in order. states: the last state of each job. cloud: the vendor's side.
        ended_at: UTC seconds at which nothing was left to do, or at which time was up.
    """

    journal: list[Line]
    states: dict[JobId, JobState]
    cloud: SimulatedCloud
    ended_at: float


class Realistic:
    """One world with its jobs, to be run at once or in steps.

    Attributes:
        engine, cloud, agents: the parts.
    """

    def __init__(
        self,
        world: World,
        entries: Sequence[Entry],
        *,
        selectors: Mapping[str, Selector] | None = None,
        settings: Settings = SETTINGS,
        lookout: type[Lookout] = QuietLookout,
    ) -> None:
        """See the class."""
        self._world = world
        self._entries = {entry.job: entry for entry in entries}
        timeline = Timeline(world.begins_at)
        self.cloud = SimulatedCloud(
            world.lots,
            timeline,
            conditions=world.conditions,
            seed=world.seed,
            name=world.provider,
            shared=world.shared,
            tariff=world.tariff,
        )
        kernel = Kernel(DEPLOYMENT, settings=settings, selectors=selectors or SELECTORS, strict=True)
        kernel.market.heard = Ears(self._heard)
        self.engine = Engine(
            {self.cloud.name: self.cloud},
            deployment=DEPLOYMENT,
            timeline=timeline,
            options=Options(settings=settings),
            kernel=kernel,
            lookout=lookout,
        )
        self.agents = SimulatedAgents(
            self.cloud, timeline, self.engine.desk, lambda job: self._entries[job].work, seed=world.seed
        )

    def _heard(self, instance: InstanceId) -> tuple[float, int | None, int | None] | None:
        told = self.agents.told(instance)
        return None if told is None else (told.at, told.step, told.total)

    def run(self, watch: Callable[[Engine], None] = lambda engine: None) -> Played:
        """Runs until every job has come to rest, or time is up.

        Args:
            watch: called after each instant at which something happened.
        """
        engine, until = self.engine, self._world.until
        engine.begin()
        for entry in self._entries.values():
            event = JobSubmitted(entry.job, entry.task, "user", "default")
            engine.timeline.after(
                entry.at - self._world.begins_at,
                lambda job=entry.job, event=event: engine.put(job, event),  # type: ignore[misc]
            )
        while len(engine.ended) < len(self._entries):
            happens, wakes = engine.timeline.next_at(), engine.kernel.next_wake()
            at = min((t for t in (happens, wakes) if t is not None), default=None)
            if at is None or at > until:
                engine.run(until)
                break
            engine.run(at)
            watch(engine)
        states = {**engine.kernel.states, **engine.ended}
        return Played(engine.journal, states, self.cloud, engine.timeline.now())


def play(
    world: World,
    entries: Sequence[Entry],
    *,
    selectors: Mapping[str, Selector] | None = None,
    settings: Settings = SETTINGS,
) -> Played:
    """Runs jobs in a world. The same world and jobs give the same journal."""
    return Realistic(world, entries, selectors=selectors, settings=settings).run()
