"""The agents of a simulated cloud's machines, and the ranks that they run. They talk to the desk that is live, too.

What agents tell at every heartbeat is not sent: who wants to know asks ``told``. So nothing happens while nothing
changes, and a month of training is as many events as it has saves and losses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from everstep.model import handshake as h
from everstep.model.errors import Conflict, EverstepError, NotAuthorized
from everstep.model.ids import InstanceId, JobId
from everstep.sim.world.cloud import SimulatedCloud
from everstep.sim.world.conditions import Workload, chance
from everstep.sim.world.orderly import Orderlies, Orderly, introduction, wish
from everstep.sim.world.stage import Desk, Stage
from everstep.sim.world.things import Machine
from everstep.sim.world.training import Checkpoint, Training

_LOOK_S = 0.05
"""From new orders to acting on them."""
_NOTICE_S = 1.0
"""From the vendor's warning to the agent's word of it: agents look every second."""
_CHECK_S = 0.5
_STOP_S = 0.5
_GOODBYE_S = 0.2
_OUTPUTS_S = 5.0
_ASK_AGAIN_S = 1.0
_MARGIN_S = 1.0


@dataclass(slots=True)
class Agent(Orderly["Crew"]):
    """The process on a machine."""

    machine: Machine

    @property
    def instance(self) -> InstanceId:
        """The provider's id."""
        return self.machine.instance


@dataclass(slots=True)
class Crew:
    """The agents whose ranks make one attempt."""

    job: JobId
    attempt: int
    size: int
    training: Training
    base: Checkpoint | None
    agents: list[Agent] = field(default_factory=list)

    @property
    def first(self) -> Agent:
        """The agent of rank 0."""
        return min(self.agents, key=lambda a: a.rank)


@dataclass(frozen=True, slots=True)
class Told:
    """What a machine's newest heartbeat would say. Times are UTC seconds."""

    at: float
    step: int | None
    total: int | None


class SimulatedAgents(Orderlies[Agent, Crew]):
    """All agents of a cloud.

    Attributes:
        published: the newest checkpoint of each job.
    """

    def __init__(
        self, cloud: SimulatedCloud, stage: Stage, desk: Desk, workload: Callable[[JobId], Workload], *, seed: int = 0
    ) -> None:
        """Args: cloud, desk: their hooks are taken over; workload: what each job does."""
        super().__init__(stage.now)
        self.published: dict[JobId, Checkpoint] = {}
        self._cloud = cloud
        self._stage = stage
        self._desk = desk
        self._workload = workload
        self._seed = seed
        self._crews: dict[JobId, Crew] = {}
        cloud.on_machine, cloud.on_notice, cloud.on_end = self._boot, self._warned, self._gone
        desk.on_orders = self._told

    def told(self, instance: InstanceId) -> Told | None:
        """What is known of a machine from its last heartbeat; None before its agent joined, and once it is gone."""
        agent = self.agents.get(instance)
        if agent is None or not agent.joined:
            return None
        now, crew = self._stage.now(), agent.running
        if crew is None or crew.training.began_at is None:
            return Told(now, None, None)
        return Told(now, crew.training.step(now), crew.training.work.steps)

    # --- Life -------------------------------------------------------------------------------------------------------

    def _boot(self, machine: Machine) -> None:
        agent = self.agents[machine.instance] = Agent(machine)
        c, draw = self._cloud.conditions, chance(self._seed, "boot", machine.request.token)
        if draw.random() >= c.boot_failure:
            boot_s = c.boot_s * draw.lognormvariate(0.0, c.boot_spread)
            self._later(agent, boot_s, lambda: self._stage.spawn(self._join(agent), f"join {agent.instance}"))

    def _later(self, agent: Agent, delay_s: float, act: Callable[[], object]) -> None:
        self._stage.after(delay_s, lambda: act() if agent.alive else None)

    async def _join(self, agent: Agent) -> None:
        body = introduction(agent.instance, f"machine-{agent.machine.number}", 7000)
        try:
            answer = await self._desk.join(agent.machine.request.user_data[h.BOOT_TOKEN], body)
        except (NotAuthorized, Conflict):
            return  # given up meanwhile
        except EverstepError:
            self._later(agent, _ASK_AGAIN_S, lambda: self._stage.spawn(self._join(agent), "join again"))
            return
        if not agent.alive:
            return
        agent.joined = True
        agent.orders = answer["orders"] or agent.orders
        setup_s = self._workload(agent.machine.request.job).setup_s
        self._later(agent, setup_s, lambda: self._prepared(agent, setup_s))
        if agent.machine.deadline is not None:
            self._later(agent, _NOTICE_S, lambda: self._tell_notice(agent))

    def _prepared(self, agent: Agent, setup_s: float) -> None:
        agent.ready = True
        self._say(agent, h.MSG_READY, port=9000, setup_s=setup_s)
        self._plan_look(agent)

    def _warned(self, machine: Machine) -> None:
        agent = self.agents[machine.instance]
        if agent.joined:
            self._later(agent, _NOTICE_S, lambda: self._tell_notice(agent))

    def _tell_notice(self, agent: Agent) -> None:
        notice = agent.machine.notice
        if notice is not None:
            self._say(agent, h.MSG_NOTICE, notice=notice.value, deadline=agent.machine.deadline)

    def _gone(self, machine: Machine) -> None:
        agent = self.agents.pop(machine.instance)
        crew, agent.running = agent.running, None
        if crew is not None:
            self._tell_progress(agent, crew)  # what its last heartbeats have told
        if crew is not None and not crew.training.over:
            crew.training.end(self._stage.now())
            for place, other in enumerate(a for a in crew.agents if a is not agent):
                crash_s = crew.training.work.crash_s + 0.1 * place
                self._later(other, crash_s, lambda o=other: self._ended(o, crew, h.OUTCOME_FAILED, rc=1))  # type: ignore[misc]
        agent.alive = False

    def _send(self, agent: Agent, message: Mapping[str, Any]) -> None:
        self._stage.spawn(self._report(agent.instance, message), f"{message['kind']} of {agent.instance}")

    async def _report(self, instance: InstanceId, message: Mapping[str, Any]) -> None:
        # The machine may be no part of its job any more: then nobody listens.
        with suppress(NotAuthorized):
            await self._desk.report(instance, (message,))

    # --- Orders -----------------------------------------------------------------------------------------------------

    def _look_s(self, agent: Agent) -> float:
        return _LOOK_S

    def _start_s(self, agent: Agent, document: Mapping[str, Any]) -> float:
        return self._workload(JobId(document[h.ORDERS_SPEC][h.SPEC_JOB])).start_s

    def _check(self, agent: Agent, document: Mapping[str, Any]) -> None:
        told = {"attempt": document[h.ORDERS_ATTEMPT], "unreachable": []}
        self._later(agent, _CHECK_S, lambda: self._say(agent, h.MSG_CHECKED, **told))

    def _release(self, agent: Agent, document: Mapping[str, Any]) -> None:
        """Outputs go home where they would be lost with the machine."""
        wait_s = _GOODBYE_S
        if document[h.ORDERS_SPEC][h.SPEC_RELEASE_OUTPUTS]:
            wait_s += _OUTPUTS_S
            stored = {"files": 1, "bytes": 0, "error": None}
            self._later(agent, _OUTPUTS_S, lambda: self._say(agent, h.MSG_OUTPUTS_STORED, **stored))
        self._later(agent, wait_s, lambda: self._say(agent, h.MSG_SHUTDOWN, how="normal"))

    def _obey(self, agent: Agent, crew: Crew, document: Mapping[str, Any]) -> None:
        """New pace, or a wish for a save while the ranks run."""
        if document[h.ORDERS_HAZARD_PER_H]:
            crew.training.hazard_per_h = document[h.ORDERS_HAZARD_PER_H]
        wanted = wish(agent, document)
        if wanted is not None:
            self._save_by(crew, wanted["by"])

    # --- Ranks ------------------------------------------------------------------------------------------------------

    def _start(self, agent: Agent, document: Mapping[str, Any]) -> None:
        job, number = JobId(document[h.ORDERS_SPEC][h.SPEC_JOB]), document[h.ORDERS_ATTEMPT]
        if agent.orders.get(h.ORDERS_ATTEMPT) != number or agent.orders.get(h.ORDERS_STOP) is not None:
            return  # called off while the ranks were being started
        crew = self._crews.get(job)
        if crew is None or crew.attempt != number:
            crew = self._crews[job] = self._crew(job, number, document)
        agent.running, agent.rank = crew, document[h.ORDERS_NODE_RANK]
        crew.agents.append(agent)
        work = crew.training.work
        crew.training.step_s = max(
            crew.training.step_s, work.step_s / work.speeds.get(agent.machine.lot.machine.name, 1.0)
        )
        self._say(agent, h.MSG_STARTED, attempt=number, ranks=1, spawned_at=self._stage.now())
        if crew.training.over:
            self._later(agent, work.crash_s, lambda: self._ended(agent, crew, h.OUTCOME_FAILED, rc=1))
        elif len(crew.agents) == crew.size:
            self._restore(crew)

    def _crew(self, job: JobId, number: int, document: Mapping[str, Any]) -> Crew:
        """Starting freezes the base: what an older attempt saves from now on is not published."""
        spec, base = document[h.ORDERS_SPEC], self.published.get(job)
        since = document[h.ORDERS_BASE_SINCE]
        if document[h.ORDERS_BASE] and (base is None or base.attempt < since):
            attempt, step = map(int, document[h.ORDERS_BASE].split(":"))
            base = Checkpoint(attempt, step, "" if base is None else base.region)
        every = spec[h.SPEC_CHECKPOINT_EVERY]
        training = Training(
            self._workload(job), 1e-9, 0 if base is None else base.step, None if every == "auto" else float(every)
        )
        training.hazard_per_h = document[h.ORDERS_HAZARD_PER_H] or training.hazard_per_h
        return Crew(job, number, len(document[h.ORDERS_PEERS]), training, base)

    def _restore(self, crew: Crew) -> None:
        work, base, wait_s = crew.training.work, crew.base, 0.0
        if base is not None:
            wait_s = work.restore_s
            if base.region != crew.first.machine.lot.region:
                wait_s += work.checkpoint_gb / work.transfer_gb_per_s
        crew.training.timers["restore"] = self._stage.after(wait_s, lambda: self._train(crew, wait_s))

    def _train(self, crew: Crew, restore_s: float) -> None:
        training, first = crew.training, crew.first
        base = None if crew.base is None else f"{crew.base.attempt}:{crew.base.step}"
        if crew.base is not None:
            self._cloud.transfer(first.machine, crew.job, crew.base.region, training.work.checkpoint_gb)
        self._say(first, h.MSG_RESTORED, attempt=crew.attempt, base=base, restore_s=restore_s)
        training.begin(self._stage.now())
        training.timers["first"] = self._stage.after(training.step_s, lambda: self._first_step(crew))
        self._plan_finish(crew)
        for agent in crew.agents:
            self._obey(agent, crew, agent.orders)

    def _first_step(self, crew: Crew) -> None:
        self._tell_progress(crew.first, crew)
        if crew.base is None and crew.training.every_s is None:
            self._save(crew)  # the first save of a job comes at once: it measures what a save costs
        else:
            self._plan_save(crew)

    def _tell_progress(self, agent: Agent, crew: Crew) -> None:
        training, now = crew.training, self._stage.now()
        if training.began_at is not None:
            self._say(
                agent, h.MSG_PROGRESS, attempt=crew.attempt, step=training.step(now), total=training.work.steps,
                first_step_at=training.first_step_at, metrics={},
            )  # fmt: skip

    def _plan_finish(self, crew: Crew) -> None:
        training = crew.training
        self._cancel(training, "finish")
        if training.running:
            left_s = training.left_s(self._stage.now())
            training.timers["finish"] = self._stage.after(left_s, lambda: self._finish(crew))

    def _plan_save(self, crew: Crew) -> None:
        training = crew.training
        self._cancel(training, "save")
        training.timers["save"] = self._stage.after(training.interval_s(), lambda: self._save(crew))

    @staticmethod
    def _cancel(training: Training, what: str) -> None:
        call_off = training.timers.pop(what, None)
        if call_off is not None:
            call_off()

    def _save_by(self, crew: Crew, by: float | None) -> None:
        """Saves now, and once more shortly before ``by``, then holds still."""
        training = crew.training
        if training.over or training.began_at is None:
            return
        self._save(crew)
        if by is not None:
            last_s = by - self._stage.now() - training.work.save_s - _MARGIN_S
            if last_s > training.work.save_s:
                self._cancel(training, "last")
                training.timers["last"] = self._stage.after(last_s, lambda: self._save(crew, last=True))

    def _save(self, crew: Crew, *, last: bool = False) -> None:
        """One save: training stands still for a while, later the step is published. One at a time."""
        training, now = crew.training, self._stage.now()
        if training.over or training.began_at is None or ("publish" in training.timers and not last):
            return
        step = training.step(now)
        training.holding = training.holding or last
        training.stand(now)
        self._cancel(training, "save")
        self._cancel(training, "finish")
        self._cancel(training, "publish")
        training.saved_by = now + training.work.save_s
        training.timers["stall"] = self._stage.after(training.work.stall_s, lambda: self._stalled(crew))
        training.timers["publish"] = self._stage.after(training.work.save_s, lambda: self._publish(crew, step))

    def _stalled(self, crew: Crew) -> None:
        training = crew.training
        training.stall_s += training.work.stall_s
        training.go_on(self._stage.now())
        if training.running:
            self._plan_finish(crew)
            self._plan_save(crew)

    def _publish(self, crew: Crew, step: int) -> None:
        work = crew.training.work
        crew.training.timers.pop("publish", None)
        known = self.published.get(crew.job)
        stale = known is not None and (crew.attempt, step) <= (known.attempt, known.step)
        whole = all(agent.alive for agent in crew.agents)
        if self._crews[crew.job] is not crew or stale or not whole or step <= crew.training.base:
            return
        first = crew.first
        self.published[crew.job] = Checkpoint(crew.attempt, step, first.machine.lot.region)
        self._say(
            first, h.MSG_SAVED, attempt=crew.attempt, step=step, bytes=int(work.checkpoint_gb * 1e9),
            save_s=work.save_s, stall_s=work.stall_s,
        )  # fmt: skip

    def _finish(self, crew: Crew) -> None:
        crew.training.end(self._stage.now())
        for place, agent in enumerate(crew.agents):
            self._later(agent, 0.01 + 0.05 * place, lambda a=agent: self._ended(a, crew, h.OUTCOME_OK))  # type: ignore[misc]

    def _stop(self, agent: Agent, crew: Crew, *, save: bool) -> None:
        """The ranks save if they are asked to, and end."""
        training, now = crew.training, self._stage.now()
        outcome, wait_s = h.OUTCOME_STOPPED, _STOP_S
        if save and training.began_at is not None:
            outcome, wait_s = h.OUTCOME_SAVED, self._last_save_s(crew, now) + _STOP_S
        if not training.over:
            training.end(now)
        self._later(agent, wait_s, lambda: self._ended(agent, crew, outcome))

    def _last_save_s(self, crew: Crew, now: float) -> float:
        """Sees to it that what is done is saved; seconds until it is. A save that is under way goes on to its end."""
        training = crew.training
        if training.over:
            return max(training.saved_by - now, 0.0)
        under_way = training.timers.pop("publish", None) is not None
        if not (under_way and training.holding):
            step, save_s = training.step(now), training.work.save_s
            training.saved_by = now + save_s
            training.stall_s += save_s
            self._stage.after(save_s, lambda: self._publish(crew, step))
        return max(training.saved_by - now, 0.0)

    def _ended(self, agent: Agent, crew: Crew, outcome: str, rc: int = 0) -> None:
        if agent.running is not crew:
            return
        agent.running = None
        training = crew.training
        step = training.step(self._stage.now())
        done = step - training.base
        self._say(
            agent, h.MSG_ENDED, attempt=crew.attempt, outcome=outcome, rc=rc, step=step, total=training.work.steps,
            first_step_at=training.first_step_at if done else None, last_step_at=training.ended_at if done else None,
            steps_done=done, stall_s=training.stall_s,
        )  # fmt: skip
