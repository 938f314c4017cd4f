"""The loop of a small world for the brain: time, faults by chance, and what the server makes of facts.

It drives ``advance`` and ``plan`` as the live loop does: an event is applied and everything decided before the next one
is looked at; machines whose orders changed get the orders of the state they find when they ask; time passes by
``wake_at``.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from everstep.brain.lifecycle import accepts, submitted
from everstep.brain.plan import Heard, Settings, Snapshot, advance, plan, worth_recording
from everstep.brain.pools import PoolBook, note_pools
from everstep.model.effects import Decision, SendOrders
from everstep.model.events import Event, InstanceJoined, InstanceReady, JobSubmitted
from everstep.model.ids import InstanceId, LaunchToken
from everstep.model.job import InstancePhase, JobState
from everstep.model.offers import Market, Offer, Pool
from everstep.model.task import Task
from tests.brain.making import DEPLOYMENT, JOB, offer

FAULTS_UNTIL_S = 900.0


@dataclass(frozen=True)
class Faults:
    """How often things go wrong until ``FAULTS_UNTIL_S``; rates per hour and machine, chances per occasion."""

    preemptions_per_h: float = 0.0
    notice_chance: float = 0.5
    deaths_per_h: float = 0.0
    freezes_per_h: float = 0.0
    restarts_per_h: float = 0.0
    launch_failure: float = 0.0
    lost_answer: float = 0.0
    setup_failure: float = 0.0
    user_failure: float = 0.0
    unreachable: float = 0.0
    mute_agent: float = 0.0
    duplicates: float = 0.0
    requests_per_h: float = 0.0
    disk_failure: float = 0.0


NO_FAULTS = Faults()


@dataclass
class Agent:
    """The process on a machine, with what it knows."""

    instance: InstanceId
    token: LaunchToken
    alive: bool = True
    down: bool = False
    joined: bool = False
    ready: bool = False
    frozen_until: float = 0.0
    last_word: float = 0.0
    highest: int = 0
    started: int = 0
    running: int = 0
    checked: set[int] = field(default_factory=set)
    releasing: bool = False
    cut_off: bool = False
    port: int = 9000
    waiting: list[Callable[[], None]] = field(default_factory=list)


class Loop:
    """One job, its journal and what is decided about it; who carries that out comes on top."""

    def __init__(self, task: Task, seed: int, faults: Faults, *, shared: bool) -> None:
        self.rng = Random(seed)
        self.faults = faults
        self.now = 0.0
        self.book = PoolBook()
        self.offers: list[Offer] = [
            offer(zone, market, price, available=None)
            for zone, price in (("a", 1.0), ("b", 1.2), ("c", 1.4))
            for market, price in ((Market.SPOT, price), (Market.ON_DEMAND, 3.0))
        ]
        self.shared = {"a": "/shared", "b": "/shared", "c": "/shared"} if shared else {}
        self.settings = Settings()
        self.agents: dict[InstanceId, Agent] = {}
        self.journal: list[tuple[float, Event]] = []
        self.decisions: list[Decision] = []
        self.watchers: list[Callable[[JobState, Event, JobState], None]] = []
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._wake: float | None = None
        self.ended_known: set[InstanceId] = set()
        submission = JobSubmitted(JOB, task, "u", "default")
        self.journal.append((0.0, submission))
        self.state = submitted(submission, 0.0)

    def _do(self, effect: Any) -> None:
        """An effect of ``plan`` is carried out."""
        raise NotImplementedError

    def _deliver(self, instance: InstanceId) -> None:
        """The machine gets its orders."""
        raise NotImplementedError

    # --- Time -------------------------------------------------------------------------------------------------------

    def after(self, delay_s: float, act: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._heap, (self.now + delay_s, self._count, act))

    def run(self, until_s: float) -> None:
        while True:
            times = [t for t in (self._heap[0][0] if self._heap else None, self._wake) if t is not None]
            if not times or min(times) > until_s:
                return
            if self._heap and self._heap[0][0] <= min(times):
                self.now, _, act = heapq.heappop(self._heap)
                act()
            else:
                self.now = min(times)
                self._plan()

    @property
    def troubled(self) -> bool:
        return self.now < FAULTS_UNTIL_S

    def chance(self, p: float) -> bool:
        return p > 0 and self.troubled and self.rng.random() < p

    def _hit(self, per_h: float) -> float | None:
        """When a fault of that rate strikes next, seconds from now; None if it does not while there are faults."""
        if per_h <= 0:
            return None
        at = self.rng.expovariate(per_h / 3600.0)
        return at if self.now + at < FAULTS_UNTIL_S else None

    # --- The loop ---------------------------------------------------------------------------------------------------

    def tell(self, event: Event) -> None:
        """A fact reaches the server."""
        self._apply(event)
        repeatable = hasattr(event, "instance") and not isinstance(event, InstanceJoined | InstanceReady)
        if repeatable and self.chance(self.faults.duplicates):
            self.after(self.rng.choice((0.0, 3.0, 40.0)), lambda: self._repeat(event))
        self._plan()

    def _repeat(self, event: Event) -> None:
        instance = getattr(event, "instance", None)
        if instance is None or instance not in self.ended_known:
            self._apply(event)
            self._plan()

    def ask(self, event: Event) -> bool:
        if not accepts(self.state, event):
            return False
        self.tell(event)
        return True

    def _apply(self, event: Event) -> None:
        before = self.state
        after, effects = advance(before, event, self.now)
        if after is before or after == before:
            return
        self.book = note_pools(self.book, event, self._machine(before, event), self.now)
        self.journal.append((self.now, event))
        self.state = after
        for watch in self.watchers:
            watch(before, event, after)
        for effect in effects:
            assert isinstance(effect, SendOrders)
            self._deliver(effect.instance)

    @staticmethod
    def _machine(state: JobState, event: Event) -> Any:
        token = getattr(event, "token", None)
        if token is not None:
            return state.instances.get(token)
        instance = getattr(event, "instance", None)
        return None if instance is None else state.by_instance(instance)

    def snapshot(self) -> Snapshot:
        inflight: dict[Pool, int] = {}
        for m in self.state.instances.values():
            if m.phase is InstancePhase.LAUNCHING:
                inflight[m.offer.pool] = inflight.get(m.offer.pool, 0) + 1
        return Snapshot(
            DEPLOYMENT,
            (self.state,),
            tuple(self.offers),
            self.book,
            {a.instance: Heard(self._last_word(a)) for a in self.agents.values() if self._listed(a)},
            self.shared,
            inflight,
            settings=self.settings,
        )

    def _listed(self, agent: Agent) -> bool:
        return agent.joined and agent.instance not in self.ended_known

    def _last_word(self, agent: Agent) -> float:
        heard = agent.alive and not agent.down and agent.frozen_until <= self.now
        return self.now if heard else agent.last_word

    def _plan(self) -> None:
        for _ in range(16):
            decision = plan(self.snapshot(), self.now, Random(f"{self.state.decisions}"))[0]
            self.decisions.append(decision)
            if worth_recording(self.state, decision):
                self._apply(decision.record)
            for effect in decision.effects:
                self._apply(effect.event)  # type: ignore[union-attr]
                self._do(effect)
            self._wake = decision.wake_at
            if decision.wake_at is None or decision.wake_at > self.now:
                return
        raise AssertionError(f"plan does not come to rest: {self.decisions[-1]}")
