"""The agents of a small world for the brain, and the ranks that they start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from everstep.brain.lifecycle import orders
from everstep.model import handshake as h
from everstep.model.events import (
    CheckpointSaved,
    Event,
    InstanceHeard,
    InstanceJoined,
    InstanceReady,
    LaunchSucceeded,
    LeaseExpired,
    OutputsStored,
    PeersChecked,
    ProgressSeen,
    RanksEnded,
    RanksStarted,
    Restored,
    SetupFailed,
    ShutdownReported,
)
from everstep.model.ids import InstanceId
from everstep.model.task import Task
from tests.brain.world_loop import Agent, Faults, Loop

STEP_S = 2.0


@dataclass
class Training:
    """The ranks of one attempt, as one: they step together or not at all."""

    members: int
    base: int
    begun: set[InstanceId] = field(default_factory=set)
    since: float | None = None
    over: bool = False


class Agents(Loop):
    """They do as they are ordered, and tell what comes of it."""

    def __init__(self, task: Task, seed: int, faults: Faults, *, steps: int, shared: bool) -> None:
        super().__init__(task, seed, faults, shared=shared)
        self.steps = steps
        self.trainings: dict[int, Training] = {}
        self.published: list[tuple[int, int]] = []
        self.ranks: dict[tuple[int, int], InstanceId] = {}
        self.user_failures = 0

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
