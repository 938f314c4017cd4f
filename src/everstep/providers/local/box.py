"""The rules of the box: who gets a machine, who loses it, what disks may do. Synchronous; time is an argument.

Processes, sockets and threads are the daemon's business: the box tells what must be ended (``due``) and is told what
has ended (``ended``). Every change is on disk before anybody hears of it.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from everstep.model.causes import InstanceEnd, NoticeKind
from everstep.model.errors import (
    PROVIDER_ERRORS,
    BadRequest,
    NoCapacity,
    PriceAboveMax,
    ProviderError,
    QuotaExceeded,
)
from everstep.model.handshake import BOOT_AGENT_SHA256
from everstep.model.ids import DeploymentId, InstanceId, JobId, LaunchToken, VolumeId
from everstep.model.offers import Market, Offer
from everstep.ports import Launched, LaunchRequest, Notice, ProviderResource, ResourceKind, VolumeSpec
from everstep.providers.local import meter
from everstep.providers.local.state import InstanceRecord, State, VolumeRecord
from everstep.providers.local.supply import SupplyBook

#: An ended machine is listed this long, as clouds do.
LISTED_AFTER_END_S = 2 * 3600.0
#: 127.A.x.y: the number of an instance gives x and y.
_ADDRESSES = 254 * 254


class Machines(Protocol):
    """Makes the processes of an instance."""

    def start(self, record: InstanceRecord, user_data: dict[str, str]) -> InstanceRecord:
        """Starts it and returns the record with pid and ports filled in; OSError if that fails."""
        ...

    def report(self, record: InstanceRecord, line: str) -> None:
        """Adds a line to its console output."""
        ...


@dataclass(frozen=True, slots=True)
class Due:
    """A machine whose time is up, and why."""

    record: InstanceRecord
    end: InstanceEnd


class Box:
    """One cloud.

    Args:
        state: what it remembers.
        book: what it sells.
        machines: starts processes.
        slow_boots: seconds of boot for the next launches, per zone (``""`` = any): faults on command.
    """

    def __init__(self, state: State, book: SupplyBook, machines: Machines, home: Path) -> None:
        self.state = state
        self.book = book
        self.machines = machines
        self.home = home
        self.slow_boots: list[tuple[str, float]] = []

    # --- machines ----------------------------------------------------------------------------------------------------

    def offers(self, query: Any, now: float) -> list[Offer]:
        """What is sold now."""
        return self.book.offers(query, self.state.living.values(), now)

    def launch(
        self, requests: Sequence[LaunchRequest], *, all_or_nothing: bool, now: float
    ) -> list[Launched | ProviderError]:
        """Starts machines; see ``ports.Provider.launch``."""
        self._begin_market(now)
        answers: list[Launched | ProviderError] = []
        planned: list[tuple[int, InstanceRecord, LaunchRequest]] = []
        for request in requests:
            try:
                known = self._known(request)
                record = known or self._plan(request, [p for _, p, _ in planned], now)
                if known is None and not any(p.token == record.token for _, p, _ in planned):
                    planned.append((len(answers), record, request))
                answers.append(_launched(record))
            except ProviderError as error:
                if all_or_nothing:
                    raise
                answers.append(error)
        changes: list[InstanceRecord | VolumeRecord] = [record for _, record, _ in planned]
        for record in (record for _, record, _ in planned if record.volume):
            changes.append(replace(self.state.volumes[record.volume or ""], attached_to=record.id))
        if changes:
            self.state.save(*changes)
        for _, record, request in planned:
            self._start(record, request)
        return answers

    def _start(self, record: InstanceRecord, request: LaunchRequest) -> None:
        try:
            self.state.save_soon(self.machines.start(record, dict(request.user_data)))
        except OSError as error:
            # The vendor took the order and the machine never came up: clouds answer with a dead machine.
            self.machines.report(record, f"cannot start the machine: {error}")
            self.ended(record.id, InstanceEnd.BOOT_FAILED, record.started_at)

    def _known(self, request: LaunchRequest) -> InstanceRecord | None:
        record = self.state.by_token.get(request.token)
        if record is not None and record.params != _digest(request):
            raise BadRequest(f"token {request.token} was used with other parameters")
        return record

    def _plan(self, request: LaunchRequest, planned: list[InstanceRecord], now: float) -> InstanceRecord:
        for twin in planned:
            if twin.token == request.token:
                if twin.params != _digest(request):
                    raise BadRequest(f"token {request.token} comes twice with different parameters")
                return twin
        self._fail_as_told(request.offer)
        offer, held = request.offer, [*self.state.living.values(), *planned]
        if not request.token or len(request.token) > 64 or not request.token.isascii():
            raise BadRequest("a token has 1 to 64 ASCII characters")
        quote = self.book.quote(offer.zone, offer.market, offer.machine.name, held, now)
        if quote is None:
            raise BadRequest(f"there is no {offer.market} {offer.machine.name} in zone {offer.zone}")
        if request.volume is not None:
            self._check_attachable(request.volume, offer.zone, request.deployment, planned)
        alive = sum(r.alive for r in held)
        if self.book.config.quota is not None and alive >= self.book.config.quota:
            raise QuotaExceeded(f"the account holds {alive} machines, its quota is {self.book.config.quota}")
        limit = request.max_price_usd_per_h
        if offer.market is Market.SPOT and limit is not None and quote.price_usd_per_h > limit:
            raise PriceAboveMax(f"the spot price in {offer.zone} is {quote.price_usd_per_h} USD/h, above {limit}")
        if quote.available is not None and quote.available < 1:
            raise NoCapacity(f"no {offer.market} {offer.machine.name} left in {offer.zone}")
        return self._record(request, quote.price_usd_per_h, len(planned), now)

    def _record(self, request: LaunchRequest, price_usd_per_h: float, planned: int, now: float) -> InstanceRecord:
        config, offer = self.book.config, request.offer
        number = self._free_number(planned)
        ends = offer.market is Market.SPOT and config.max_life_s is not None
        return InstanceRecord(
            id=f"i-{secrets.token_hex(6)}",
            token=request.token,
            params=_digest(request),
            deployment=request.deployment,
            job=request.job,
            launch_no=request.launch_no,
            zone=offer.zone,
            machine_type=offer.machine.name,
            market=offer.market.value,
            price_usd_per_h=price_usd_per_h,
            granularity_s=config.billing.granularity_s,
            minimum_s=config.billing.minimum_s,
            free_if_reclaimed_within_s=config.billing.free_if_reclaimed_within_s,
            time_scale=config.billing.time_scale,
            number=number,
            address=self._address(number),
            started_at=now,
            boot_s=self._boot_s(offer.zone),
            stop_grace_s=config.stop_grace_s,
            max_life_at=now + config.max_life_s if ends and config.max_life_s is not None else None,
            volume=request.volume,
        )

    def terminate(self, instances: Iterable[str], now: float) -> None:
        """The owner wants them gone; what is unknown or already going is left alone."""
        records = [self.state.instances.get(i) for i in instances]
        going = [replace(r, stop_by=now + r.stop_grace_s) for r in records if r and r.alive and r.stop_by is None]
        if going:
            self.state.save(*going)

    def resources(self, deployment: str, now: float) -> list[ProviderResource]:
        """Everything of a deployment that costs, and what ended lately."""
        found = []
        for r in self.state.instances.values():
            if r.deployment == deployment and (r.ended_at is None or now - r.ended_at <= LISTED_AFTER_END_S):
                found.append(_instance_resource(r))
        for v in self.state.volumes.values():
            if v.deployment == deployment and (v.deleted_at is None or now - v.deleted_at <= LISTED_AFTER_END_S):
                found.append(_volume_resource(v))
        return found

    # --- ends --------------------------------------------------------------------------------------------------------

    def warn(self, record: InstanceRecord, kind: NoticeKind, now: float, deadline: float | None) -> InstanceRecord:
        """Puts a notice in force; one that ends the machine is not replaced by another."""
        if record.doomed and record.notice is not None:
            return record
        record = replace(record, notice=kind, noticed_at=now, deadline=deadline)
        self.state.save_soon(record)
        return record

    def advance(self, now: float) -> list[Due]:
        """Lets the market and the clocks act: notices first, then the machines whose time is up."""
        for record in self.book.surplus(self.state.living.values(), now):
            self.warn(record, NoticeKind.TERMINATE, now, now + self.book.config.notice_s)
        for record in list(self.state.living.values()):
            life = record.max_life_at
            if not record.doomed and life is not None and now >= life - self.book.config.notice_s:
                self.warn(record, NoticeKind.MAX_LIFE, now, life)
        return [due for r in self.state.living.values() if (due := self.due(r, now)) is not None]

    def due(self, record: InstanceRecord, now: float) -> Due | None:
        """Whether and why a machine must end now."""
        if not record.alive:
            return None
        if record.dead_at is not None:
            # An owner who gives it up before the vendor noticed does not change what happened.
            revealed = record.stop_by is not None or (record.reveal_at is not None and now >= record.reveal_at)
            return Due(record, InstanceEnd.LOST) if revealed else None
        if record.stop_by is not None:
            return Due(record, InstanceEnd.OWNER)
        if record.deadline is not None and now >= record.deadline:
            if record.notice is NoticeKind.TERMINATE:
                return Due(record, InstanceEnd.PREEMPTED)
            if record.notice is NoticeKind.MAX_LIFE:
                return Due(record, InstanceEnd.MAX_LIFE)
        return None

    def next_wake(self, now: float) -> float | None:
        """UTC seconds of the next thing that happens by itself; None = nothing will."""
        times = [self.book.next_change(self.state.living.values(), now)]
        for record in self.state.living.values():
            if record.dead_at is not None:
                times.append(record.reveal_at)
            elif record.doomed:
                times.append(record.deadline)
            elif record.max_life_at is not None:
                times.append(record.max_life_at - self.book.config.notice_s)
        # What lies behind has been acted upon already; looking at it again at once would be a busy loop.
        return min((t for t in times if t is not None and t > now), default=None)

    def ended(self, instance: str, end: InstanceEnd, now: float) -> None:
        """No process of it is left: the bill stops, its disk is free again."""
        record = self.state.instances[instance]
        if not record.alive:
            return
        at = record.dead_at if end is InstanceEnd.LOST and record.dead_at is not None else now
        free = [replace(v, attached_to=None) for v in self.state.volumes.values() if v.attached_to == instance]
        self.state.save_soon(replace(record, ended_at=at, end=end), *free)

    # --- disks -------------------------------------------------------------------------------------------------------

    def ensure_volume(self, spec: VolumeSpec, now: float) -> VolumeId:
        """The disk of that name in that zone; names are per deployment and zone, as on GCE."""
        if spec.zone not in self.book.config.zones:
            raise BadRequest(f"there is no zone {spec.zone}")
        if not spec.size_gib > 0:
            raise BadRequest(f"a disk of {spec.size_gib} GiB cannot be made")
        for v in self.state.volumes.values():
            if (v.deployment, v.name, v.zone, v.deleted_at) == (spec.deployment, spec.name, spec.zone, None):
                if (v.job, v.size_gib) != (spec.job, spec.size_gib):
                    raise BadRequest(f"disk {spec.name} is there, of job {v.job} with {v.size_gib} GiB")
                return VolumeId(v.id)
        volume = VolumeRecord(
            id=f"vol-{secrets.token_hex(6)}",
            deployment=spec.deployment,
            job=spec.job,
            name=spec.name,
            zone=spec.zone,
            size_gib=spec.size_gib,
            usd_per_gib_h=self.book.config.disk_usd_per_gib_h,
            time_scale=self.book.config.billing.time_scale,
            created_at=now,
        )
        self.volume_folder(volume.id).mkdir(parents=True, exist_ok=True)
        self.state.save(volume)
        return VolumeId(volume.id)

    def delete_volume(self, volume: str, now: float) -> bool:
        """Whether there is something to remove; raises BadRequest while a machine has it."""
        record = self.state.volumes.get(volume)
        if record is None or record.deleted_at is not None:
            return False
        if record.attached_to is not None:
            raise BadRequest(f"disk {volume} is attached to {record.attached_to}")
        self.state.save(replace(record, deleted_at=now))
        return True

    def volume_folder(self, volume: str) -> Path:
        """Where the bytes of a disk are."""
        return self.home / "volumes" / volume

    def _check_attachable(self, volume: str, zone: str, deployment: str, planned: list[InstanceRecord]) -> None:
        record = self.state.volumes.get(volume)
        if record is None or record.deleted_at is not None or record.deployment != deployment:
            raise BadRequest(f"there is no disk {volume}")
        if record.zone != zone:
            raise BadRequest(f"disk {volume} is in zone {record.zone} and cannot be attached in {zone}")
        holder = record.attached_to or next((p.id for p in planned if p.volume == volume), None)
        if holder is not None:
            raise BadRequest(f"disk {volume} is attached to {holder}")

    # --- the rest ----------------------------------------------------------------------------------------------------

    def notices(self, deployment: str) -> list[Notice]:
        """Warnings in force."""
        machines = (r for r in self.state.living.values() if r.deployment == deployment)
        return [Notice(InstanceId(r.id), r.notice, r.deadline) for r in machines if r.notice and r.dead_at is None]

    def meter(self, deployment: str, now: float) -> list[dict[str, Any]]:
        """Every charge, by the box's own arithmetic."""
        return meter.charges(self.state.instances.values(), self.state.volumes.values(), deployment, now)

    def _begin_market(self, now: float) -> None:
        if self.book.began_at is None:
            self.state.save(replace(self.state.facts, market_began_at=now))
            self.book.began_at = now

    def _fail_as_told(self, offer: Offer) -> None:
        facts, faults = self.state.facts, self.book.config.faults
        for index, fault in enumerate(faults):
            wanted = (fault.zone, fault.market, fault.machine)
            have = (offer.zone, offer.market.value, offer.machine.name)
            if facts.faults_left[index] > 0 and all(w in ("", h) for w, h in zip(wanted, have, strict=True)):
                left = [n - (i == index) for i, n in enumerate(facts.faults_left)]
                self.state.save(replace(facts, faults_left=left))
                text = f"{fault.error} in {offer.zone}, as the configuration wants (fail[{index}])"
                raise PROVIDER_ERRORS[fault.error](text, retry_after_s=fault.retry_after_s)

    def _boot_s(self, zone: str) -> float:
        for index, (where, seconds) in enumerate(self.slow_boots):
            if where in ("", zone):
                del self.slow_boots[index]
                return seconds
        return self.book.config.boot_s

    def _free_number(self, planned: int) -> int:
        used = {r.number for r in self.state.living.values()}
        highest = max((r.number for r in self.state.instances.values()), default=0)
        number = (highest + planned) % _ADDRESSES + 1
        while number in used:
            number = number % _ADDRESSES + 1
        return number

    def _address(self, number: int) -> str:
        # Two boxes on one computer should not share addresses: each has a network of its own, by its folder.
        network = 16 + hashlib.sha256(str(self.home).encode()).digest()[0] % 224
        return f"127.{network}.{(number - 1) // 254}.{(number - 1) % 254 + 1}"


def find(records: dict[str, InstanceRecord], instance: str) -> InstanceRecord:
    """The live machine of that id.

    Raises:
        BadRequest: there is none; the line names those there are.
    """
    record = records.get(instance)
    if record is None or not record.alive:
        live = ", ".join(r.id for r in records.values() if r.alive) or "none"
        raise BadRequest(f"there is no running instance {instance}; running: {live}")
    return record


def _launched(r: InstanceRecord) -> Launched:
    return Launched(LaunchToken(r.token), InstanceId(r.id), r.started_at, r.price_usd_per_h)


def _digest(request: LaunchRequest) -> str:
    """Identity of a launch's parameters. What an offer only shows (as-of time, availability) is no part, nor is the
    agent's digest: these machines do not fetch it, and another version of everstep may repeat a call.
    """
    offer = request.offer
    parts = [request.deployment, request.job, request.launch_no, offer.key, request.max_price_usd_per_h]
    told = sorted((name, text) for name, text in request.user_data.items() if name != BOOT_AGENT_SHA256)
    parts += [request.volume, request.disk_gib, told]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _instance_resource(r: InstanceRecord) -> ProviderResource:
    return ProviderResource(
        kind=ResourceKind.INSTANCE,
        id=r.id,
        deployment=DeploymentId(r.deployment),
        job=JobId(r.job),
        launch_no=r.launch_no,
        token=LaunchToken(r.token),
        zone=r.zone,
        machine_type=r.machine_type,
        market=Market(r.market),
        alive=r.alive,
        started_at=r.started_at,
        ended_at=r.ended_at,
        end=r.end,
        price_usd_per_h=r.price_usd_per_h,
    )


def _volume_resource(v: VolumeRecord) -> ProviderResource:
    return ProviderResource(
        kind=ResourceKind.VOLUME,
        id=v.id,
        deployment=DeploymentId(v.deployment),
        job=JobId(v.job),
        launch_no=None,
        token=None,
        zone=v.zone,
        machine_type="",
        market=Market.ON_DEMAND,
        alive=v.deleted_at is None,
        started_at=v.created_at,
        ended_at=v.deleted_at,
        attached_to=InstanceId(v.attached_to) if v.attached_to else None,
        price_usd_per_h=v.usd_per_gib_h * v.size_gib,
        size_gib=v.size_gib,
    )
