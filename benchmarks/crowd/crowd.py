"""All machines of the make-believe cloud, and what happens to them: the truth that the server has to follow."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.crowd.agents import Agent
from benchmarks.crowd.cloud import machine_type
from benchmarks.crowd.wire import Channel, head, whole
from everstep.model import handshake as h
from everstep.model.codec import to_dict
from everstep.model.gang import Gang, SlotGroup
from everstep.model.offers import MachineRequirement
from everstep.model.task import Recovery, Task

NODES = 2
"""Machines of each job: an event of one has an effect on the other."""
_MOST_WAITING = 3
"""An agent with more unacknowledged messages than this is given no save to tell."""


@dataclass(frozen=True)
class Mix:
    """What happens, per second over the whole crowd unless stated.

    Attributes:
        agents: machines wanted; half as many jobs.
        tick_s: seconds between two pairs of heartbeat and progress of one agent.
        journalled: messages of agents that the journal takes; saves fill up what the other events leave.
        notices: preemptions that are announced ``notice_s`` before.
        losses: machines that vanish without a word.
        finishes: jobs that end well; as many are submitted.
        boot_s: from a launch to the join.
    """

    agents: int = 1000
    tick_s: float = 0.444
    journalled: float = 500.0
    notices: float = 3.0
    losses: float = 1.0
    finishes: float = 2.0
    notice_s: float = 2.0
    boot_s: float = 0.2


@dataclass
class Second:
    """What was acknowledged in one second, and latencies in seconds."""

    telemetry: int = 0
    journalled: int = 0
    posts: int = 0
    acks_s: list[float] = field(default_factory=list)
    effects_s: list[float] = field(default_factory=list)
    submits_s: list[float] = field(default_factory=list)


class Crowd:
    """The machines, by their objects, and the numbers.

    Attributes:
        seconds: measurements by whole UTC second.
        token: the user's, once the server has made it.
        acked: journalled messages that were acknowledged: (job, instance, kind, attempt, step, UTC seconds).
    """

    def __init__(self, socket_path: Path, mix: Mix, *, port: int) -> None:
        self.mix = mix
        self.agents: dict[str, Agent] = {}
        self.jobs: dict[str, list[Agent]] = {}
        self.seconds: dict[int, Second] = {}
        self.acked: list[tuple[str, str, str, int | None, int | None, float]] = []
        self.submitted = 0
        self.token = ""
        self._socket_path = socket_path
        self._port = port
        self._machines: dict[str, dict[str, Any]] = {}
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._noticed: dict[str, tuple[float, str]] = {}
        self._turn: deque[str] = deque()
        self._room = 0.0
        self._user = Channel()
        self._user_lock = asyncio.Lock()
        self.errors: list[str] = []

    # --- The cloud's side -------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Listens for the server's provider."""
        self._server = await asyncio.start_unix_server(self._serve, str(self._socket_path), limit=1 << 20)

    async def close(self) -> None:
        """Ends every machine and the listening."""
        for agent in list(self.agents.values()):
            agent.vanish()
        self._user.abort()
        if self._server is not None:
            self._server.close()
        for writer in self._writers:
            writer.close()
        self._socket_path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for machine in self._machines.values():
            writer.write(json.dumps({"machine": machine}).encode() + b"\n")
        writer.write(b"{}\n")
        self._writers.add(writer)
        try:
            while line := await reader.readline():
                message = json.loads(line)
                if "launch" in message:
                    self._launched(message["launch"], message["user_data"])
                elif "terminate" in message:
                    self._end(message["terminate"])
        except ConnectionError:
            pass
        finally:
            self._writers.discard(writer)

    def _launched(self, machine: dict[str, Any], user_data: dict[str, str]) -> None:
        instance = machine["id"]
        if instance in self._machines:
            return
        self._machines[instance] = machine
        agent = Agent(self, instance, machine["job"], user_data[h.BOOT_TOKEN], self.mix.tick_s)
        self.agents[instance] = agent
        gang = self.jobs.get(agent.job)
        if gang is None:
            gang = self.jobs[agent.job] = []
            self._turn.append(agent.job)
        gang.append(agent)
        agent.start(self.mix.boot_s)

    def _end(self, instance: str, how: str = "") -> None:
        """A machine is gone; ``how`` is told to the provider when the cloud did it."""
        if self._machines.pop(instance, None) is None:
            return
        agent = self.agents.pop(instance, None)
        if agent is not None:
            agent.vanish()
            gang = self.jobs[agent.job]
            gang.remove(agent)
            if not gang:
                del self.jobs[agent.job]
        if how:
            line = json.dumps({"ended": instance, "at": time.time(), "end": how}).encode() + b"\n"
            for writer in self._writers:
                writer.write(line)

    def remember(self, machines: Iterable[dict[str, Any]]) -> None:
        """Machines of former days: the provider lists them, but no agent runs on them."""
        self._machines.update({machine["id"]: machine for machine in machines})

    # --- What agents need -------------------------------------------------------------------------------------------

    async def connect(self, channel: Channel) -> None:
        """See ``World``."""
        await asyncio.get_running_loop().create_connection(lambda: channel, "127.0.0.1", self._port)

    def sent(self, telemetry: int, journalled: int) -> None:
        """See ``World``."""
        second = self._second()
        second.telemetry += telemetry
        second.journalled += journalled
        second.posts += 1

    def said(self) -> None:
        """See ``World``."""
        self._room -= 1.0

    def acknowledged(self, agent: Agent, message: dict[str, Any], taken_s: float) -> None:
        """See ``World``."""
        self._second().acks_s.append(taken_s)
        told = (message["kind"], message.get("attempt"), message.get("step"))
        self.acked.append((agent.job, agent.instance, *told, time.time()))

    def ordered(self, agent: Agent, orders: dict[str, Any]) -> None:
        """See ``World``: the first save order with a deadline after a notice is its effect."""
        noticed = self._noticed.get(agent.job)
        save = orders[h.ORDERS_SAVE]
        if noticed is None or save is None or save["by"] is None or noticed[1] == agent.instance:
            return
        del self._noticed[agent.job]
        self._second().effects_s.append(time.time() - noticed[0])

    def left(self, agent: Agent) -> None:
        """See ``World``. The machine itself runs on until the server ends it."""

    def _second(self) -> Second:
        return self.seconds.setdefault(int(time.time()), Second())

    # --- What happens -----------------------------------------------------------------------------------------------

    async def submit(self) -> bool:
        """A user submits a job; whether the server took it."""
        number = self.submitted
        self.submitted += 1
        group = SlotGroup("worker", MachineRequirement(machine_types=(machine_type(number),)), NODES)
        task = Task(
            name=f"task-{number}", policy="rotate", run="torchrun train.py --epochs 90", gang=Gang((group,)),
            recovery=Recovery(cooldown_s=5.0), envs={"DATA": "/shared/imagenet", "NCCL_DEBUG": "WARN"},
        )  # fmt: skip
        body = json.dumps({"task": to_dict(task)}).encode()
        async with self._user_lock:
            try:
                if not self._user.open:
                    await self.connect(self._user)
            except OSError:
                return False
            began = time.time()
            answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            request = whole(head("POST", "/api/v1/jobs", self.token), body)
            self._user.request(request, lambda status, _: answer.set_result(status))
            status = await answer
        if status == 200:
            self._second().submits_s.append(time.time() - began)
        elif status:
            self.errors.append(f"submit: HTTP {status}")
        return status == 200

    async def live(self, until: float) -> None:
        """Makes things happen as the mix says, until a UTC second."""
        mix, at = self.mix, time.time()
        self._room = 0.0
        due = {"notice": 0.0, "loss": 0.0, "finish": 0.0}
        rates = {"notice": mix.notices, "loss": mix.losses, "finish": mix.finishes}
        submits: set[asyncio.Task[bool]] = set()
        while at < until:
            await asyncio.sleep(0.01)
            now = time.time()
            passed, at = min(now - at, 0.1), now
            for what, rate in rates.items():
                due[what] += rate * passed
                while due[what] >= 1.0:
                    due[what] -= 1.0
                    self._happen(what)
                    if what == "finish":
                        task = asyncio.get_running_loop().create_task(self.submit())
                        submits.add(task)
                        task.add_done_callback(submits.discard)
            self._fill_up(passed)

    def _fill_up(self, passed_s: float) -> None:
        """Saves, as many as the other journalled messages leave room for."""
        # An outage leaves no debt: what was not said then is not said afterwards.
        self._room = min(self._room + self.mix.journalled * passed_s, self.mix.journalled * 0.1)
        tries = len(self._turn)
        while self._room >= 1.0 and tries:
            tries -= 1
            gang = self._next_gang()
            first = next((a for a in gang if a.running and a.rank == 0), None)
            if first is not None and first.backlog < _MOST_WAITING:
                first.save()

    def _next_gang(self) -> list[Agent]:
        """Jobs in turn."""
        while self._turn:
            job = self._turn.popleft()
            gang = self.jobs.get(job)
            if gang is not None:
                self._turn.append(job)
                return gang
        return []

    def _happen(self, what: str) -> None:
        for _ in range(len(self._turn)):
            gang = self._next_gang()
            if len(gang) == NODES and all(a.running and not a.doomed for a in gang):
                break
        else:
            return
        if what == "finish":
            for agent in gang:
                agent.finish()
            return
        victim = gang[-1]
        if what == "loss":
            self._end(victim.instance, "preempted")
            return
        self._noticed[victim.job] = (time.time(), victim.instance)
        victim.notice(self.mix.notice_s)
        asyncio.get_running_loop().call_later(self.mix.notice_s, self._end, victim.instance, "preempted")

    def between(self, begin: float, end: float) -> list[Second]:
        """The whole seconds within a span of UTC seconds; those in which nothing happened included."""
        return [self.seconds.get(at, Second()) for at in range(math.ceil(begin), int(end))]

    def heard_since(self, at: float) -> int:
        """Agents with an answer to a report since then."""
        return sum(1 for agent in self.agents.values() if agent.answered_at > at)

    @property
    def running(self) -> int:
        """Agents whose ranks run."""
        return sum(1 for agent in self.agents.values() if agent.running)
