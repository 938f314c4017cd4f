"""A small world for the brain: a cloud, its machines, their agents and users, deterministic by seed, with faults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from everstep.brain.lifecycle import submitted, transition
from everstep.model import handshake as h
from everstep.model.causes import InstanceEnd, NoticeKind
from everstep.model.effects import DeleteVolume, EnsureVolume, Launch, Terminate
from everstep.model.events import (
    CancelRequested,
    Event,
    ExecRequested,
    InstanceEnded,
    JobSubmitted,
    LaunchFailed,
    LaunchSucceeded,
    NoticeReceived,
    PauseRequested,
    RanksEnded,
    RestoreRequested,
    RetryRequested,
    UnpauseRequested,
    VolumeDeleted,
    VolumeFailed,
    VolumeReady,
)
from everstep.model.ids import InstanceId, LaunchToken, VolumeId
from everstep.model.job import GangPhase, Goal, InstancePhase, JobPhase, JobState
from everstep.model.offers import Market, Offer
from everstep.model.task import Task
from tests.brain.world_agents import Agents
from tests.brain.world_loop import NO_FAULTS, Agent, Faults


class World(Agents):
    """One job in a world of its own."""

    def __init__(
        self, task: Task, seed: int, faults: Faults = NO_FAULTS, *, steps: int = 40, shared: bool = True
    ) -> None:
        super().__init__(task, seed, faults, steps=steps, shared=shared)
        self.alive: set[InstanceId] = set()
        self.disks: dict[VolumeId, str] = {}
        self.attached: dict[VolumeId, InstanceId] = {}
        self._schedule_requests()
        self._plan()

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
