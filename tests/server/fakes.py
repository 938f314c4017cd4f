"""A controller and a desk that do as they are told, and the server's HTTP side around them."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from everstep.brain.economics import ledger
from everstep.control.clock import SystemClock
from everstep.model import events as ev
from everstep.model.access import Actor
from everstep.model.codec import to_dict
from everstep.model.errors import Conflict, HandshakeMismatch, NotAuthorized, NotFound
from everstep.model.gang import Slot
from everstep.model.ids import DeploymentId, InstanceId, JobId, LaunchToken, job_stream
from everstep.model.job import AttemptState, Goal, InstancePhase, InstanceState, JobPhase, JobState
from everstep.model.offers import MachineType, Market, Offer
from everstep.model.task import Task
from everstep.ports import Append, NewRecord, ProviderResource
from everstep.server.app import make_app
from everstep.server.context import Context
from everstep.server.execs import ExecBook
from everstep.server.files import Files
from everstep.server.listening import Tls
from everstep.server.logs import LogBook
from everstep.server.secrets import SecretFiles
from everstep.server.serving import serve
from everstep.server.submissions import Submissions
from everstep.server.tail import Tail
from everstep.server.views import Views
from everstep.store.memory import MemoryStore

TOKEN = "the-token-of-the-tests"
CREDENTIAL = "credential-of-i-1"


@dataclass
class Telemetry:
    last_heard: float
    attempt: int | None = None
    step: int | None = None
    total: int | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


def offer(
    zone: str = "east-a", *, market: Market = Market.SPOT, price: float = 1.0, available: int | None = 3
) -> Offer:
    return Offer(
        "local",
        "east",
        zone,
        MachineType("m1", "V100", 1, 8, 32),
        market,
        price,
        3.0,
        100.0,
        "test",
        available=available,
    )


def machine(
    name: str = "i-1", slot: int = 0, *, phase: InstancePhase = InstancePhase.READY, **more: Any
) -> InstanceState:
    values = {"instance": InstanceId(name), "started_at": 1000.0, "price_usd_per_h": 1.0, **more}
    return InstanceState(LaunchToken(f"t-{name}"), slot + 1, Slot(0, slot), offer(), 990.0, phase=phase, **values)


def job(name: str = "j-aaaaaaaa", *machines: InstanceState, **more: Any) -> JobState:
    values: dict[str, Any] = {
        "task": Task(name="train", run="python train.py"),
        "user": "default",
        "project": "default",
        "submitted_at": 980.0,
        "phase": JobPhase.RUNNING,
        "since": 1000.0,
        "instances": {m.token: m for m in machines},
        **more,
    }
    return JobState(JobId(name), **values)


def attempt(no: int, *members: str, **more: Any) -> AttemptState:
    values = {"begun_at": 1000.0 + no, "master_port": 29500, **more}
    return AttemptState(no, tuple(LaunchToken(f"t-{m}") for m in members), **values)


class FakeController:
    """Keeps what it is told; steering moves the phase as the real one would in the end."""

    def __init__(self, store: MemoryStore) -> None:
        self.states: dict[JobId, JobState] = {}
        self.deployment = DeploymentId("00000000-0000-4000-8000-000000000001")
        self.asked: list[tuple[JobId, ev.Event]] = []
        self.submitted: list[dict[str, Any]] = []
        self.telemetry: dict[InstanceId, Telemetry] = {}
        self.market: list[Offer] = []
        self.strangers: list[ProviderResource] = []
        self.ended: list[str] = []
        self.failure: Exception | None = None
        self.troubles: dict[str, str] = {}
        self.silent: set[str] = set()
        self._store = store

    def live_states(self) -> Sequence[JobState]:
        return [state for state in self.states.values() if not state.phase.ended]

    def job_of(self, instance: InstanceId) -> JobId | None:
        return next((s.id for s in self.states.values() if s.by_instance(instance) is not None), None)

    async def submit(self, task: Task, *, secrets: Mapping[str, str], actor: Actor, project: str) -> JobId:
        if self.failure is not None:
            raise self.failure
        name = JobId(f"j-{len(self.submitted):08d}")
        self.submitted.append({"task": task, "secrets": dict(secrets), "actor": actor, "project": project})
        self.states[name] = job(name, task=task, project=project, phase=JobPhase.ACQUIRING)
        await self.journal(name, ev.JobSubmitted(name, task, actor.user, project))
        return name

    async def ask(self, job: JobId, event: ev.Event) -> JobState:
        state = self.states.get(job)
        if state is None:
            raise NotFound(f"there is no job {job}")
        self.asked.append((job, event))
        if isinstance(event, ev.CancelRequested):
            if state.phase.ended:
                raise Conflict(f"job {job} has {state.phase}")
            state = dataclasses.replace(state, phase=JobPhase.CANCELLED, goal=Goal.CANCEL, ended_at=2000.0)
        if isinstance(event, ev.RetryRequested):
            state = dataclasses.replace(state, phase=JobPhase.ACQUIRING, goal=Goal.RUN, ended_at=None)
        self.states[job] = state
        await self.journal(job, event)
        return state

    def observed(self, instance: InstanceId) -> Telemetry | None:
        return self.telemetry.get(instance)

    async def offers(self) -> Sequence[Offer]:
        if self.failure is not None:
            raise self.failure
        return self.market

    async def preview(self, task: Task) -> Mapping[str, Any]:
        return {"offers": [to_dict(offer())], "hourly_usd": 1.0, "wait": "", "reasons": ["cheapest"], "warnings": []}

    def unknown(self) -> Sequence[ProviderResource]:
        return self.strangers

    async def end_unknown(self, ids: Sequence[str]) -> None:
        self.ended.extend(ids)

    async def journal(self, job: JobId, *events: ev.Event, at: float = 1000.0) -> None:
        lines = tuple(NewRecord(at, *ev.encode(event)) for event in events)
        await self._store.append((Append(job_stream(job), lines),), None)


class FakeDesk:
    """One machine, ``i-1``, whose orders change when a test says so."""

    def __init__(self) -> None:
        self.reports: list[Sequence[Mapping[str, Any]]] = []
        self.version = 1
        self.polls = 0
        self.changed = asyncio.Event()
        self.failure: Exception | None = None
        self.given_for: dict[InstanceId, JobId] = {}

    async def join(self, token: str, body: Mapping[str, Any]) -> dict[str, Any]:
        if token != "join-token":
            raise NotAuthorized("unknown join token")
        if body.get("handshake") != [1, 1]:
            raise HandshakeMismatch("the agent speaks handshake 9 to 9, this server 1 to 1")
        return {"credential": CREDENTIAL, "handshake": 1, "lease_s": 900.0, "heartbeat_s": 5.0, "orders": None}

    def bearer(self, credential: str) -> tuple[JobId, InstanceId]:
        if not credential.startswith("credential-of-"):
            raise NotAuthorized("unknown credential")
        instance = InstanceId(credential.removeprefix("credential-of-"))
        return self.given_for.get(instance, JobId("j-1")), instance

    async def report(
        self, instance: InstanceId, messages: Sequence[Mapping[str, Any]], *, given_for: JobId | None = None
    ) -> dict[str, Any]:
        if self.failure is not None:
            raise self.failure
        self.reports.append(messages)
        return {"ack": max((m.get("seq", 0) for m in messages), default=0), "orders_version": self.version}

    async def orders(self, instance: InstanceId, *, seen: int, wait_s: float) -> dict[str, Any] | None:
        self.polls += 1
        try:
            if self.version == seen:
                await asyncio.wait_for(self.changed.wait(), wait_s)
            return {"version": self.version, "phase": "hold"}
        except TimeoutError:
            return None
        finally:
            self.polls -= 1


@dataclass
class Rig:
    """The parts of a server under test."""

    context: Context
    controller: FakeController
    desk: FakeDesk
    folder: Path

    @property
    def app(self) -> Any:
        return make_app(self.context)

    def client(self, *, token: str = TOKEN) -> httpx.AsyncClient:
        """Speaks to the application without sockets; streams need ``served``."""
        return httpx.AsyncClient(
            transport=httpx.ASGITransport(self.app, raise_app_exceptions=True),
            base_url="http://test",
            headers={"Authorization": f"Bearer {token}"} if token else {},
        )

    def add(self, state: JobState) -> JobState:
        self.controller.states[state.id] = state
        return state

    @asynccontextmanager
    async def served(self, tls: Tls | None = None) -> AsyncIterator[str]:
        """The application behind a real loopback socket; gives its base URL."""
        from everstep.server.listening import bind_anywhere

        listener = bind_anywhere("127.0.0.1")
        server: uvicorn.Server = serve(self.app, tls)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            while not server.started:
                await asyncio.sleep(0.005)
            yield f"http{'s' if tls else ''}://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            self.context.close()
            server.should_exit = True
            await task


def rig(folder: Path) -> Rig:
    store = MemoryStore()
    controller, desk = FakeController(store), FakeDesk()
    context = Context(
        controller=controller,
        desk=desk,
        store=store,
        clock=SystemClock(),
        views=Views(controller, ledger),
        files=Files(folder / "files", upload_bytes=1 << 20),
        logs=LogBook(folder / "logs"),
        execs=ExecBook(folder / "exec"),
        secrets=SecretFiles(folder / "secrets"),
        submissions=Submissions(folder / "submissions"),
        tail=Tail(store),
        token=TOKEN,
        version="0.0-test",
        pid=4242,
        started_at=900.0,
        ping_s=0.05,
    )
    return Rig(context, controller, desk, folder)
