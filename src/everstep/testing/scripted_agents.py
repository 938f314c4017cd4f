"""The agents and ranks of a scripted world. They talk to the real desk, in the messages of the handshake."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from everstep.control.agents import AgentDesk, NotYet
from everstep.model import handshake as h
from everstep.model.errors import EverstepError
from everstep.model.ids import InstanceId, JobId
from everstep.sim.world.orderly import Orderlies, Orderly, introduction, wish
from everstep.testing.scripted import AgentScript, ScriptedWorld, TrainingScript
from everstep.testing.scripted_cloud import Machine, Stage

_ASK_AGAIN_S = 0.5117


@dataclass(slots=True)
class Agent(Orderly["Training"]):
    """The process on a machine."""

    machine: Machine
    script: AgentScript
    joining: bool = False
    frozen: bool = False
    life: int = 0
    port: int = 9000
    outbox: list[Mapping[str, Any]] = field(default_factory=list)
    held: list[Callable[[], None]] = field(default_factory=list)

    @property
    def instance(self) -> InstanceId:
        """The provider's id."""
        return self.machine.instance


@dataclass(slots=True)
class Training:
    """The ranks of one attempt: they step together or not at all."""

    job: JobId
    attempt: int
    size: int
    base: int
    crew: list[Agent] = field(default_factory=list)
    since: float | None = None
    over: bool = False


class ScriptedAgents(Orderlies[Agent, Training]):
    """All agents of a world.

    Attributes:
        published: (attempt, step) of every checkpoint, by job.
    """

    def __init__(self, world: ScriptedWorld, stage: Stage, desk: AgentDesk) -> None:
        """Args: world: the script; stage: time; desk: of the server; its ``on_orders`` is taken over."""
        super().__init__(stage.now)
        self._world = world
        self._stage = stage
        self._desk = desk
        self.published: dict[JobId, list[tuple[int, int]]] = {}
        self._trainings: dict[tuple[JobId, int], Training] = {}
        self._failures: dict[JobId, int] = {}
        desk.on_orders = self._told

    def reconnect(self, desk: AgentDesk) -> None:
        """The server is started anew: what agents say from now on, they say to that one. See ``catch_up``."""
        self._desk.on_orders = lambda instance, document: None
        self._desk = desk
        desk.on_orders = self._told

    def catch_up(self) -> None:
        """The new server listens: agents tell again what nobody acknowledged."""
        for agent in self.agents.values():
            if agent.alive and agent.joining:
                self._stage.spawn(self._join(agent))
            elif agent.alive and agent.outbox:
                self._stage.spawn(self._report(agent, list(agent.outbox)))

    # --- Life -------------------------------------------------------------------------------------------------------

    def boot(self, machine: Machine) -> None:
        """A machine was made."""
        scripts = self._world.agents
        script = scripts[machine.number - 1] if machine.number <= len(scripts) else AgentScript()
        agent = self.agents[machine.instance] = Agent(machine, script)
        if script.boot_s is not None:
            self._later(agent, script.boot_s, lambda: self._stage.spawn(self._join(agent)))

    def gone(self, machine: Machine) -> None:
        """A machine ended."""
        agent = self.agents[machine.instance]
        agent.alive = False
        agent.life += 1
        self._drop_ranks(agent)

    def freeze(self, agent: Agent, seconds: float) -> None:
        """Stands still; so do the ranks, and with them the whole gang."""
        agent.frozen = True
        self._stage.after(seconds, lambda: self._thaw(agent))

    def _thaw(self, agent: Agent) -> None:
        agent.frozen = False
        held, agent.held = agent.held, []
        for act in held:
            act()

    def restart(self, agent: Agent, seconds: float) -> None:
        """The agent dies, its ranks with it, and comes back with a new process."""
        if not agent.alive or not agent.joined:
            return
        agent.life += 1
        self._drop_ranks(agent)
        agent.joined = agent.ready = agent.look_planned = False
        agent.seq = 0
        agent.outbox.clear()
        self._later(agent, seconds, lambda: self._stage.spawn(self._join(agent)))

    def _later(self, agent: Agent, delay_s: float, act: Callable[[], object]) -> None:
        """What the agent does itself: not while it is frozen, never once its process is gone."""
        life = agent.life

        def do() -> None:
            if agent.life != life or not agent.alive:
                return
            if agent.frozen:
                agent.held.append(do)
            else:
                act()

        self._stage.after(delay_s, do)

    async def _join(self, agent: Agent) -> None:
        number = agent.machine.number
        body = introduction(agent.instance, f"10.0.0.{number}", 7000 + number)
        life, agent.joining = agent.life, True
        try:
            answer = await self._desk.join(agent.machine.join_token, body)
        except NotYet:
            self._later(agent, _ASK_AGAIN_S, lambda: self._stage.spawn(self._join(agent)))
            return
        except (EverstepError, asyncio.CancelledError):
            return
        if agent.life != life or not agent.joining:
            return
        agent.joined, agent.joining = True, False
        if answer["orders"] is not None:
            agent.orders = answer["orders"]
        self._beat(agent)
        self._later(agent, agent.script.setup_s, lambda: self._prepared(agent))

    def _beat(self, agent: Agent) -> None:
        attempt = None if agent.running is None else agent.running.attempt
        self._say(agent, h.MSG_HEARTBEAT, attempt=attempt, ranks_alive=int(agent.running is not None))
        self._later(agent, agent.script.beat_s, lambda: self._beat(agent))

    def _prepared(self, agent: Agent) -> None:
        if agent.script.setup_rc:
            self._say(agent, h.MSG_SETUP_FAILED, rc=agent.script.setup_rc, tail="no such package")
            return
        agent.ready = True
        self._say(agent, h.MSG_READY, port=agent.port + agent.machine.number, setup_s=agent.script.setup_s)
        self._plan_look(agent)

    def _send(self, agent: Agent, message: Mapping[str, Any]) -> None:
        agent.outbox.append(message)
        self._stage.spawn(self._report(agent, [message]))

    async def _report(self, agent: Agent, messages: list[Mapping[str, Any]]) -> None:
        try:
            await self._desk.report(agent.instance, messages)
        except EverstepError:
            pass  # the machine is no part of its job any more: nobody listens
        except asyncio.CancelledError:
            return  # the server is gone: told again to the next one
        agent.outbox = [m for m in agent.outbox if all(m is not told for told in messages)]

    # --- Orders -----------------------------------------------------------------------------------------------------

    def _look_s(self, agent: Agent) -> float:
        return agent.script.look_s

    def _start_s(self, agent: Agent, document: Mapping[str, Any]) -> float:
        return agent.script.start_s

    def _obey(self, agent: Agent, ranks: Training, document: Mapping[str, Any]) -> None:
        if wish(agent, document) is not None:
            self._save(ranks)

    def _check(self, agent: Agent, document: Mapping[str, Any]) -> None:
        own = document[h.ORDERS_NODE_RANK]
        others = [p["address"] for p in document[h.ORDERS_PEERS] if p["rank"] != own]
        unreachable = others if agent.script.unreachable else []
        told = {"attempt": document[h.ORDERS_ATTEMPT], "unreachable": unreachable}
        self._later(agent, agent.script.check_s, lambda: self._say(agent, h.MSG_CHECKED, **told))

    def _release(self, agent: Agent, document: Mapping[str, Any]) -> None:
        spec, wait_s = document[h.ORDERS_SPEC], 0.0
        if spec[h.SPEC_OUTPUTS] and spec[h.SPEC_RELEASE_OUTPUTS]:
            wait_s = agent.script.outputs_s
            self._later(agent, wait_s, lambda: self._say(agent, h.MSG_OUTPUTS_STORED, files=1, bytes=10, error=None))
        self._later(agent, wait_s + 0.1013, lambda: self._say(agent, h.MSG_SHUTDOWN, how="normal"))

    # --- Ranks ------------------------------------------------------------------------------------------------------

    def _script(self, job: JobId) -> TrainingScript:
        return self._world.trainings.get(job, TrainingScript())

    def _start(self, agent: Agent, document: Mapping[str, Any]) -> None:
        job, number = JobId(document[h.ORDERS_SPEC][h.SPEC_JOB]), document[h.ORDERS_ATTEMPT]
        key = (job, number)
        if key not in self._trainings:
            self._trainings[key] = Training(job, number, len(document[h.ORDERS_PEERS]), self._base(job, document))
        training = self._trainings[key]
        agent.running, agent.rank = training, document[h.ORDERS_NODE_RANK]
        training.crew.append(agent)
        self._say(agent, h.MSG_STARTED, attempt=number, ranks=1, spawned_at=self._stage.now())
        if training.over:
            self._later(agent, self._script(job).crash_s, lambda: self._fail(agent, training))
        elif len(training.crew) == training.size:
            self._later(agent, self._script(job).restore_s, lambda: self._train(training))

    def _base(self, job: JobId, document: Mapping[str, Any]) -> int:
        newest, step = (self.published.get(job) or [(0, 0)])[-1]
        wanted = document[h.ORDERS_BASE]
        # What an attempt that was told the same has saved counts (``train.lineage.Wish``).
        return int(wanted.split(":")[1]) if wanted and newest < document[h.ORDERS_BASE_SINCE] else step

    def _train(self, training: Training) -> None:
        if training.over:
            return
        script = self._script(training.job)
        training.since = self._stage.now()
        first = training.crew[0]
        base = f"{training.attempt - 1}:{training.base}" if training.base else None
        self._say(first, h.MSG_RESTORED, attempt=training.attempt, base=base, restore_s=script.restore_s)
        self._stage.after(script.step_s, lambda: self._progress(training))
        self._stage.after(script.save_every_s, lambda: self._save_again(training))
        self._stage.after((script.steps - training.base) * script.step_s, lambda: self._finish(training))
        failures = self._failures.get(training.job, 0)
        if failures < len(script.fails_at):
            self._failures[training.job] = failures + 1
            delay_s = max(script.fails_at[failures] - training.base, 0) * script.step_s + 0.0071
            self._stage.after(delay_s, lambda: self.crash(first))

    def _step(self, training: Training) -> int:
        if training.since is None:
            return training.base
        script = self._script(training.job)
        done = int((self._stage.now() - training.since) / script.step_s + 1e-9)
        return min(training.base + done, script.steps)

    def _stands(self, training: Training) -> bool:
        return training.over or any(a.frozen for a in training.crew)

    def _progress(self, training: Training) -> None:
        script = self._script(training.job)
        if training.over:
            return
        for agent in training.crew:
            if not self._stands(training):
                step, first = self._step(training), training.since
                told = {"attempt": training.attempt, "step": step, "total": script.steps, "metrics": {"loss": 0.5}}
                if first is not None:
                    self._say(agent, h.MSG_PROGRESS, first_step_at=first + script.step_s, **told)
        self._stage.after(script.progress_s, lambda: self._progress(training))

    def _save_again(self, training: Training) -> None:
        if not training.over:
            self._save(training)
            self._stage.after(self._script(training.job).save_every_s, lambda: self._save_again(training))

    def _save(self, training: Training) -> None:
        step = self._step(training)
        published = self.published.setdefault(training.job, [])
        if self._stands(training) or step <= training.base or (training.attempt, step) in published:
            return
        if published and published[-1][0] > training.attempt:
            return  # a newer attempt has frozen the lineage
        published.append((training.attempt, step))
        first = min(training.crew, key=lambda a: a.rank)
        self._say(first, h.MSG_SAVED, attempt=training.attempt, step=step, bytes=100, save_s=0.2, stall_s=0.1)

    def _finish(self, training: Training) -> None:
        if training.over:
            return
        if self._stands(training):
            self._stage.after(1.0109, lambda: self._finish(training))
            return
        training.over = True
        for place, agent in enumerate(training.crew):
            self._end(agent, training, h.OUTCOME_OK, place * self._script(training.job).spread_s + 0.0113)

    def _stop(self, agent: Agent, ranks: Training, *, save: bool) -> None:
        if save:
            self._save(ranks)
        ranks.over = True
        self._end(agent, ranks, h.OUTCOME_SAVED if save else h.OUTCOME_STOPPED, 0.1511)

    def crash(self, agent: Agent) -> None:
        """The user's program fails there; the others follow."""
        training = agent.running
        if training is None or training.over:
            return
        training.over = True
        for place, one in enumerate([agent, *(a for a in training.crew if a is not agent)]):
            self._end(one, training, h.OUTCOME_FAILED, place * self._script(training.job).crash_s + 0.0127, rc=1)

    def _drop_ranks(self, agent: Agent) -> None:
        """Its ranks are gone with it; the others crash for want of them."""
        training, agent.running = agent.running, None
        if training is None or training.over:
            return
        training.over = True
        for place, one in enumerate(a for a in training.crew if a is not agent):
            self._end(one, training, h.OUTCOME_FAILED, (place + 1) * self._script(training.job).crash_s, rc=1)

    def _fail(self, agent: Agent, training: Training) -> None:
        self._end(agent, training, h.OUTCOME_FAILED, 0.0131, rc=1)

    def _end(self, agent: Agent, training: Training, outcome: str, delay_s: float, rc: int = 0) -> None:
        script, step = self._script(training.job), self._step(training)
        done = step - training.base
        told = {
            "attempt": training.attempt, "outcome": outcome, "rc": rc, "step": step, "total": script.steps,
            "first_step_at": None if training.since is None or not done else training.since + script.step_s,
            "last_step_at": self._stage.now() if done else None, "steps_done": done,
        }  # fmt: skip

        def tell() -> None:
            if agent.running is training:
                agent.running = None
                self._say(agent, h.MSG_ENDED, **told)

        self._later(agent, delay_s, tell)

    # --- Notices ----------------------------------------------------------------------------------------------------

    def warn(self, machine: Machine) -> None:
        """The machine's own metadata service tells of its end."""
        agent = self.agents[machine.instance]
        if agent.joined and machine.deadline is not None:
            told = {"notice": "terminate", "deadline": machine.deadline}
            self._later(agent, 0.1103, lambda: self._say(agent, h.MSG_NOTICE, **told))
