"""What EC2 says there is: machines with their ends, disks, warnings. Read-your-writes over an eventual list."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from everstep.model.causes import InstanceEnd, NoticeKind
from everstep.model.errors import ProviderError
from everstep.model.ids import DeploymentId, InstanceId, JobId, LaunchToken
from everstep.model.offers import Market
from everstep.ports import Launched, LaunchRequest, Notice, ProviderResource, ResourceKind
from everstep.providers.aws import tags
from everstep.providers.aws.calls import Calls
from everstep.providers.aws.groups import Groups
from everstep.providers.aws.market import region_of
from everstep.providers.aws.volumes import Volumes

REASONS: Mapping[str, InstanceEnd] = {
    # https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_StateReason.html
    "Server.SpotInstanceTermination": InstanceEnd.PREEMPTED,
    "Server.SpotInstanceShutdown": InstanceEnd.PREEMPTED,
    "Server.InsufficientInstanceCapacity": InstanceEnd.BOOT_FAILED,
    "Client.InternalError": InstanceEnd.BOOT_FAILED,
    "Client.InvalidSnapshot.NotFound": InstanceEnd.BOOT_FAILED,
    "Client.VolumeLimitExceeded": InstanceEnd.BOOT_FAILED,
    "Client.InstanceInitiatedShutdown": InstanceEnd.OWNER,
    "Client.InstanceTerminated": InstanceEnd.OWNER,
    "Client.UserInitiatedHibernate": InstanceEnd.OWNER,
    "Client.UserInitiatedShutdown": InstanceEnd.OWNER,
}
"""Why a machine ended. Any other ``Server.*`` is the vendor's fault: LOST."""
ENDED = ("shutting-down", "terminated")
"""States from which a machine does not come back."""
_MARKED = "marked-for-termination"
"""https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-request-status.html"""
_INVISIBLE_S = 120.0
_REMEMBER_S = 7200.0
_REASON_TIME = re.compile(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (?:GMT|UTC)\)")
_PAGE = 1000

log = logging.getLogger(__name__)


class Listing:
    """The truth about a deployment, over all regions. Two calls per region and look, one more after an end."""

    def __init__(
        self,
        calls: Calls,
        volumes: Volumes,
        groups: Groups,
        regions: tuple[str, ...],
        *,
        disk_price: Callable[[str], Any],
        put_away: Callable[[Sequence[InstanceId]], Awaitable[None]],
        notice_s: float,
        now: Callable[[], float],
    ) -> None:
        """Makes a list.

        Args:
            disk_price: coroutine function of region, USD per GiB and hour.
            put_away: told of machines that were taken back and live: whoever wanted to end them did not get to it.
            notice_s: usual warning.
        """
        self._calls = calls
        self._volumes = volumes
        self._groups = groups
        self._regions = regions
        self._disk_price = disk_price
        self._put_away = put_away
        self._notice_s = notice_s
        self._now = now
        self._recent: dict[str, tuple[float, ProviderResource]] = {}
        self._ended: dict[str, ProviderResource] = {}
        self._region_of: dict[str, str] = {}
        self._spot_alive: set[str] = set()
        self._void: set[str] = set()

    # --- what this process did itself --------------------------------------------------------------------------------

    def started(self, request: LaunchRequest, launched: Launched) -> None:
        """Remembers a machine until the vendor's list shows it."""
        self._region_of[launched.instance] = region_of(request.offer.zone)
        if launched.instance in self._ended:
            return
        self._recent[launched.instance] = (self._now(), ProviderResource.of_launch(request, launched))

    def is_recent(self, instance: str) -> bool:
        """Whether it was started here a moment ago, so that "there is no such machine" means "not yet"."""
        since = self._recent.get(instance)
        return since is not None and self._now() - since[0] < _INVISIBLE_S

    def terminated(self, instance: str) -> None:
        """Remembers the end of a machine that the list does not show yet."""
        entry = self._recent.get(instance)
        if entry is not None and entry[1].alive:
            ended = replace(
                entry[1], alive=False, ended_at=max(self._now(), entry[1].started_at), end=InstanceEnd.OWNER
            )
            self._recent[instance] = (entry[0], ended)

    def taken_back(self, instance: str) -> None:
        """A machine that nobody was told of is being ended: it answers no launch."""
        self._void.add(instance)

    def region(self, instance: str) -> str | None:
        """Where a machine is, if it was seen."""
        return self._region_of.get(instance)

    # --- the lists ---------------------------------------------------------------------------------------------------

    async def resources(self, deployment: DeploymentId) -> list[ProviderResource]:
        """See ``Provider.resources``. A machine's own disk is part of it, and listed once it is left behind."""
        regions = await asyncio.gather(*(self._region(deployment, r) for r in self._regions))
        found = {r.id: r for region in regions for r in region}
        now = self._now()
        for instance, (at, resource) in list(self._recent.items()):
            if instance in found or now - at > _INVISIBLE_S:
                del self._recent[instance]
            elif resource.deployment == deployment and instance not in self._void:
                found[instance] = resource
        for instance, resource in list(self._ended.items()):
            if now - (resource.ended_at or now) > _REMEMBER_S:
                del self._ended[instance]
            elif resource.deployment == deployment:
                found.setdefault(instance, resource)
        await self._end_void([r for r in found.values() if r.alive and r.id in self._void])
        return list(found.values())

    async def _end_void(self, machines: Sequence[ProviderResource]) -> None:
        """Ends what was taken back and lives; what cannot be ended stays in the list, as nobody's."""
        try:
            await self._put_away([InstanceId(m.id) for m in machines])
        except ProviderError as error:
            log.warning("cannot end %s, taken back before: %s", ", ".join(m.id for m in machines), error)

    async def notices(self, deployment: DeploymentId) -> list[Notice]:
        """See ``Provider.notices``; nothing is asked while no spot machine is known to live."""
        regions = {self._region_of[i] for i in self._spot_alive | set(self._recent) if i in self._region_of}
        filters = [*tags.filters(deployment), {"Name": "status-code", "Values": [_MARKED]}]
        answers = await asyncio.gather(
            *(
                self._calls.pages(r, "describe_spot_instance_requests", "SpotInstanceRequests", Filters=filters)
                for r in sorted(regions)
            )
        )
        return [
            Notice(
                InstanceId(r["InstanceId"]),
                NoticeKind.TERMINATE,
                float(r["Status"]["UpdateTime"].timestamp()) + self._notice_s,
            )
            for requests in answers
            for r in requests
            if r.get("InstanceId") and r["InstanceId"] not in self._ended
        ]

    async def _region(self, deployment: DeploymentId, region: str) -> list[ProviderResource]:
        filters = tags.filters(deployment)
        asked_at = self._now()  # answers may be slow: what was new then is not in them
        reservations, disks = await asyncio.gather(
            self._calls.pages(region, "describe_instances", "Reservations", Filters=filters, MaxResults=_PAGE),
            self._calls.pages(region, "describe_volumes", "Volumes", Filters=filters, MaxResults=_PAGE),
        )
        machines = [i for reservation in reservations for i in reservation["Instances"]]
        newly_ended = [m for m in machines if m["State"]["Name"] in ENDED and m["InstanceId"] not in self._ended]
        reclaimed_at: dict[str, float] = {}
        if any(m.get("InstanceLifecycle") == "spot" for m in newly_ended):
            reclaimed_at = await self._spot_ends(deployment, region)
        found = []
        for machine in machines:
            self._region_of[machine["InstanceId"]] = region
            found.append(self._machine(machine, reclaimed_at))
        self._spot_alive = {i for i in self._spot_alive if self._region_of.get(i) != region}
        self._spot_alive |= {r.id for r in found if r.alive and r.market is Market.SPOT}
        listed = {v["VolumeId"] for v in disks}
        mine = [v for v in self._volumes.recent(asked_at) if region_of(v["AvailabilityZone"]) == region]
        disks += [v for v in mine if v["VolumeId"] not in listed and tags.of(v).get(tags.DEPLOYMENT) == deployment]
        if disks:
            usd = await self._disk_price(region)
            found += [r for v in disks if (r := _disk(v, usd)) is not None]
        used = {m["Placement"].get("GroupName", "") for m in machines if m["State"]["Name"] != "terminated"}
        groups = await self._groups.look(deployment, region, used)
        return found + [_group(g, region) for g in groups]

    async def _spot_ends(self, deployment: DeploymentId, region: str) -> dict[str, float]:
        """When each spot request was closed, by machine: EC2 gives no other time for the end of a reclaimed one."""
        requests = await self._calls.pages(
            region, "describe_spot_instance_requests", "SpotInstanceRequests", Filters=tags.filters(deployment)
        )
        return {
            r["InstanceId"]: float(r["Status"]["UpdateTime"].timestamp())
            for r in requests
            if r.get("InstanceId") and str(r["Status"].get("Code", "")).startswith("instance-terminated")
        }

    # --- one thing ---------------------------------------------------------------------------------------------------

    def _machine(self, machine: dict[str, Any], reclaimed_at: Mapping[str, float]) -> ProviderResource:
        remembered = self._ended.get(machine["InstanceId"])
        if remembered is not None:
            return remembered
        marks = tags.of(machine)
        spot = machine.get("InstanceLifecycle") == "spot"
        # A stopped machine still costs its disk, so it counts as alive: somebody has to end it.
        alive = machine["State"]["Name"] not in ENDED
        if tags.VOID in marks:
            self._void.add(machine["InstanceId"])
        # One that was taken back answers no launch: under its token another one may be on its way.
        token = None if machine["InstanceId"] in self._void else marks.get(tags.TOKEN)
        resource = ProviderResource(
            kind=ResourceKind.INSTANCE,
            id=machine["InstanceId"],
            deployment=DeploymentId(marks[tags.DEPLOYMENT]),
            job=JobId(marks[tags.JOB]) if tags.JOB in marks else None,
            launch_no=int(marks[tags.LAUNCH]) if marks.get(tags.LAUNCH, "").isdigit() else None,
            token=None if token is None else LaunchToken(token),
            zone=machine["Placement"]["AvailabilityZone"],
            machine_type=machine["InstanceType"],
            market=Market.SPOT if spot else Market.ON_DEMAND,
            alive=alive,
            started_at=machine["LaunchTime"].timestamp(),
            price_usd_per_h=_number(marks.get(tags.PRICE, "")),
        )
        if alive:
            return resource
        end = _end_of(str(machine.get("StateReason", {}).get("Code", "")))
        at = _reason_time(machine.get("StateTransitionReason", ""))
        if at is None or end is InstanceEnd.PREEMPTED:
            at = reclaimed_at.get(resource.id, at)
        known = at is not None
        ended_at = max(at if at is not None else self._now(), resource.started_at)
        resource = replace(resource, alive=False, ended_at=ended_at, end=end)
        # The first answer stands: EC2 forgets the machine after about an hour, and an end that moves is no fact.
        if known or machine["State"]["Name"] == "terminated":
            self._ended[resource.id] = resource
        return resource


def _disk(disk: dict[str, Any], usd_per_gib_h: float) -> ProviderResource | None:
    marks = tags.of(disk)
    attached = [a for a in disk.get("Attachments", []) if a.get("State") != "detached"]
    if tags.VOLUME not in marks and any(a.get("DeleteOnTermination") for a in attached):
        return None  # goes with its machine
    size_gib = float(disk["Size"])
    return ProviderResource(
        kind=ResourceKind.VOLUME,
        id=disk["VolumeId"],
        deployment=DeploymentId(marks[tags.DEPLOYMENT]),
        job=JobId(marks[tags.JOB]) if tags.JOB in marks else None,
        launch_no=None,
        token=None,
        zone=disk["AvailabilityZone"],
        machine_type="",
        market=Market.ON_DEMAND,
        alive=disk["State"] not in ("deleting", "deleted"),
        started_at=disk["CreateTime"].timestamp(),
        attached_to=InstanceId(attached[0]["InstanceId"]) if attached else None,
        price_usd_per_h=usd_per_gib_h * size_gib,
        size_gib=size_gib,
    )


def _group(group: dict[str, Any], region: str) -> ProviderResource:
    """A placement group: it costs nothing, and must not stay either."""
    marks = tags.of(group)
    return ProviderResource(
        kind=ResourceKind.GROUP,
        id=group["GroupName"],
        deployment=DeploymentId(marks[tags.DEPLOYMENT]),
        job=JobId(marks[tags.JOB]) if tags.JOB in marks else None,
        launch_no=None,
        token=None,
        zone=region,
        machine_type="",
        market=Market.ON_DEMAND,
        alive=True,
        started_at=0.0,  # EC2 does not tell
    )


def _end_of(reason: str) -> InstanceEnd | None:
    if reason in REASONS:
        return REASONS[reason]
    return InstanceEnd.LOST if reason.startswith("Server.") else None


def _reason_time(text: str) -> float | None:
    """UTC seconds of ``User initiated (2030-01-31 18:00:00 GMT)``."""
    found = _REASON_TIME.search(text or "")
    if found is None:
        return None
    return datetime.strptime(found[1], "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp()


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
