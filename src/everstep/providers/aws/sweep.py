"""Everything of ours in an account of AWS, of every deployment and in every region, and its end.

Found by the tags ``everstep:deployment`` and ``everstep:server``, whatever their values: instances, volumes, placement
groups, addresses and security groups. A volume that goes with its machine is part of it.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from everstep.model.errors import BadRequest, ProviderError, Throttled, Unauthorized
from everstep.model.ids import VolumeId
from everstep.model.offers import Market
from everstep.providers.aws import pricing, tags
from everstep.providers.aws.calls import Calls
from everstep.providers.aws.errors import GONE, code_of
from everstep.providers.aws.market import BILLING
from everstep.providers.aws.volumes import Volumes
from everstep.providers.leftovers import CallsHome, Found, Leftover, NotOurs, told

ADDRESS_USD_PER_H = 0.005
"""A public IPv4 address, in use or idle: https://aws.amazon.com/vpc/pricing/"""
_MARKS = (tags.DEPLOYMENT, tags.SERVER)
_OURS = [{"Name": "tag-key", "Values": ["everstep:*"]}]
"""A wildcard: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/Using_Filtering.html"""
_THERE = ["pending", "running", "stopping", "stopped"]
_GONE = (*GONE, "InvalidAllocationID.NotFound", "InvalidPlacementGroup.Unknown", "InvalidGroup.NotFound")
_HELD = ("InvalidPlacementGroup.InUse", "DependencyViolation", "InvalidIPAddress.InUse")
_PATIENCE_S = 300.0
_REGIONS = "see which regions the account has switched on"

Json = dict[str, Any]


class AwsSweeper:
    """See ``leftovers.Sweeper``. Four calls per region; a part that is not permitted is said, and left out."""

    def __init__(self, calls: Calls, configured: Sequence[str], *, look_s: float, now: Callable[[], float]) -> None:
        """Args: configured: regions that are looked at where the account does not tell; look_s: between two looks."""
        self._calls = calls
        self._configured = tuple(configured)
        self._look_s = look_s
        self._now = now

    async def look(self, regions: Sequence[str]) -> Found:
        """See ``Sweeper.look``."""
        unseen: list[str] = []
        wanted = tuple(regions) or await self._regions(unseen)
        answers = await asyncio.gather(*(self._region(r) for r in wanted), return_exceptions=True)
        errors = [a for a in answers if isinstance(a, BaseException)]
        if errors and (len(errors) == len(answers) or not all(isinstance(e, ProviderError) for e in errors)):
            raise errors[0]
        things: list[Leftover] = []
        for region, answer in zip(wanted, answers, strict=True):
            if isinstance(answer, BaseException):
                unseen.append(f"{region}: {answer}")
            else:
                things += answer.things
                unseen += answer.unseen
        return Found(tuple(things), tuple(unseen))

    async def calls_home(self, machine: Leftover) -> CallsHome | None:
        """See ``Sweeper.calls_home``: by its user data."""
        try:
            answer = await self._calls.ec2(
                machine.region, "describe_instance_attribute", InstanceId=machine.id, Attribute="userData"
            )
            text = base64.b64decode(answer.get("UserData", {}).get("Value", "")).decode("utf-8", "replace")
        except (ProviderError, binascii.Error):
            return None
        return told(text)

    async def end(self, thing: Leftover) -> None:
        """See ``Sweeper.end``."""
        ends = {
            "instance": self._end_instance,
            "volume": self._end_volume,
            "address": self._end_address,
            "group": self._end_group,
            "firewall": self._end_firewall,
        }
        await ends[thing.kind](thing)

    # --- looking -----------------------------------------------------------------------------------------------------

    async def _regions(self, unseen: list[str]) -> tuple[str, ...]:
        """Those the account has switched on: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/
        API_DescribeRegions.html.
        """
        try:
            answer = await self._calls.ec2(self._configured[0], "describe_regions")
        except Unauthorized as error:
            unseen.append(f"regions other than {', '.join(self._configured)}: cannot {_REGIONS}: {error}")
            return self._configured
        return tuple(sorted(r["RegionName"] for r in answer["Regions"]))

    async def _region(self, region: str) -> Found:
        unseen: list[str] = []

        async def part(what: str, operation: str, key: str, **more: Any) -> list[Json]:
            try:
                return await self._calls.pages(region, operation, key, Filters=[*_OURS, *more.pop("filters", [])])
            except ProviderError as error:
                unseen.append(f"{what} in {region}: {error}")
                return []

        states = [{"Name": "instance-state-name", "Values": _THERE}]
        # The first is not optional: credentials that cannot even list instances sweep nothing.
        reservations = await self._calls.pages(
            region, "describe_instances", "Reservations", Filters=[*_OURS, *states], MaxResults=1000
        )
        disks, addresses, groups, firewalls = await asyncio.gather(
            part("volumes", "describe_volumes", "Volumes"),
            part("addresses", "describe_addresses", "Addresses"),
            part("placement groups", "describe_placement_groups", "PlacementGroups"),
            part("security groups", "describe_security_groups", "SecurityGroups"),
        )
        machines = [i for r in reservations for i in r["Instances"]]
        usd = await self._disk_prices(region, disks)
        things = [self._machine(region, m) for m in machines]
        things += [t for d in disks if (t := self._disk(region, d, usd)) is not None]
        things += [_address(region, a) for a in addresses]
        things += [_group(region, g) for g in groups if g.get("State") not in ("deleting", "deleted")]
        things += [_firewall(region, g) for g in firewalls]
        return Found(tuple(t for t in things if t.deployment or t.is_server), tuple(unseen))

    async def _disk_prices(self, region: str, disks: Iterable[Json]) -> dict[str, float]:
        """USD per GiB and hour, by kind; without those that are not to be had."""
        found = {}
        for kind in sorted({d.get("VolumeType", "") for d in disks} - {""}):
            try:
                found[kind] = await pricing.disk_usd_per_gib_h(self._calls, region, kind)
            except ProviderError:
                continue
        return {kind: usd for kind, usd in found.items() if usd > 0}

    def _machine(self, region: str, machine: Json) -> Leftover:
        market = Market.SPOT if machine.get("InstanceLifecycle") == "spot" else Market.ON_DEMAND
        since = float(machine["LaunchTime"].timestamp())
        price = _number(tags.of(machine).get(tags.PRICE, ""))
        # Of a stopped machine nobody tells how long it ran.
        runs = machine["State"]["Name"] in ("pending", "running") and price is not None
        lived_s = max(self._now() - since, 0.0)
        return Leftover(
            kind="instance",
            id=machine["InstanceId"],
            region=region,
            zone=machine["Placement"]["AvailabilityZone"],
            what=machine["InstanceType"],
            market=str(market),
            state=machine["State"]["Name"],
            since=since,
            price_usd_per_h=price if runs else None,
            cost_usd=BILLING[market].cost_usd(lived_s, price, reclaimed=False) if runs and price is not None else None,
            **_marks(machine),
        )

    def _disk(self, region: str, disk: Json, prices: dict[str, float]) -> Leftover | None:
        attached = [a for a in disk.get("Attachments", []) if a.get("State") != "detached"]
        if any(a.get("DeleteOnTermination") for a in attached) or disk["State"] in ("deleting", "deleted"):
            return None  # goes with its machine, or has gone
        kind, size_gib = disk.get("VolumeType", ""), float(disk["Size"])
        since = float(disk["CreateTime"].timestamp())
        price = prices[kind] * size_gib if kind in prices else None
        hours = max(self._now() - since, 60.0) / 3600.0
        return Leftover(
            kind="volume",
            id=disk["VolumeId"],
            region=region,
            zone=disk["AvailabilityZone"],
            what=f"{size_gib:g} GiB {kind}",
            state=disk["State"],
            since=since,
            price_usd_per_h=price,
            cost_usd=None if price is None else price * hours,
            attached_to=attached[0]["InstanceId"] if attached else "",
            **_marks(disk),
        )

    # --- ending ------------------------------------------------------------------------------------------------------

    async def _end_instance(self, thing: Leftover) -> None:
        machine = await self._one(thing, "describe_instances", "Reservations", InstanceIds=[thing.id])
        if machine is None:
            return
        machine = machine["Instances"][0]
        _check(thing, machine)
        going = [
            m["Ebs"]["VolumeId"]
            for m in machine.get("BlockDeviceMappings", [])
            if m.get("Ebs", {}).get("DeleteOnTermination")
        ]
        if going:
            answer = await self._calls.ec2(thing.region, "describe_volumes", VolumeIds=going)
            foreign = [v["VolumeId"] for v in answer["Volumes"] if not _is_ours(v)]
            if foreign:
                raise NotOurs(f"{thing.id} would take {', '.join(foreign)} along, which is not ours: detach it first")
        await self._until_gone(thing, "terminate_instances", InstanceIds=[thing.id])

    async def _end_volume(self, thing: Leftover) -> None:
        disk = await self._one(thing, "describe_volumes", "Volumes", VolumeIds=[thing.id])
        if disk is not None:
            _check(thing, disk)
            volumes = Volumes(self._calls, (thing.region,), look_s=self._look_s, now=self._now)
            await volumes.delete(VolumeId(thing.id))

    async def _end_address(self, thing: Leftover) -> None:
        address = await self._one(thing, "describe_addresses", "Addresses", AllocationIds=[thing.id])
        if address is not None:
            _check(thing, address)
            if address.get("AssociationId"):
                association = address["AssociationId"]
                await self._until_gone(thing, "disassociate_address", AssociationId=association)
            await self._until_gone(thing, "release_address", AllocationId=thing.id)

    async def _end_group(self, thing: Leftover) -> None:
        group = await self._one(thing, "describe_placement_groups", "PlacementGroups", GroupNames=[thing.id])
        if group is not None:
            _check(thing, group)
            await self._until_gone(thing, "delete_placement_group", GroupName=thing.id)

    async def _end_firewall(self, thing: Leftover) -> None:
        group = await self._one(thing, "describe_security_groups", "SecurityGroups", GroupIds=[thing.id])
        if group is not None:
            _check(thing, group)
            await self._until_gone(thing, "delete_security_group", GroupId=thing.id)

    async def _one(self, thing: Leftover, operation: str, key: str, **named: Any) -> Json | None:
        """The thing as it is now; None if it is gone."""
        try:
            found: list[Json] = (await self._calls.ec2(thing.region, operation, **named)).get(key, [])
        except BadRequest as error:
            if code_of(error) in _GONE:
                return None
            raise
        return found[0] if found else None

    async def _until_gone(self, thing: Leftover, operation: str, **named: Any) -> None:
        """Asks until it is let go of: machines that end hold on to their group for a while."""
        deadline = self._now() + _PATIENCE_S
        while True:
            try:
                await self._calls.ec2(thing.region, operation, **named)
                return
            except BadRequest as error:
                if code_of(error) in _GONE:
                    return
                if code_of(error) not in _HELD:
                    raise
                if self._now() > deadline:
                    raise Throttled(f"{thing.id} is still in use: {error}", retry_after_s=60.0) from error
            await asyncio.sleep(self._look_s)


def _address(region: str, address: Json) -> Leftover:
    return Leftover(
        kind="address",
        id=address["AllocationId"],
        region=region,
        what=address.get("PublicIp", ""),
        state="in use" if address.get("AssociationId") else "idle",
        price_usd_per_h=ADDRESS_USD_PER_H,
        attached_to=address.get("InstanceId", ""),
        **_marks(address),
    )


def _group(region: str, group: Json) -> Leftover:
    return Leftover(
        kind="group",
        id=group["GroupName"],
        region=region,
        what=f"{group.get('Strategy', '')} placement group".strip(),
        state=group.get("State", ""),
        price_usd_per_h=0.0,
        cost_usd=0.0,
        **_marks(group),
    )


def _firewall(region: str, group: Json) -> Leftover:
    return Leftover(
        kind="firewall",
        id=group["GroupId"],
        region=region,
        what=f"security group {group.get('GroupName', '')}".strip(),
        price_usd_per_h=0.0,
        cost_usd=0.0,
        **_marks(group),
    )


def _marks(described: Json) -> dict[str, Any]:
    marks = tags.of(described)
    return {
        "deployment": marks.get(tags.DEPLOYMENT, ""),
        "job": marks.get(tags.JOB, ""),
        "is_server": tags.SERVER in marks,
    }


def _check(thing: Leftover, described: Json) -> None:
    """Raises NotOurs unless it still carries the tag that it was listed for."""
    if not _is_ours(described) or tags.of(described).get(tags.DEPLOYMENT, "") != thing.deployment:
        raise NotOurs(f"{thing.id} does not carry the tags any more that it was found by")


def _is_ours(described: Json) -> bool:
    return not tags.of(described).keys().isdisjoint(_MARKS)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
