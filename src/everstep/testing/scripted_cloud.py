"""The vendor of a scripted world: a ``Provider`` that does what the script says, in whatever time it is given."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from everstep.model import handshake as h
from everstep.model.causes import InstanceEnd, NoticeKind
from everstep.model.errors import PROVIDER_ERRORS, ProviderError, Throttled, Unreachable
from everstep.model.ids import DeploymentId, InstanceId, LaunchToken, VolumeId
from everstep.model.offers import Market, Offer
from everstep.ports import (
    HistoryPoint,
    HistoryQuery,
    Launched,
    LaunchRequest,
    Notice,
    OfferQuery,
    ProviderResource,
    ResourceKind,
    VolumeSpec,
)
from everstep.testing.scripted import LaunchScript, ScriptedWorld

_ASK_AGAIN = (Throttled.kind, Unreachable.kind)


class Stage(Protocol):
    """Time and tasks, as a driver has them."""

    def now(self) -> float:
        """UTC seconds."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Waits."""
        ...

    def after(self, delay_s: float, act: Callable[[], object]) -> object:
        """Does something later."""
        ...

    def spawn(self, work: Coroutine[Any, Any, None]) -> object:
        """Starts a coroutine."""
        ...


@dataclass(slots=True)
class Machine:
    """A machine of the vendor."""

    instance: InstanceId
    number: int
    request: LaunchRequest
    started_at: float
    ended_at: float | None = None
    end: InstanceEnd | None = None
    deadline: float | None = None

    @property
    def alive(self) -> bool:
        """Still there."""
        return self.ended_at is None

    @property
    def join_token(self) -> str:
        """What the agent joins with."""
        return self.request.user_data[h.BOOT_TOKEN]


@dataclass(slots=True)
class Disk:
    """A disk of the vendor."""

    volume: VolumeId
    spec: VolumeSpec
    created_at: float
    deleted_at: float | None = None


class ScriptedProvider:
    """See ``Provider``. ``on_machine`` and ``on_end`` tell the rest of the world of machines.

    Attributes:
        machines: all of them, by id. disks: likewise.
        calls: (token, answer) of every launch call that was answered.
    """

    name = "box"

    def __init__(self, world: ScriptedWorld, stage: Stage) -> None:
        """Args: world: the script; stage: its time begins now."""
        self._world = world
        self._stage = stage
        self._begun_at = stage.now()
        self.poll_s = world.poll_s
        self.machines: dict[InstanceId, Machine] = {}
        self.disks: dict[VolumeId, Disk] = {}
        self.calls: list[tuple[LaunchToken, str]] = []
        self.down_until = 0.0
        self.on_machine: Callable[[Machine], None] = lambda machine: None
        self.on_end: Callable[[Machine], None] = lambda machine: None
        self._launches: dict[LaunchToken, LaunchScript] = {}
        self._tries: dict[LaunchToken, int] = {}
        self._made: dict[LaunchToken, Machine] = {}

    # --- The port ---------------------------------------------------------------------------------------------------

    async def offers(self, query: OfferQuery) -> Sequence[Offer]:
        """The newest market of the script."""
        self._check()
        elapsed = self._stage.now() - self._begun_at
        current = [m for m in self._world.markets if m.at <= elapsed]
        return current[-1].offers if current else ()

    async def launch(
        self, requests: Sequence[LaunchRequest], *, all_or_nothing: bool
    ) -> Sequence[Launched | Exception]:
        """As the script of each launch says. Several take as long as the slowest; one that is refused refuses all."""
        scripts = [self._script(request.token) for request in requests]
        await self._stage.sleep(max((script.delay_s for script in scripts), default=0.0))
        problems: list[tuple[LaunchToken, str]] = []
        for request, script in zip(requests, scripts, strict=True):
            token = request.token
            tries = self._tries[token] = self._tries.get(token, 0) + 1
            if token in self._made:
                continue
            problem = script.first[tries - 1] if tries <= len(script.first) else script.error
            problems += [(token, problem)] if problem else []
        if problems:
            # What may still succeed is told only where nothing is refused for good.
            final = [p for p in problems if p[1] not in _ASK_AGAIN]
            raise self._refusal(*(final or problems)[0])
        lost = False
        for request, script in zip(requests, scripts, strict=True):
            if request.token not in self._made:
                self._make(request)
                if script.lost_answer:
                    lost = True
                    self.calls.append((request.token, "lost"))
        if lost:
            raise Unreachable("the line went dead")
        return [self._answer(self._made[request.token]) for request in requests]

    def _script(self, token: LaunchToken) -> LaunchScript:
        if token not in self._launches:
            number = len(self._launches)
            scripts = self._world.launches
            self._launches[token] = scripts[number] if number < len(scripts) else LaunchScript()
        return self._launches[token]

    def _refusal(self, token: LaunchToken, kind: str) -> ProviderError:
        self.calls.append((token, kind))
        return PROVIDER_ERRORS[kind](f"scripted: {kind}")

    def _answer(self, machine: Machine) -> Launched:
        token, offer = machine.request.token, machine.request.offer
        self.calls.append((token, machine.instance))
        return Launched(token, machine.instance, machine.started_at, offer.price_usd_per_h)

    def _make(self, request: LaunchRequest) -> Machine:
        number = len(self.machines) + 1
        machine = Machine(InstanceId(f"i-{number}"), number, request, self._stage.now())
        self.machines[machine.instance] = machine
        self._made[request.token] = machine
        self.on_machine(machine)
        return machine

    async def resources(self, deployment: DeploymentId) -> Sequence[ProviderResource]:
        """Every machine and disk that ever was."""
        self._check()
        machines = [self._machine_row(m) for m in self.machines.values() if m.request.deployment == deployment]
        return [*machines, *(self._disk_row(d) for d in self.disks.values() if d.spec.deployment == deployment)]

    @staticmethod
    def _machine_row(m: Machine) -> ProviderResource:
        r = m.request
        return ProviderResource(
            ResourceKind.INSTANCE, m.instance, r.deployment, r.job, r.launch_no, r.token, r.offer.zone,
            r.offer.machine.name, r.offer.market, m.alive, m.started_at, m.ended_at, m.end,
            price_usd_per_h=r.offer.price_usd_per_h,
        )  # fmt: skip

    @staticmethod
    def _disk_row(d: Disk) -> ProviderResource:
        return ProviderResource(
            ResourceKind.VOLUME, d.volume, d.spec.deployment, d.spec.job, None, None, d.spec.zone, "", Market.ON_DEMAND,
            d.deleted_at is None, d.created_at, d.deleted_at, price_usd_per_h=0.001, size_gib=d.spec.size_gib,
        )  # fmt: skip

    async def terminate(self, instances: Sequence[InstanceId]) -> None:
        """Ends them after a moment."""
        await self._stage.sleep(self._world.end_s)
        for instance in instances:
            if instance in self.machines:
                self.end(self.machines[instance], InstanceEnd.OWNER)

    async def ensure_volume(self, spec: VolumeSpec) -> VolumeId:
        """Makes it, or finds it."""
        await self._stage.sleep(self._world.disk_s)
        volume = VolumeId(f"v-{spec.name}")
        if volume not in self.disks:
            self.disks[volume] = Disk(volume, spec, self._stage.now())
        return volume

    async def delete_volume(self, volume: VolumeId) -> None:
        """Deletes it."""
        await self._stage.sleep(self._world.disk_s)
        if volume in self.disks and self.disks[volume].deleted_at is None:
            self.disks[volume].deleted_at = self._stage.now()

    async def notices(self, deployment: DeploymentId) -> Sequence[Notice]:
        """Machines that will be taken back."""
        self._check()
        return [
            Notice(m.instance, NoticeKind.TERMINATE, m.deadline)
            for m in self.machines.values()
            if m.alive and m.deadline is not None
        ]

    async def history(self, query: HistoryQuery) -> Sequence[HistoryPoint]:
        """None is kept."""
        return ()

    def shared_folder(self, zone: str) -> str | None:
        """As the script says."""
        return self._world.shared.get(zone)

    def _check(self) -> None:
        if self._stage.now() < self.down_until:
            raise Unreachable("scripted: the vendor does not answer")

    # --- Faults -----------------------------------------------------------------------------------------------------

    def end(self, machine: Machine, why: InstanceEnd) -> None:
        """The machine is gone from now on."""
        if machine.alive:
            machine.ended_at, machine.end = self._stage.now(), why
            self.on_end(machine)

    def lose(self, machine: Machine) -> None:
        """The machine breaks; the vendor did not take it."""
        self.end(machine, InstanceEnd.LOST)

    def preempt(self, machine: Machine, notice_s: float) -> None:
        """Takes the machine back, after a notice if ``notice_s`` is not 0."""
        if notice_s <= 0:
            self.end(machine, InstanceEnd.PREEMPTED)
            return
        machine.deadline = self._stage.now() + notice_s
        self._stage.after(notice_s, lambda: self.end(machine, InstanceEnd.PREEMPTED))
