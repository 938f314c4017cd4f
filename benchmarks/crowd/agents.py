"""One simulated agent: the handshake's conversation without any process behind it.

It does what ``everstep.agent`` does towards the server: joins, holds a long poll for orders on one connection, sends
what gathered in its outbox on the other as soon as the answer to the batch before is there, keeps everything until it
is acknowledged, and comes back after an outage with the same messages.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from typing import Any, Protocol

from benchmarks.crowd.wire import Channel, head, whole
from everstep.agent.link import Backoff
from everstep.model import handshake as h

WAIT_S = 30.0
_TELEMETRY = frozenset({h.MSG_HEARTBEAT, h.MSG_PROGRESS})


class World(Protocol):
    """What an agent needs of the crowd."""

    async def connect(self, channel: Channel) -> None:
        """Opens a connection to the server; raises OSError."""
        ...

    def said(self) -> None:
        """A journalled message was put into an outbox."""
        ...

    def acknowledged(self, agent: Agent, message: dict[str, Any], taken_s: float) -> None:
        """A journalled message is durable, so long after it was first sent."""
        ...

    def sent(self, telemetry: int, journalled: int) -> None:
        """Messages that were acknowledged with a batch."""
        ...

    def ordered(self, agent: Agent, orders: dict[str, Any]) -> None:
        """New orders have arrived."""
        ...

    def left(self, agent: Agent) -> None:
        """The agent was released, or the server does not know it any more."""
        ...


class Agent:
    """The agent on one machine."""

    def __init__(self, world: World, instance: str, job: str, token: str, tick_s: float) -> None:
        self.instance = instance
        self.job = job
        self.rank = 0
        self.attempt: int | None = None
        self.running = False
        self.step = 0
        self.saved_step = 0
        self.answered_at = 0.0
        self.doomed = False
        self.gone = False
        self.finishing = False
        self._world = world
        self._token = token
        self._tick_s = tick_s
        self._loop = asyncio.get_running_loop()
        self._reports, self._polls = Channel(), Channel()
        self._seq = 0
        self._outbox: list[tuple[int, float, dict[str, Any]]] = []
        self._in_flight = 0
        self._seen = 0
        self._credential = ""
        self._prepared = False
        self._checked: int | None = None
        self._released = False
        self._backoff = Backoff()
        self._reports_head = self._orders_head = b""
        self._tasks: set[asyncio.Task[None]] = set()

    # --- Life -------------------------------------------------------------------------------------------------------

    def start(self, boot_s: float) -> None:
        """The machine boots; its agent joins after so many seconds."""
        self._spawn(self._join(boot_s))

    def vanish(self) -> None:
        """The machine is gone, without a word."""
        self.gone = True
        for channel in (self._reports, self._polls):
            channel.abort()
        for task in tuple(self._tasks):
            task.cancel()

    def _spawn(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _join(self, boot_s: float) -> None:
        await asyncio.sleep(boot_s)
        body = {
            h.JOIN_HANDSHAKE: [h.OLDEST_HANDSHAKE_VERSION, h.HANDSHAKE_VERSION],
            h.JOIN_INSTANCE: self.instance,
            h.JOIN_ADDRESS: "10.0.0.1",
            h.JOIN_PROBE_PORT: 7000,
            h.JOIN_AGENT: "crowd",
            h.JOIN_BOOTED_AT: time.time(),
        }
        request = whole(head("POST", h.PATH_JOIN, self._token), json.dumps(body).encode())
        while not self.gone:
            status, answer = await self._ask(self._reports, request)
            if status == 200:
                break
            if status == 401:
                self._leave()
                return
            await asyncio.sleep(self._backoff.next_s())
        joined = json.loads(answer)
        self._credential = joined["credential"]
        self._reports_head = head("POST", h.PATH_REPORTS, self._credential)
        if joined["orders"]:
            self._obey(joined["orders"])
        self._poll()
        self._loop.call_later(random.random() * self._tick_s, self._tick)

    async def _ask(self, channel: Channel, request: bytes) -> tuple[int, bytes]:
        answer: asyncio.Future[tuple[int, bytes]] = self._loop.create_future()
        try:
            if not channel.open:
                await self._world.connect(channel)
            channel.request(request, lambda status, body: answer.done() or answer.set_result((status, body)))
        except OSError:
            return 0, b""
        return await answer

    def _leave(self) -> None:
        if not self.gone:
            self.vanish()
            self._world.left(self)

    # --- Reports ----------------------------------------------------------------------------------------------------

    def say(self, kind: str, **fields: Any) -> None:
        """Puts a message into the outbox and sends it as soon as the connection is free."""
        self._put(kind, fields)
        self._flush()

    def _put(self, kind: str, fields: dict[str, Any]) -> None:
        self._seq += 1
        now = time.time()
        self._outbox.append((self._seq, now, {"seq": self._seq, "t": now, "kind": kind, **fields}))
        if kind not in _TELEMETRY:
            self._world.said()

    @property
    def backlog(self) -> int:
        """Messages that are not acknowledged yet."""
        return len(self._outbox)

    def _tick(self) -> None:
        """A heartbeat, and progress when ranks run; like the real agent, not while the last ones wait for an answer."""
        if self.gone:
            return
        self._loop.call_later(self._tick_s, self._tick)
        if not self._outbox:
            self._put(h.MSG_HEARTBEAT, {"attempt": self.attempt, "ranks_alive": int(self.running)})
            if self.running:
                self.step += 1
                loss = {"loss": 1.0 / self.step, "lr": 0.001}
                told = {"attempt": self.attempt, "step": self.step, "total": 1_000_000, "metrics": loss}
                self._put(h.MSG_PROGRESS, told)
            self._flush()

    def _flush(self) -> None:
        if self._in_flight or not self._outbox or not self._reports_head or self.gone:
            return
        if not self._reports.open:
            self._in_flight = -1
            self._spawn(self._reconnect())
            return
        batch = self._outbox[:200]
        self._in_flight = len(batch)
        body = json.dumps({"messages": [message for _, _, message in batch]}).encode()
        self._reports.request(whole(self._reports_head, body), self._reported)

    async def _reconnect(self) -> None:
        while not self.gone:
            try:
                await self._world.connect(self._reports)
                break
            except OSError:
                await asyncio.sleep(self._backoff.next_s())
        self._in_flight = 0
        self._flush()

    def _reported(self, status: int, body: bytes) -> None:
        self._in_flight = 0
        if self.gone:
            return
        if status == 401:
            self._leave()
            return
        if status != 200:
            self._in_flight = -1
            self._loop.call_later(self._backoff.next_s(), self._again)
            return
        self._backoff.reset()
        self.answered_at = time.time()
        ack, now, telemetry, journalled = json.loads(body)["ack"], self.answered_at, 0, 0
        while self._outbox and self._outbox[0][0] <= ack:
            _, put_at, message = self._outbox.pop(0)
            if message["kind"] in _TELEMETRY:
                telemetry += 1
            else:
                journalled += 1
                self._world.acknowledged(self, message, now - put_at)
        self._world.sent(telemetry, journalled)
        if self._released and not self._outbox:
            self._leave()
            return
        self._flush()

    def _again(self) -> None:
        self._in_flight = 0
        self._flush()

    # --- Orders -----------------------------------------------------------------------------------------------------

    def _poll(self) -> None:
        if self.gone:
            return
        if not self._polls.open:
            self._spawn(self._reconnect_poll())
            return
        path = f"{h.PATH_ORDERS}?seen={self._seen}&wait_s={WAIT_S}"
        self._polls.request(head("GET", path, self._credential) + b"\r\n", self._polled)

    async def _reconnect_poll(self) -> None:
        pause = Backoff()
        while not self.gone:
            try:
                await self._world.connect(self._polls)
                self._poll()
                return
            except OSError:
                await asyncio.sleep(pause.next_s())

    def _polled(self, status: int, body: bytes) -> None:
        if self.gone:
            return
        if status == 401:
            self._leave()
        elif status == 200:
            self._obey(json.loads(body))
            self._poll()
        elif status == 204:
            self._poll()
        else:
            self._loop.call_later(random.uniform(0.05, 0.2), self._poll)

    def _obey(self, orders: dict[str, Any]) -> None:
        self._seen = orders[h.ORDERS_VERSION]
        self._world.ordered(self, orders)
        phase, attempt, stop = orders[h.ORDERS_PHASE], orders[h.ORDERS_ATTEMPT], orders[h.ORDERS_STOP]
        if self.running and (stop or attempt != self.attempt):
            self._stop(h.OUTCOME_SAVED if stop and stop["save"] else h.OUTCOME_STOPPED)
        elif self._checked is not None and stop and attempt == self._checked and not self.running:
            self._checked = None
        if phase == h.PHASE_PREPARE and not self._prepared:
            self._prepared = True
            self.say(h.MSG_READY, port=29500, setup_s=0.1, prepared="")
        elif phase == h.PHASE_CHECK and self._checked != attempt:
            self._checked = attempt
            self.say(h.MSG_CHECKED, attempt=attempt, unreachable=[])
        elif phase == h.PHASE_RUN and not self.running and self.attempt != attempt:
            self._run(orders)
        elif phase == h.PHASE_RELEASE and not self._released:
            self._released = True
            if orders[h.ORDERS_SPEC][h.SPEC_RELEASE_OUTPUTS]:
                self._put(h.MSG_OUTPUTS_STORED, {"files": 1, "bytes": 1000, "error": None})
            self.say(h.MSG_SHUTDOWN, how="normal")

    def _run(self, orders: dict[str, Any]) -> None:
        self.attempt, self.rank = orders[h.ORDERS_ATTEMPT], orders[h.ORDERS_NODE_RANK]
        self.running, self.finishing = True, False
        self.step = max(self.step, 1)
        self._put(h.MSG_STARTED, {"attempt": self.attempt, "ranks": 1, "spawned_at": time.time()})
        restored = {"attempt": self.attempt, "base": None, "restore_s": 0.1}
        self.say(h.MSG_RESTORED, **restored)

    def _stop(self, outcome: str, **more: Any) -> None:
        self.running = False
        now = time.time()
        fields = {
            "attempt": self.attempt, "outcome": outcome, "rc": 0, "signal": None, "failed_rank": None,
            "step": self.step, "total": 1_000_000, "first_step_at": now - 1.0, "last_step_at": now,
            "steps_done": self.step, "stall_s": 0.0, "tail": "",
        }  # fmt: skip
        self.say(h.MSG_ENDED, **{**fields, **more})

    def save(self) -> None:
        """Rank 0 published a checkpoint."""
        # A step of its own for each: it is how the audit tells saves apart.
        self.step = max(self.step, self.saved_step) + 1
        self.saved_step = self.step
        told = {"attempt": self.attempt, "step": self.step, "bytes": 1 << 30, "save_s": 0.5, "stall_s": 0.01}
        self.say(h.MSG_SAVED, **told, durable=True)

    def finish(self) -> None:
        """The ranks are through."""
        self.finishing = True
        self._stop(h.OUTCOME_OK)

    def notice(self, seconds: float) -> None:
        """The cloud says that it takes the machine back."""
        self.doomed = True
        self.say(h.MSG_NOTICE, notice="terminate", deadline=time.time() + seconds)
