"""What Compute Engine says there is: machines with their ends, disks, warnings. Read-your-writes over its lists."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from everstep.model.causes import InstanceEnd, NoticeKind
from everstep.model.ids import DeploymentId, InstanceId, JobId, LaunchToken
from everstep.model.offers import Market
from everstep.ports import Launched, LaunchRequest, Notice, ProviderResource, ResourceKind
from everstep.providers.gcp import disks as volumes
from everstep.providers.gcp import ends, naming
from everstep.providers.gcp.calls import Calls, Json
from everstep.providers.gcp.disks import Disks
from everstep.providers.gcp.groups import Groups
from everstep.providers.gcp.lives import planned_end
from everstep.providers.gcp.market import LEGACY_LIFE_S, instant, region_of

_OVER = ("TERMINATED", "STOPPED")
_UNBORN = ("PENDING", "PROVISIONING")
"""It has no room yet, may still come to nothing, and costs nothing: no machine for us, unless we know better."""
_INVISIBLE_S = 120.0
_REMEMBER_S = 7200.0
_UNEXPLAINED_S = 60.0
"""A machine that is missing in the list, and of whose end no operation tells, is believed to be there for so long."""
_LIFE_NOTICE_S = 600.0


class Listing:
    """The truth about a deployment, over all regions: two calls a look, more when something has ended or was placed."""

    def __init__(
        self,
        calls: Calls,
        disks: Disks,
        groups: Groups,
        *,
        disk_price: Callable[[str, str], Any],
        put_away: Callable[[Sequence[InstanceId]], Any],
        notice_s: float,
        legacy: bool,
        now: Callable[[], float],
    ) -> None:
        """Makes a list.

        Args:
            disk_price: coroutine function of region and disk type, USD per GiB and hour.
            put_away: told of machines that have stopped: nothing of them is needed, and their disks cost.
            notice_s: usual warning.
            legacy: spot machines live for 24 hours.
        """
        self._calls = calls
        self._disks = disks
        self._groups = groups
        self._disk_price = disk_price
        self._put_away = put_away
        self._notice_s = notice_s
        self._legacy = legacy
        self._now = now
        self._recent: dict[str, tuple[float, ProviderResource]] = {}
        self._alive: dict[str, ProviderResource] = {}
        self._ended: dict[str, ProviderResource] = {}
        self._missing_since: dict[str, float] = {}
        self._zone_of: dict[str, str] = {}
        self._looked_back: set[str] = set()
        self._void: dict[str, float] = {}

    # --- what this process did itself --------------------------------------------------------------------------------

    def started(self, request: LaunchRequest, launched: Launched) -> None:
        """Remembers a machine until the vendor's list shows it."""
        self._zone_of[launched.instance] = request.offer.zone
        if launched.instance in self._ended:
            return
        self._recent[launched.instance] = (self._now(), ProviderResource.of_launch(request, launched))

    def taken_back(self, name: str) -> None:
        """A machine that nobody was told of is being deleted: it is not shown, unless it stays.

        One that a list has shown meanwhile is somebody's already: its end is told as that of any other.
        """
        if name in self._alive:
            return
        self._void[name] = self._now()
        self._recent.pop(name, None)
        self._alive.pop(name, None)

    def zone(self, instance: str) -> str | None:
        """Where a machine is, if it was seen."""
        return self._zone_of.get(instance)

    def is_over(self, instance: str) -> bool:
        """Whether it is known to have ended."""
        return instance in self._ended

    # --- the lists ---------------------------------------------------------------------------------------------------

    async def resources(self, deployment: DeploymentId) -> list[ProviderResource]:
        """See ``Provider.resources``. A machine's own disk is part of it, and listed once it is left behind."""
        wanted = naming.filter_of(deployment)
        asked_at = self._now()
        machines, disks = await asyncio.gather(
            self._calls.everything("instances", "instances", filter=wanted),
            self._calls.everything("disks", "disks", filter=wanted),
        )
        # An instant of after the list: whatever is missing in it was over by then.
        now = self._now()
        self._void = {n: at for n, at in self._void.items() if now - at < _INVISIBLE_S}
        shown = {m["name"]: m for m in machines if m["status"] not in _UNBORN and m["name"] not in self._void}
        for name, machine in shown.items():
            self._zone_of[name] = naming.last(machine["zone"])
            self._recent.pop(name, None)
            self._missing_since.pop(name, None)
        there = {n: self._machine(m) for n, m in shown.items() if m["status"] not in _OVER and n not in self._ended}
        over = {n: m for n, m in shown.items() if m["status"] in _OVER}
        before = {n: r for n, r in self._alive.items() if r.deployment == deployment}
        before |= {n: r for n, (_, r) in self._recent.items() if r.deployment == deployment}
        missing = {n: r for n, r in before.items() if n not in there and n not in over}
        first = deployment not in self._looked_back
        if missing or any(n not in self._ended for n in over) or first:
            told = await self._calls.everything("global_operations", "operations", filter=ends.FILTER)
            operations = ends.by_machine(told)
            self._settle_over(over, operations)
            there |= self._settle_missing(missing, operations, now)
            unknown = {n: own for n, own in operations.items() if n not in shown and n not in before}
            if first and self._look_back(deployment, unknown, ends.births(told), now):
                self._looked_back.add(deployment)
        self._alive = {n: r for n, r in self._alive.items() if r.deployment != deployment} | there
        if over:
            await self._put_away([InstanceId(n) for n in over])
        found = [*there.values(), *self._remembered(deployment), *await self._volumes(deployment, disks, asked_at)]
        used = {naming.last(url) for m in machines for url in m.get("resourcePolicies", [])}
        return [*found, *(_group(p, deployment) for p in await self._groups.look(deployment, used))]

    async def notices(self, deployment: DeploymentId) -> list[Notice]:
        """See ``Provider.notices``; nothing is asked while no spot machine is known to live."""
        known = {n: r for n, (_, r) in self._recent.items()} | self._alive
        spot = {n: r for n, r in known.items() if r.deployment == deployment and r.market is Market.SPOT}
        if not spot:
            return []
        told = await self._calls.everything("global_operations", "operations", filter=ends.FILTER_PREEMPTED)
        found: dict[str, Notice] = {}
        for name, operations in ends.by_machine(told).items():
            at = instant(operations[-1].get("insertTime", ""))
            if name in spot and name not in self._ended and at is not None and at >= spot[name].started_at - 1.0:
                found[name] = Notice(InstanceId(name), NoticeKind.TERMINATE, at + self._notice_s)
        if self._legacy:
            for name, resource in spot.items():
                whose = {"deployment": resource.deployment, "job": resource.job or name}
                ends_at = planned_end(resource.started_at, LEGACY_LIFE_S, **whose)
                if name not in found and ends_at - self._now() < _LIFE_NOTICE_S:
                    found[name] = Notice(InstanceId(name), NoticeKind.MAX_LIFE, ends_at)
        return list(found.values())

    # --- ends --------------------------------------------------------------------------------------------------------

    def _settle_over(self, over: dict[str, Json], operations: dict[str, list[Json]]) -> None:
        """Machines that have stopped and are still there."""
        for name, machine in over.items():
            if name in self._ended:
                continue
            resource = self._machine(machine)
            at = instant(machine.get("lastStopTimestamp", "")) or self._now()
            self._end(resource, self._told(resource, operations, at) or ends.End(at, None))

    def _settle_missing(
        self, missing: dict[str, ProviderResource], operations: dict[str, list[Json]], now: float
    ) -> dict[str, ProviderResource]:
        """Machines that the list does not show. Those of whose end nothing tells are believed to be there a while."""
        staying = {}
        for name, resource in missing.items():
            # One that no list has shown yet may be missing because it is new, whatever has begun with it.
            new = name in self._recent
            told = self._told(resource, operations, float("inf") if new else now)
            if told is not None and told.at <= now:
                self._end(resource, told)
                continue
            since = self._missing_since.setdefault(name, now)
            if now - since < (_INVISIBLE_S if new else _UNEXPLAINED_S):
                staying[name] = resource
            else:
                self._end(resource, ends.End(max(since, resource.started_at), None))
        return staying

    def _look_back(
        self, deployment: DeploymentId, operations: dict[str, list[Json]], births: dict[str, float], now: float
    ) -> bool:
        """What ended before this process began, by the names of machines. Returns whether all that began is over."""
        settled = True
        for name, own in operations.items():
            whose = naming.whose(name)
            if whose is None or not whose.of(deployment) or name in self._ended:
                continue
            resource = ProviderResource(
                kind=ResourceKind.INSTANCE,
                id=name,
                deployment=deployment,
                job=whose.job,
                launch_no=None,
                token=whose.token,
                zone=naming.last(own[-1].get("zone", "")),
                machine_type="",
                market=Market.SPOT,
                alive=True,
                started_at=0.0,
            )
            # What was taken back before anybody was told of it is of no interest.
            mark = naming.request_id(name, "taken back")
            told = self._told(resource, operations, float("inf"))
            if told is None or any(o.get("clientOperationId") == mark for o in own):
                continue
            settled = settled and told.at <= now
            if told.at <= now < told.at + _REMEMBER_S:
                self._end(replace(resource, started_at=min(births.get(name, told.at), told.at)), told)
        return settled

    def _told(self, resource: ProviderResource, operations: dict[str, list[Json]], at: float) -> ends.End | None:
        return ends.end_of(
            operations.get(resource.id, []),
            started_at=resource.started_at,
            market=resource.market,
            notice_s=self._notice_s,
            seen_gone_at=at,
        )

    def _end(self, resource: ProviderResource, end: ends.End) -> None:
        """The first answer stands: an end that moves is no fact."""
        ended_at = max(end.at, resource.started_at)
        self._ended[resource.id] = replace(resource, alive=False, ended_at=ended_at, end=end.why)
        self._recent.pop(resource.id, None)
        self._missing_since.pop(resource.id, None)

    def _remembered(self, deployment: DeploymentId) -> list[ProviderResource]:
        now = self._now()
        for name, resource in list(self._ended.items()):
            if now - (resource.ended_at or now) > _REMEMBER_S:
                del self._ended[name]
                self._zone_of.pop(name, None)
        return [r for r in self._ended.values() if r.deployment == deployment]

    # --- one thing ---------------------------------------------------------------------------------------------------

    def _machine(self, machine: Json) -> ProviderResource:
        labels = naming.of(machine)
        scheduling = machine.get("scheduling", {})
        spot = scheduling.get("provisioningModel") == "SPOT" or scheduling.get("preemptible", False)
        at = instant(machine.get("lastStartTimestamp", "")) or instant(machine.get("creationTimestamp", ""))
        return ProviderResource(
            kind=ResourceKind.INSTANCE,
            id=machine["name"],
            deployment=DeploymentId(labels[naming.DEPLOYMENT]),
            job=JobId(labels[naming.JOB]) if naming.JOB in labels else None,
            launch_no=int(labels[naming.LAUNCH]) if labels.get(naming.LAUNCH, "").isdigit() else None,
            token=LaunchToken(labels[naming.TOKEN]) if naming.TOKEN in labels else None,
            zone=naming.last(machine["zone"]),
            machine_type=_type_of(machine),
            market=Market.SPOT if spot else Market.ON_DEMAND,
            alive=True,
            started_at=at if at is not None else self._now(),
            price_usd_per_h=naming.price_of(labels),
        )

    async def _volumes(self, deployment: DeploymentId, disks: list[Json], asked_at: float) -> list[ProviderResource]:
        listed = {d["name"] for d in disks}
        mine = naming.filter_of(deployment).partition('"')[2].rstrip('"')
        disks = disks + [
            d
            for d in self._disks.recent(asked_at)
            if d["name"] not in listed and naming.of(d).get(naming.DEPLOYMENT) == mine
        ]
        found = []
        for disk in disks:
            self._disks.seen(disk)
            labels = naming.of(disk)
            users = [naming.last(u) for u in disk.get("users", [])]
            if naming.VOLUME not in labels and users:
                continue  # goes with its machine
            zone = naming.last(disk["zone"])
            usd = await self._disk_price(region_of(zone), naming.last(disk["type"]))
            size_gib = float(disk["sizeGb"])
            found.append(
                ProviderResource(
                    kind=ResourceKind.VOLUME,
                    id=volumes.id_of(disk),
                    deployment=deployment,
                    job=JobId(labels[naming.JOB]) if naming.JOB in labels else None,
                    launch_no=None,
                    token=None,
                    zone=zone,
                    machine_type="",
                    market=Market.ON_DEMAND,
                    alive=disk.get("status") != "DELETING",
                    started_at=instant(disk.get("creationTimestamp", "")) or self._now(),
                    attached_to=InstanceId(users[0]) if users else None,
                    price_usd_per_h=usd * size_gib,
                    size_gib=size_gib,
                )
            )
        return found


def _group(policy: Json, deployment: DeploymentId) -> ProviderResource:
    """A placement policy: it costs nothing, and must not stay either."""
    labels = naming.group_labels(policy)
    return ProviderResource(
        kind=ResourceKind.GROUP,
        id=policy["name"],
        deployment=deployment,
        job=JobId(labels[naming.JOB]) if naming.JOB in labels else None,
        launch_no=None,
        token=None,
        zone=naming.last(policy["region"]),
        machine_type="",
        market=Market.ON_DEMAND,
        alive=True,
        started_at=instant(policy.get("creationTimestamp", "")) or 0.0,
    )


def _type_of(machine: Json) -> str:
    """``n1-standard-8+T4:1``: the machine type with what is attached to it, as offers name it."""
    from everstep.providers.gcp.accelerators import NAMES

    kind = naming.last(machine["machineType"])
    attached = machine.get("guestAccelerators", [])
    if not attached or not kind.startswith("n1-"):
        return kind
    name = naming.last(attached[0]["acceleratorType"])
    return f"{kind}+{NAMES.get(name, name)}:{attached[0]['acceleratorCount']}"


__all__ = ["InstanceEnd", "Listing"]
