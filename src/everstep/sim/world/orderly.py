"""Agents that are played instead of run: what each was told, and what it does about it when it looks.

The simulated world and the scripted one differ in how long things take and in what goes wrong. How an agent keeps its
orders, its place in the order of messages, and which attempts it has answered is the same, and is here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from everstep.model import handshake as h
from everstep.model.ids import InstanceId


class Ranks(Protocol):
    """The ranks of one attempt, on one machine or on several."""

    @property
    def attempt(self) -> int:
        """Its number."""
        ...


R = TypeVar("R", bound=Ranks)


@dataclass(slots=True, kw_only=True)
class Orderly(Generic[R]):
    """What an agent knows.

    Attributes:
        seq: number of its latest message. orders: the newest. look_planned: it will look at them.
        checked, started: the newest attempt whose machines it has looked for, and whose ranks it has started.
        running: the ranks of this machine. rank: the first of them.
        saved: the newest wish for a save that it has met. releasing: it is about to say goodbye.
    """

    alive: bool = True
    joined: bool = False
    ready: bool = False
    seq: int = 0
    orders: Mapping[str, Any] = field(default_factory=dict)
    look_planned: bool = False
    checked: int = 0
    started: int = 0
    running: R | None = None
    rank: int = 0
    saved: int = 0
    releasing: bool = False


A = TypeVar("A", bound=Orderly[Any])


class Orderlies(ABC, Generic[A, R]):
    """All agents of a world.

    Attributes:
        agents: by machine.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        """Args: now: UTC seconds."""
        self.agents: dict[InstanceId, A] = {}
        self._now = now

    # --- What a world decides ---------------------------------------------------------------------------------------

    @abstractmethod
    def _later(self, agent: A, delay_s: float, act: Callable[[], object]) -> None:
        """What the agent does itself after a while, if it is able to."""

    @abstractmethod
    def _send(self, agent: A, message: Mapping[str, Any]) -> None:
        """A message sets out for the desk."""

    @abstractmethod
    def _look_s(self, agent: A) -> float:
        """From new orders to acting on them."""

    @abstractmethod
    def _start_s(self, agent: A, document: Mapping[str, Any]) -> float:
        """From the order to start to ranks that could work."""

    @abstractmethod
    def _start(self, agent: A, document: Mapping[str, Any]) -> None:
        """Ranks begin."""

    @abstractmethod
    def _stop(self, agent: A, ranks: R, *, save: bool) -> None:
        """Ranks end, with a save if they are asked for one."""

    @abstractmethod
    def _check(self, agent: A, document: Mapping[str, Any]) -> None:
        """Looks whether every other machine can be reached, and tells."""

    @abstractmethod
    def _obey(self, agent: A, ranks: R, document: Mapping[str, Any]) -> None:
        """New orders while ranks run."""

    @abstractmethod
    def _release(self, agent: A, document: Mapping[str, Any]) -> None:
        """Outputs go home, then the agent says goodbye."""

    # --- What all of them do ----------------------------------------------------------------------------------------

    def _told(self, instance: InstanceId, document: Mapping[str, Any]) -> None:
        agent = self.agents.get(instance)
        if agent is not None:
            agent.orders = document
            self._plan_look(agent)

    def _plan_look(self, agent: A) -> None:
        if agent.joined and not agent.look_planned:
            agent.look_planned = True
            self._later(agent, self._look_s(agent), lambda: self._look(agent))

    def _look(self, agent: A) -> None:
        agent.look_planned = False
        document = agent.orders
        if not agent.ready or agent.releasing or not document:
            return
        number, phase, stop = document[h.ORDERS_ATTEMPT] or 0, document[h.ORDERS_PHASE], document[h.ORDERS_STOP]
        ranks = agent.running
        if ranks is not None and (ranks.attempt != number or stop is not None or phase == h.PHASE_RELEASE):
            self._stop(agent, ranks, save=bool(stop and stop["save"]))
        if phase == h.PHASE_RELEASE:
            agent.releasing = True
            self._release(agent, document)
        elif phase == h.PHASE_CHECK and number > agent.checked:
            agent.checked = number
            self._check(agent, document)
        elif phase == h.PHASE_RUN and number > agent.started and stop is None:
            agent.started = number
            self._later(agent, self._start_s(agent, document), lambda: self._start(agent, document))
        elif phase == h.PHASE_RUN and agent.running is not None:
            self._obey(agent, agent.running, document)

    def _say(self, agent: A, kind: str, **fields: Any) -> None:
        if agent.alive:
            agent.seq += 1
            self._send(agent, {"seq": agent.seq, "t": self._now(), "kind": kind, **fields})


def wish(agent: Orderly[Any], document: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The save that is wished for, if it was not met yet; it is from now on."""
    wanted: Mapping[str, Any] | None = document[h.ORDERS_SAVE]
    if wanted is None or wanted["seq"] <= agent.saved:
        return None
    agent.saved = wanted["seq"]
    return wanted


def introduction(instance: InstanceId, address: str, probe_port: int) -> dict[str, Any]:
    """What an agent says of itself when it joins."""
    return {
        h.JOIN_HANDSHAKE: [h.OLDEST_HANDSHAKE_VERSION, h.HANDSHAKE_VERSION],
        h.JOIN_INSTANCE: instance,
        h.JOIN_ADDRESS: address,
        h.JOIN_PROBE_PORT: probe_port,
    }
