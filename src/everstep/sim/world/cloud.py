"""A cloud in virtual time: the ``Provider`` port over traces."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any

from everstep.model.causes import InstanceEnd, NoticeKind
from everstep.model.errors import (
    BadRequest,
    NoCapacity,
    PriceAboveMax,
    ProviderError,
    QuotaExceeded,
    Throttled,
)
from everstep.model.ids import DeploymentId, InstanceId, JobId, LaunchToken, VolumeId
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
from everstep.sim.world.conditions import Conditions, chance
from everstep.sim.world.meter import Charge, compute_charge, disk_charge, transfer_charge
from everstep.sim.world.stage import Stage
from everstep.sim.world.supply import Lot
from everstep.sim.world.things import Disk, Machine, Transfer

_LISTED_S = 3600.0
"""An ended machine stays listed for so long, as in clouds."""
Tariff = Callable[[str, str], float]
"""USD per GB from region to region."""


class News(StrEnum):
    """What changed, for those who would otherwise have to look again and again."""

    MARKET = "market"
    LIST = "list"


class SimulatedCloud:
    """A ``Provider`` with machines of its own. Spot is taken back when a zone has less than is held there.

    A spot machine costs what spot cost when it was launched, all its life.

    Attributes:
        machines: every one there ever was. throttled: launch calls that came too fast.
        on_machine, on_notice, on_end: told of a machine. on_news: told that offers, or the list of machines, changed.
    """

    def __init__(
        self,
        lots: Sequence[Lot],
        stage: Stage,
        *,
        conditions: Conditions | None = None,
        seed: int = 0,
        name: str = "world",
        shared: str | None = "/bucket",
        tariff: Tariff = lambda source, target: 0.0,
    ) -> None:
        """Args: shared: folder that all machines see, None = disks only; tariff: of transfers between regions."""
        self.name = name
        self.conditions = conditions or Conditions()
        self.machines: dict[InstanceId, Machine] = {}
        self.disks: dict[VolumeId, Disk] = {}
        self.transfers: list[Transfer] = []
        self.throttled = 0
        self.on_machine: Callable[[Machine], None] = lambda machine: None
        self.on_notice: Callable[[Machine], None] = lambda machine: None
        self.on_end: Callable[[Machine], None] = lambda machine: None
        self.on_news: Callable[[News], None] = lambda news: None
        self._lots = {(lot.zone, lot.machine.name): lot for lot in lots}
        self._stage = stage
        self._seed = seed
        self._shared = shared
        self._tariff = tariff
        self._made: dict[LaunchToken, Machine] = {}
        self._held: dict[tuple[str, str, Market], dict[InstanceId, Machine]] = {}
        self._ended: deque[Machine] = deque()
        self._allowance = float(self.conditions.burst)
        self._allowed_at = stage.now()
        for lot in self._lots.values():
            self._plan_change(lot)

    # --- The market -------------------------------------------------------------------------------------------------

    async def offers(self, query: OfferQuery) -> Sequence[Offer]:
        """Every pool, sold out ones included where that is told."""
        found = []
        for lot in self._lots.values():
            if query.regions and lot.region not in query.regions:
                continue
            if query.machine_types and lot.machine.name not in query.machine_types:
                continue
            if lot.spot is not None:
                found.append(self._offer(lot, Market.SPOT))
            found.append(self._offer(lot, Market.ON_DEMAND))
        return found

    def _offer(self, lot: Lot, market: Market) -> Offer:
        now, spot = self._stage.now(), market is Market.SPOT
        room = self._room(lot, market)
        return Offer(
            provider=self.name,
            region=lot.region,
            zone=lot.zone,
            machine=lot.machine,
            market=market,
            price_usd_per_h=lot.spot_usd_per_h(now) if spot else lot.on_demand_usd_per_h,
            on_demand_usd_per_h=lot.on_demand_usd_per_h,
            price_as_of=now,
            price_source=f"{self.name}: simulated",
            billing=self.conditions.billing,
            available=room if self.conditions.told and room is not None else None,
            max_life_s=self.conditions.max_life_s if spot else None,
            notice_s=self.conditions.notice_s if spot else 0.0,
        )

    def _room(self, lot: Lot, market: Market) -> int | None:
        """Machines that could start now; None = without limit."""
        if market is Market.SPOT:
            assert lot.spot is not None
            limit: int | None = lot.spot.count(self._stage.now())
        else:
            limit = lot.on_demand_limit
        return None if limit is None else max(limit - len(self._holding(lot, market)), 0)

    def _holding(self, lot: Lot, market: Market) -> list[Machine]:
        """Machines that count against the zone: those that are not on their way out."""
        held = self._held.get((lot.zone, lot.machine.name, market), {})
        return [m for m in held.values() if not m.doomed]

    def _plan_change(self, lot: Lot) -> None:
        at = None if lot.spot is None else lot.spot.next_change(self._stage.now())
        if at is not None:
            self._stage.after(at - self._stage.now(), lambda: self._changed(lot))

    def _changed(self, lot: Lot) -> None:
        """The trace says something new: machines beyond what the zone has are taken back."""
        assert lot.spot is not None
        held = self._holding(lot, Market.SPOT)
        surplus = len(held) - lot.spot.count(self._stage.now())
        if surplus > 0:
            for machine in chance(self._seed, "taken", lot.zone, f"{self._stage.now():.3f}").sample(held, surplus):
                self.take_back(machine)
        self._plan_change(lot)
        self.on_news(News.MARKET)

    async def history(self, query: HistoryQuery) -> Sequence[HistoryPoint]:
        """What each pool had and cost, as far as that is told."""
        now, points = self._stage.now(), []
        for pool in query.pools:
            lot = self._lots.get((pool.zone, pool.machine_type))
            if pool.provider != self.name or lot is None or lot.spot is None or pool.market is not Market.SPOT:
                continue
            first = max(query.since, lot.spot.begins_at)
            for at in (first, *lot.spot.changes(first, now)) if first <= now else ():
                price = min(lot.spot.price(at), lot.on_demand_usd_per_h)
                points.append(HistoryPoint(pool, at, price, lot.spot.count(at) if self.conditions.told else None))
        return sorted(points, key=lambda p: p.at)

    def shared_folder(self, zone: str) -> str | None:
        """See ``ports.SharedFolder``."""
        return self._shared

    # --- Machines ---------------------------------------------------------------------------------------------------

    async def launch(
        self, requests: Sequence[LaunchRequest], *, all_or_nothing: bool
    ) -> Sequence[Launched | Exception]:
        """See ``Provider``. However many are asked for, it is one call of those that the vendor counts."""
        await self._stage.sleep(self.conditions.answer_s)
        known = all(r.token in self._made for r in requests)
        allowed = known or self._allow()
        refusals: list[ProviderError | None] = []
        taken: Counter[tuple[str, str, Market]] = Counter()
        for request in requests:
            refusal = self._refusal(request, taken, allowed=allowed)
            if refusal is not None and all_or_nothing:
                raise refusal
            if refusal is None and request.token not in self._made:
                taken[_key(request)] += 1
            refusals.append(refusal)
        return [self._launch(r) if refusal is None else refusal for r, refusal in zip(requests, refusals, strict=True)]

    def _refusal(
        self, request: LaunchRequest, taken: Counter[tuple[str, str, Market]], *, allowed: bool
    ) -> ProviderError | None:
        made = self._made.get(request.token)
        if made is not None:
            return None if made.request == request else BadRequest("this token was used with other parameters")
        offer, c = request.offer, self.conditions
        lot = self._lots.get((offer.zone, offer.machine.name))
        if lot is None or offer.market not in (Market.SPOT, Market.ON_DEMAND) or self._wrong_disk(request):
            return BadRequest(self._wrong_disk(request) or f"{offer.pool} is not sold")
        if not allowed:
            self.throttled += 1
            return Throttled("too many launch calls")
        if offer.market is Market.SPOT:
            bound = request.max_price_usd_per_h
            price = lot.spot_usd_per_h(self._stage.now()) if lot.spot is not None else 0.0
            if bound is not None and price > bound + 1e-9:
                return PriceAboveMax(f"spot is at {price:g} USD/h")
        if c.quota is not None and sum(m.alive for m in self._living()) + sum(taken.values()) >= c.quota:
            return QuotaExceeded(f"{c.quota} machines are all that this account may hold")
        room = self._room(lot, offer.market)
        if room is not None and room - taken[_key(request)] <= 0:
            self._told_by_refusal()
            return NoCapacity(f"{offer.pool} has none left")
        if offer.market is Market.SPOT and chance(self._seed, "launch", request.token).random() < c.launch_failure:
            self._told_by_refusal()
            return NoCapacity(f"{offer.pool} has none just now")
        return None

    def _told_by_refusal(self) -> None:
        self.on_news(News.MARKET)

    def _wrong_disk(self, request: LaunchRequest) -> str:
        if request.volume is None:
            return ""
        disk = self.disks.get(request.volume)
        if disk is None or disk.deleted_at is not None:
            return f"there is no disk {request.volume}"
        if disk.spec.zone != request.offer.zone:
            return f"disk {request.volume} is in {disk.spec.zone}"
        return f"disk {request.volume} is attached" if disk.attached_to is not None else ""

    def _allow(self) -> bool:
        """A bucket of launch calls that fills up again."""
        now, c = self._stage.now(), self.conditions
        self._allowance = min(self._allowance + (now - self._allowed_at) * c.calls_per_s, float(c.burst))
        self._allowed_at = now
        if self._allowance < 1.0:
            return False
        self._allowance -= 1.0
        return True

    def _launch(self, request: LaunchRequest) -> Launched:
        machine = self._made.get(request.token) or self._make(request)
        return Launched(request.token, machine.instance, machine.started_at, machine.price_usd_per_h)

    def _make(self, request: LaunchRequest) -> Machine:
        offer, now, number = request.offer, self._stage.now(), len(self.machines) + 1
        lot = self._lots[offer.zone, offer.machine.name]
        spot = offer.market is Market.SPOT
        price = lot.spot_usd_per_h(now) if spot else lot.on_demand_usd_per_h
        machine = Machine(InstanceId(f"i-{number:06d}"), number, lot, request, now, price)
        self.machines[machine.instance] = self._made[request.token] = machine
        self._held.setdefault(_key(request), {})[machine.instance] = machine
        if request.volume is not None:
            self.disks[request.volume].attached_to = machine.instance
        self._plan_end(machine, spot=spot)
        self.on_machine(machine)
        self.on_news(News.MARKET)
        return machine

    def _plan_end(self, machine: Machine, *, spot: bool) -> None:
        c = self.conditions
        if spot and c.max_life_s is not None:
            warn_s = max(c.max_life_s - c.notice_s, 0.0)
            machine.timers.append(self._stage.after(warn_s, lambda: self._outlived(machine)))
        if c.loss_per_h > 0:
            life_s = chance(self._seed, "life", machine.request.token).expovariate(c.loss_per_h) * 3600.0
            machine.timers.append(self._stage.after(life_s, lambda: self.end(machine, InstanceEnd.LOST)))

    def _outlived(self, machine: Machine) -> None:
        if not machine.doomed:
            self._warn(machine, NoticeKind.MAX_LIFE, self.conditions.notice_s, InstanceEnd.MAX_LIFE)

    def take_back(self, machine: Machine) -> None:
        """The vendor wants the machine back, with or without a warning."""
        c = self.conditions
        warned = c.notice_s > 0 and chance(self._seed, "notice", machine.request.token).random() < c.notice_chance
        if warned:
            self._warn(machine, NoticeKind.TERMINATE, c.notice_s, InstanceEnd.PREEMPTED)
        else:
            self.end(machine, InstanceEnd.PREEMPTED)

    def _warn(self, machine: Machine, kind: NoticeKind, left_s: float, end: InstanceEnd) -> None:
        machine.notice, machine.deadline = kind, self._stage.now() + left_s
        machine.timers.append(self._stage.after(left_s, lambda: self.end(machine, end)))
        self.on_notice(machine)
        self.on_news(News.LIST)

    def end(self, machine: Machine, why: InstanceEnd) -> None:
        """The machine is gone from now on."""
        if not machine.alive:
            return
        machine.ended_at, machine.end = self._stage.now(), why
        for call_off in machine.timers:
            call_off()
        machine.timers.clear()
        self._held[_key(machine.request)].pop(machine.instance, None)
        self._ended.append(machine)
        if machine.request.volume is not None:
            self.disks[machine.request.volume].attached_to = None
        self.on_end(machine)
        self.on_news(News.LIST)
        self.on_news(News.MARKET)

    def _living(self) -> list[Machine]:
        return [m for held in self._held.values() for m in held.values()]

    async def terminate(self, instances: Sequence[InstanceId]) -> None:
        """See ``Provider``."""
        await self._stage.sleep(self.conditions.end_s)
        for instance in instances:
            if instance in self.machines:
                self.end(self.machines[instance], InstanceEnd.OWNER)

    async def resources(self, deployment: DeploymentId) -> Sequence[ProviderResource]:
        """See ``Provider``."""
        while self._ended and (self._ended[0].ended_at or 0.0) < self._stage.now() - _LISTED_S:
            self._ended.popleft()
        listed = sorted((*self._living(), *self._ended), key=lambda m: m.number)
        machines = [_machine_row(m) for m in listed if m.request.deployment == deployment]
        price = self.conditions.disk_usd_per_gib_h
        return [*machines, *(_disk_row(d, price) for d in self.disks.values() if d.spec.deployment == deployment)]

    async def notices(self, deployment: DeploymentId) -> Sequence[Notice]:
        """See ``Provider``."""
        return [
            Notice(m.instance, m.notice, m.deadline)
            for m in self._living()
            if m.notice is not None and m.request.deployment == deployment
        ]

    # --- Disks, transfers, the meter --------------------------------------------------------------------------------

    async def ensure_volume(self, spec: VolumeSpec) -> VolumeId:
        """See ``Provider``."""
        await self._stage.sleep(self.conditions.answer_s)
        for disk in self.disks.values():
            if disk.deleted_at is None and (disk.spec.deployment, disk.spec.name) == (spec.deployment, spec.name):
                return disk.volume
        volume = VolumeId(f"v-{len(self.disks) + 1:06d}")
        self.disks[volume] = Disk(volume, spec, self._stage.now())
        self.on_news(News.LIST)
        return volume

    async def delete_volume(self, volume: VolumeId) -> None:
        """See ``Provider``."""
        await self._stage.sleep(self.conditions.answer_s)
        disk = self.disks.get(volume)
        if disk is None or disk.deleted_at is not None:
            return
        if disk.attached_to is not None:
            raise BadRequest(f"disk {volume} is attached to {disk.attached_to}")
        disk.deleted_at = self._stage.now()

    def transfer(self, machine: Machine, job: JobId, source: str, gigabytes: float) -> None:
        """A machine has read a checkpoint that lies in region ``source``."""
        target = machine.lot.region
        if source != target:
            price = self._tariff(source, target)
            deployment, at = machine.request.deployment, self._stage.now()
            self.transfers.append(Transfer(deployment, job, machine.instance, at, source, target, gigabytes, price))

    async def meter(self, deployment: DeploymentId) -> Sequence[Mapping[str, Any]]:
        """See ``ports.Metered``; transfers are charged as ``egress``."""
        return self.charges(deployment)

    def charges(self, deployment: DeploymentId) -> list[Charge]:
        """What ``meter`` gives."""
        now, price = self._stage.now(), self.conditions.disk_usd_per_gib_h
        charges = [compute_charge(m, now) for m in self.machines.values() if m.request.deployment == deployment]
        charges += [disk_charge(d, now, price) for d in self.disks.values() if d.spec.deployment == deployment]
        charges += [transfer_charge(t) for t in self.transfers if t.deployment == deployment]
        return charges


def _key(request: LaunchRequest) -> tuple[str, str, Market]:
    return request.offer.zone, request.offer.machine.name, request.offer.market


def _machine_row(m: Machine) -> ProviderResource:
    r = m.request
    return ProviderResource(
        ResourceKind.INSTANCE, m.instance, r.deployment, r.job, r.launch_no, r.token, r.offer.zone,
        r.offer.machine.name, r.offer.market, m.alive, m.started_at, m.ended_at, m.end,
        price_usd_per_h=m.price_usd_per_h,
    )  # fmt: skip


def _disk_row(d: Disk, usd_per_gib_h: float) -> ProviderResource:
    return ProviderResource(
        ResourceKind.VOLUME, d.volume, d.spec.deployment, d.spec.job, None, None, d.spec.zone, "", Market.ON_DEMAND,
        d.deleted_at is None, d.created_at, d.deleted_at, attached_to=d.attached_to,
        price_usd_per_h=d.spec.size_gib * usd_per_gib_h, size_gib=d.spec.size_gib,
    )  # fmt: skip
