"""A desk with what is around it: one job with machines that have not joined, and who makes durable what is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from everstep.control.agents import AgentDesk
from everstep.control.telemetry import Telemetry
from everstep.model import handshake as h
from everstep.model.causes import InstanceEnd
from everstep.model.events import Event, InstanceEnded
from everstep.model.ids import InstanceId, JobId, LaunchToken
from everstep.model.job import InstanceState, JobState
from everstep.testing.virtual import VirtualClock, run_virtual
from tests.brain.making import JOB, fold, fresh, machine

ME = InstanceId("i-1")
T1 = LaunchToken("t-1")


class Inbox:
    """Knows one job; makes durable when it is told to."""

    def __init__(self, state: JobState) -> None:
        self.job = state
        self.events: list[Event] = []
        self.open: list[asyncio.Future[None]] = []
        self.at_once = True
        self.newest = 2

    def newest_attempt(self, job: JobId) -> int:
        return self.newest

    def find(self, job: JobId, token: LaunchToken) -> tuple[JobState, InstanceState] | None:
        found = self.job.instances.get(token) if job == self.job.id else None
        return None if found is None else (self.job, found)

    def state(self, job: JobId) -> JobState | None:
        return self.job if job == self.job.id else None

    def job_of(self, instance: InstanceId) -> JobId | None:
        found = self.job.by_instance(instance)
        return self.job.id if found is not None and found.alive else None

    def put(self, job: JobId, event: Event) -> asyncio.Future[None]:
        self.events.append(event)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.at_once:
            done.set_result(None)
        else:
            self.open.append(done)
        return done

    def flush(self) -> None:
        for done in self.open:
            done.set_result(None)
        self.open.clear()


class Counter:
    """A desk with what is around it."""

    def __init__(self, clock: VirtualClock, state: JobState, key: bytes = b"k") -> None:
        self.clock = clock
        self.inbox = Inbox(state)
        self.heard: dict[InstanceId, Any] = {}
        self.telemetry = Telemetry(self.heard)
        self.desk = AgentDesk(
            key=key, inbox=self.inbox, clock=clock, telemetry=self.telemetry, lease_s=900.0, heartbeat_s=1.0
        )
        self.token = self.desk.join_token(JOB, T1)


def at_desk(main: Callable[[Counter], Coroutine[Any, Any, None]], state: JobState | None = None) -> None:
    async def run(clock: VirtualClock) -> None:
        await main(Counter(clock, up() if state is None else state))

    run_virtual(run)


def up() -> JobState:
    """Machine 1 runs and has not joined, machine 2 neither; the launch of machine 3 is open."""
    state = fold(fresh(3), machine(1)[:2])
    return fold(fold(state, machine(2)[:2]), machine(3)[:1])


def body(**changes: Any) -> dict[str, Any]:
    plain = {h.JOIN_HANDSHAKE: [1, 1], h.JOIN_INSTANCE: "i-1", h.JOIN_ADDRESS: "10.0.0.1", h.JOIN_PROBE_PORT: 7000}
    return {**plain, **changes}


def saved(seq: int, step: int = 1) -> dict[str, Any]:
    return {"seq": seq, "t": 1.0, "kind": h.MSG_SAVED, "attempt": 1, "step": step}


def ended(joined: bool = True) -> JobState:
    return fold(fold(fresh(), machine(1)[: 4 if joined else 2]), [InstanceEnded(ME, 5.0, InstanceEnd.PREEMPTED)], 5.0)
