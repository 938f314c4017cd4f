"""A small world for the brain: a cloud, its machines and their agents, deterministic by seed, with faults on schedule.

It drives ``advance`` and ``plan`` as the live loop does: an event is applied and everything decided before the next one
is looked at; machines whose orders changed get the orders of the state they find when they ask; time passes by
``wake_at``.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from everstep.brain.lifecycle import accepts, orders, submitted, transition
from everstep.brain.plan import Heard, Settings, Snapshot, advance, plan, worth_recording
from everstep.brain.pools import PoolBook, note_pools
from everstep.model import handshake as h
from everstep.model.causes import InstanceEnd, NoticeKind
from everstep.model.effects import Decision, DeleteVolume, EnsureVolume, Launch, SendOrders, Terminate
from everstep.model.events import (
    CancelRequested,
    CheckpointSaved,
    Event,
    ExecRequested,
    InstanceEnded,
    InstanceHeard,
    InstanceJoined,
    InstanceReady,
    JobSubmitted,
    LaunchFailed,
    LaunchSucceeded,
    LeaseExpired,
    NoticeReceived,
    OutputsStored,
    PauseRequested,
    PeersChecked,
    ProgressSeen,
    RanksEnded,
    RanksStarted,
    Restored,
    RestoreRequested,
    RetryRequested,
    SetupFailed,
    ShutdownReported,
    UnpauseRequested,
    VolumeDeleted,
    VolumeFailed,
    VolumeReady,
)
from everstep.model.ids import InstanceId, LaunchToken, VolumeId
from everstep.model.job import GangPhase, Goal, InstancePhase, JobPhase, JobState
from everstep.model.offers import Market, Offer, Pool
from everstep.model.task import Task
from tests.brain.making import DEPLOYMENT, JOB, offer

STEP_S = 2.0
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


@dataclass
class Training:
    """The ranks of one attempt, as one: they step together or not at all."""

    members: int
    base: int
    begun: set[InstanceId] = field(default_factory=set)
    since: float | None = None
    over: bool = False


class World:
    """One job in a world of its own."""

    def __init__(
        self, task: Task, seed: int, faults: Faults = Faults(), *, steps: int = 40, shared: bool = True
    ) -> None:
        self.rng = Random(seed)
        self.faults = faults
        self.steps = steps
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
        self.alive: set[InstanceId] = set()
        self.disks: dict[VolumeId, str] = {}
        self.attached: dict[VolumeId, InstanceId] = {}
        self.trainings: dict[int, Training] = {}
        self.published: list[tuple[int, int]] = []
        self.ranks: dict[tuple[int, int], InstanceId] = {}
        self.user_failures = 0
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
        self._schedule_requests()
        self._plan()

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

    # --- The cloud --------------------------------------------------------------------------------------------------

    def _do(self, effect: Any) -> None:
        late = self.rng.uniform(0.1, 2.0)
        match effect:
            case Launch(event=e):
                self.after(late, lambda: self._launch(e.token, e.offer, e.volume))
            case Terminate(event=t):
                self.after(late, lambda: self.end(t.instance, InstanceEnd.OWNER))
            case EnsureVolume(event=v):
                self.after(late, lambda: self._make_disk(v))
            case DeleteVolume(event=d):
                self.after(late, lambda: self._delete_disk(d.volume))
            case _:
                pass

    def _make_disk(self, v: Any) -> None:
        if self.chance(self.faults.disk_failure):
            self.tell(VolumeFailed(v.slot, "no_capacity", "no disks today"))
            return
        volume = VolumeId(f"v-{v.name}")
        self.disks[volume] = v.zone
        self.tell(VolumeReady(v.slot, volume, self.now, 0.0001))

    def _delete_disk(self, volume: VolumeId) -> None:
        if self.attached.get(volume) in self.alive:  # a vendor refuses that; the call is repeated
            self.after(5.0, lambda: self._delete_disk(volume))
            return
        self.disks.pop(volume, None)
        self.tell(VolumeDeleted(volume, self.now))

    def _launch(self, token: LaunchToken, leased: Offer, volume: VolumeId | None) -> None:
        if self.chance(self.faults.launch_failure):
            kind = self.rng.choice(("no_capacity", "quota_exceeded", "price_above_max"))
            self.tell(LaunchFailed(token, kind, "not today"))
            return
        if volume is not None and self.attached.get(volume) in self.alive:
            self.tell(LaunchFailed(token, "no_capacity", "the disk is attached to another machine"))
            return
        instance = InstanceId(f"i-{len(self.agents) + 1}")
        agent = self.agents[instance] = Agent(instance, token)
        self.alive.add(instance)
        if volume is not None:
            assert self.disks[volume] == leased.zone, "a disk attaches in its own zone only"
            self.attached[volume] = instance
        answer = LaunchSucceeded(token, instance, self.now, leased.price_usd_per_h)
        if self.chance(self.faults.lost_answer):
            # The call breaks off, a sweep finds the machine later; the answer "no" may come before or after.
            found = self.rng.uniform(1.0, 30.0)
            self.after(found, lambda: self.tell(answer))
            self.after(self.rng.uniform(0.0, 40.0), lambda: self.tell(LaunchFailed(token, "no_capacity", "broke off")))
            self.after(found + self.rng.uniform(5.0, 20.0), lambda: self._join(agent))
        else:
            self.tell(answer)
            self.after(self.rng.uniform(5.0, 20.0), lambda: self._join(agent))
        if leased.market is Market.SPOT:
            self._schedule(self.faults.preemptions_per_h, lambda: self.preempt(instance))
        self._schedule(self.faults.deaths_per_h, lambda: self.kill(instance))
        self._schedule(
            self.faults.freezes_per_h, lambda: self.freeze(instance, self.rng.choice((3.0, 8.0, 30.0, 200.0)))
        )
        self._schedule(self.faults.restarts_per_h, lambda: self.restart_agent(instance))

    def _schedule(self, per_h: float, act: Callable[[], None]) -> None:
        at = self._hit(per_h)
        if at is not None:
            self.after(at, act)

    def preempt(self, instance: InstanceId, notice_s: float | None = None) -> None:
        """The vendor takes the machine back, with or without notice."""
        if instance not in self.alive:
            return
        if notice_s is None:
            notice_s = self.rng.choice((5.0, 30.0, 120.0)) if self.rng.random() < self.faults.notice_chance else 0.0
        if notice_s:
            notice = NoticeReceived(instance, NoticeKind.TERMINATE, self.now + notice_s)
            if self.state.by_instance(instance) is not None:
                self.tell(notice)
                self.after(
                    self.rng.uniform(0, notice_s), lambda: self._tell_if_known(replace(notice, source="provider"))
                )
        self.after(notice_s, lambda: self.end(instance, InstanceEnd.PREEMPTED))

    def _tell_if_known(self, event: Any) -> None:
        if self.state.by_instance(event.instance) is not None:
            self.tell(event)

    def kill(self, instance: InstanceId) -> None:
        """The machine dies."""
        self.end(instance, InstanceEnd.LOST)

    def end(self, instance: InstanceId, why: InstanceEnd) -> None:
        """Billing ends; the server hears of it a little later."""
        if instance not in self.alive:
            return
        self.alive.discard(instance)
        agent = self.agents[instance]
        agent.last_word = self._last_word(agent)
        agent.alive = False
        at = self.now
        self._crash_others(agent)
        self.after(self.rng.uniform(0.5, 6.0), lambda: self._ended(instance, at, why))

    def _ended(self, instance: InstanceId, at: float, why: InstanceEnd) -> None:
        if self.state.by_instance(instance) is None:  # the sweep tells of the launch first
            token = self.agents[instance].token
            if self.state.instances[token].phase in (InstancePhase.LAUNCHING, InstancePhase.REFUSED):
                self.tell(LaunchSucceeded(token, instance, at, 1.0))
        self.tell(InstanceEnded(instance, at, why))
        self.ended_known.add(instance)

    def freeze(self, instance: InstanceId, seconds: float) -> None:
        """The machine is cut off for a while; its ranks hang, so do the others'."""
        agent = self.agents[instance]
        if instance in self.alive and agent.joined:
            agent.last_word = self._last_word(agent)
            agent.frozen_until = self.now + seconds
            self.after(seconds, lambda: self._thaw(agent))

    def _thaw(self, agent: Agent) -> None:
        if agent.alive and agent.frozen_until <= self.now:
            waiting, agent.waiting = agent.waiting, []
            for act in waiting:
                act()
            self._say(agent, None)
            self._deliver(agent.instance)

    def restart_agent(self, instance: InstanceId) -> None:
        """The agent dies and is started anew: its ranks are gone, it joins again."""
        agent = self.agents[instance]
        if instance in self.alive and agent.ready and not agent.releasing:
            was, agent.running, agent.ready = agent.running, 0, False
            agent.last_word, agent.down = self._last_word(agent), True
            self._crash_others(agent, of=was)
            self.after(self.rng.uniform(0.5, 5.0), lambda: self._join_again(agent, was))

    def _join_again(self, agent: Agent, was: int) -> None:
        agent.down = False
        self._join(agent)
        if was:
            self._say(agent, RanksEnded(agent.instance, was, h.OUTCOME_FAILED, signal=9))

    # --- Agents -----------------------------------------------------------------------------------------------------

    def _say(self, agent: Agent, event: Event | None) -> None:
        """One message of an agent, in order, once it is not cut off."""
        if agent.frozen_until > self.now:
            agent.waiting.append(lambda: self._say(agent, event))
            return
        if not agent.alive or agent.instance in self.ended_known:
            return
        machine = self.state.by_instance(agent.instance)
        if machine is not None and machine.silent:
            self.tell(InstanceHeard(agent.instance))
        if event is not None:
            self.tell(event)

    def _later(self, agent: Agent, delay_s: float, act: Callable[[], None]) -> None:
        """Something the agent does itself: not while it is frozen, not when it is dead."""

        def do() -> None:
            if agent.frozen_until > self.now:
                agent.waiting.append(do)
            elif agent.alive:
                act()

        self.after(delay_s, do)

    def _join(self, agent: Agent) -> None:
        if not agent.alive:
            return
        if self.state.by_instance(agent.instance) is None:
            self.tell(LaunchSucceeded(agent.token, agent.instance, self.now, 1.0))
        agent.joined = True
        self._say(agent, InstanceJoined(agent.instance, f"ip-{agent.instance}", 7000))
        self._later(agent, self.rng.uniform(1.0, 4.0), lambda: self._prepare(agent))

    def _prepare(self, agent: Agent) -> None:
        if agent.releasing or agent.ready:
            return
        if self.chance(self.faults.setup_failure):
            self._say(agent, SetupFailed(agent.instance, 1, "pip: no such package"))
            return
        agent.ready = True
        agent.port += 1
        self._say(agent, InstanceReady(agent.instance, agent.port, 2.0))
        self._deliver(agent.instance)

    def _deliver(self, instance: InstanceId) -> None:
        agent = self.agents.get(instance)
        if agent is not None:
            self._later(agent, self.rng.uniform(0.01, 0.5), lambda: self._obey(agent))

    def _obey(self, agent: Agent) -> None:
        machine = self.state.by_instance(agent.instance)
        if machine is None or not machine.alive or not agent.ready or agent.releasing:
            return
        document = orders(self.state, machine)
        number = document[h.ORDERS_ATTEMPT] or 0
        if number < agent.highest:
            return
        agent.highest = number
        stop, phase = document[h.ORDERS_STOP], document[h.ORDERS_PHASE]
        if agent.running and (agent.running != number or stop is not None or phase in (h.PHASE_HOLD, h.PHASE_RELEASE)):
            self._stop_ranks(agent, save=bool(stop and stop["save"]))
        if phase == h.PHASE_RELEASE:
            self._release(agent, document)
        elif phase == h.PHASE_CHECK and number not in agent.checked:
            agent.checked.add(number)
            self._check(agent, document)
        elif phase == h.PHASE_RUN and number > agent.started and not agent.running and stop is None:
            self._start(agent, document)
        elif phase == h.PHASE_RUN and agent.running and document[h.ORDERS_SAVE] is not None:
            self._save(agent.running)

    def _check(self, agent: Agent, document: dict[str, Any]) -> None:
        number = document[h.ORDERS_ATTEMPT]
        if self.chance(self.faults.mute_agent):
            return
        if self.chance(self.faults.unreachable):
            agent.cut_off = True
        others = [p["address"] for p in document[h.ORDERS_PEERS] if p["rank"] != document[h.ORDERS_NODE_RANK]]
        bad = {f"ip-{a.instance}" for a in self.agents.values() if a.cut_off}
        missed = tuple(a for a in others if agent.cut_off or a in bad)
        told = PeersChecked(agent.instance, number, missed)
        self._later(agent, self.rng.uniform(0.1, 1.0), lambda: self._say(agent, told))

    def _start(self, agent: Agent, document: dict[str, Any]) -> None:
        number, rank = document[h.ORDERS_ATTEMPT], document[h.ORDERS_NODE_RANK]
        assert self.ranks.setdefault((number, rank), agent.instance) == agent.instance, "two machines, one rank"
        agent.started = agent.running = number
        agent.port += 1
        training = self.trainings.setdefault(
            number, Training(len(document[h.ORDERS_PEERS]), self._base(document[h.ORDERS_BASE]))
        )
        training.begun.add(agent.instance)
        self._say(agent, RanksStarted(agent.instance, number, 1, self.now))
        self._say(agent, InstanceReady(agent.instance, agent.port, 0.0))
        if training.over:
            self._later(agent, 0.5, lambda: self._rank_dies(agent, number))
        elif len(training.begun) == training.members:
            self._later(agent, 1.0, lambda: self._train(number))

    def _base(self, wanted: str) -> int:
        if wanted:
            return int(wanted.split(":")[1])
        return self.published[-1][1] if self.published else 0

    def _crew(self, number: int) -> list[Agent]:
        return [a for a in self.agents.values() if a.running == number]

    def _train(self, number: int) -> None:
        training = self.trainings[number]
        crew = self._crew(number)
        if training.over or training.since is not None or len(crew) < training.members:
            return
        training.since = self.now
        first = crew[0]
        base = f"{self.published[-1][0]}:{training.base}" if training.base and self.published else None
        self._say(first, Restored(first.instance, number, base, 0.5))
        self._say(first, ProgressSeen(first.instance, number, training.base + 1, self.steps, self.now + STEP_S))
        if self.chance(self.faults.user_failure):
            self.user_failures += 1
            self.after(self.rng.uniform(0.0, 5.0), lambda: self._user_error(number))
            return
        self.after(5 * STEP_S, lambda: self._save_now_and_then(number))
        self.after((self.steps - training.base) * STEP_S, lambda: self._finish(number))

    def _step(self, training: Training) -> int:
        done = 0 if training.since is None else int((self.now - training.since) / STEP_S)
        return min(training.base + done, self.steps)

    def _hangs(self, number: int) -> bool:
        return any(a.frozen_until > self.now for a in self._crew(number))

    def _save_now_and_then(self, number: int) -> None:
        if not self.trainings[number].over:
            self._save(number)
            self.after(5 * STEP_S, lambda: self._save_now_and_then(number))

    def _save(self, number: int) -> None:
        training = self.trainings[number]
        crew = self._crew(number)
        newest = max(self.trainings)
        if training.over or training.since is None or not crew or number != newest or self._hangs(number):
            return
        step = self._step(training)
        if step > training.base:
            self.published.append((number, step))
            self._say(crew[0], CheckpointSaved(crew[0].instance, number, step, 100, 0.2, 0.1))

    def _ended_event(self, agent: Agent, number: int, outcome: str, rc: int = 0) -> RanksEnded:
        training = self.trainings[number]
        step = self._step(training)
        first = None if training.since is None else training.since + STEP_S
        return RanksEnded(
            agent.instance, number, outcome, rc, step=step, total=self.steps,
            first_step_at=first if step > training.base else None,
            last_step_at=self.now if step > training.base else None,
            steps_done=step - training.base,
        )  # fmt: skip

    def _finish(self, number: int) -> None:
        training = self.trainings[number]
        crew = self._crew(number)
        if training.over:
            return
        if self._hangs(number):
            self.after(5.0, lambda: self._finish(number))
            return
        training.over = True
        for agent in crew:
            agent.running = 0
            event = self._ended_event(agent, number, h.OUTCOME_OK)
            self._later(agent, self.rng.uniform(0.0, 1.0), lambda a=agent, e=event: self._say(a, e))

    def _stop_ranks(self, agent: Agent, *, save: bool) -> None:
        number = agent.running
        if save:
            self._save(number)
        event = self._ended_event(agent, number, h.OUTCOME_SAVED if save else h.OUTCOME_STOPPED)
        self.trainings[number].over = True
        agent.running = 0
        self._later(agent, self.rng.uniform(0.0, 2.0), lambda: self._say(agent, event))

    def _user_error(self, number: int) -> None:
        crew = self._crew(number)
        if crew and not self.trainings[number].over:
            self.trainings[number].over = True
            for agent in crew:
                self._later(agent, self.rng.uniform(0.0, 0.5), lambda a=agent: self._rank_dies(a, number))

    def _rank_dies(self, agent: Agent, number: int) -> None:
        if agent.running == number:
            agent.running = 0
            self._say(agent, self._ended_event(agent, number, h.OUTCOME_FAILED, rc=1))

    def _crash_others(self, lost: Agent, of: int | None = None) -> None:
        """A machine went away: the ranks of the others crash in a collective, often before anybody knows why."""
        number = lost.running if of is None else of
        lost.running = 0
        if number and not self.trainings[number].over:
            self.trainings[number].over = True
            for agent in self._crew(number):
                self._later(agent, self.rng.uniform(0.1, 3.0), lambda a=agent: self._rank_dies(a, number))

    def _release(self, agent: Agent, document: dict[str, Any]) -> None:
        agent.releasing = True
        spec = document[h.ORDERS_SPEC]
        if spec[h.SPEC_RELEASE_OUTPUTS] and spec[h.SPEC_OUTPUTS]:
            self._later(agent, 1.0, lambda: self._say(agent, OutputsStored(agent.instance, 1, 10)))
        self._later(agent, 1.2, lambda: self._say(agent, ShutdownReported(agent.instance, "normal")))

    def expire_lease(self, instance: InstanceId) -> None:
        """The agent heard nothing for a whole lease; its ranks saved and stopped."""
        agent = self.agents[instance]
        if agent.running and agent.alive:
            number = agent.running
            self._crash_others(agent)
            self._say(agent, LeaseExpired(instance, number))

    # --- Users ------------------------------------------------------------------------------------------------------

    def _schedule_requests(self) -> None:
        self._schedule(self.faults.requests_per_h, self._request)

    def _request(self) -> None:
        base = f"{self.published[0][0]}:{self.published[0][1]}" if self.published else "1:1"
        wishes: list[Event] = [
            PauseRequested("u"), UnpauseRequested("u"), UnpauseRequested("u"), RetryRequested("u"),
            RestoreRequested("u", base), ExecRequested("u", "e1", "nvidia-smi"),
        ]  # fmt: skip
        if self.rng.random() < 0.1:
            wishes = [CancelRequested("u")]
        self.ask(self.rng.choice(wishes))
        self._schedule_requests()

    # --- Checks -----------------------------------------------------------------------------------------------------

    def replayed(self) -> JobState:
        """The journal folded again."""
        at, first = self.journal[0]
        assert isinstance(first, JobSubmitted)
        state = submitted(first, at)
        for at, event in self.journal[1:]:
            state = transition(state, event, at)
        return state

    def stuck(self) -> str:
        """Why this is a dead state, empty if it is not."""
        s = self.state
        if s.phase.ended or s.phase is JobPhase.PAUSED or self._wake is not None:
            return ""
        if any(m.phase in (InstancePhase.LAUNCHING, InstancePhase.LEAVING) for m in s.instances.values()):
            return ""
        if any(v.volume is None and v.failed_at is None for v in s.volumes.values()):
            return ""
        attempt = s.attempt
        if attempt is not None and attempt.phase is GangPhase.RUNNING and s.goal is Goal.RUN:
            return ""
        return f"{s.phase} goal {s.goal}, nothing on its way and no look planned"
