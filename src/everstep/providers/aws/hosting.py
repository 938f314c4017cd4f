"""A server's own machine on EC2: one on demand, a disk that outlives it, a security group.

Found again by the tag ``everstep:server``. What it costs: the machine and the disk by AWS's price list, and the public
address (https://aws.amazon.com/vpc/pricing/: "Public IPv4 addresses, in use: $0.005 per hour").
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from everstep.model.errors import BadInput, BadRequest, NoCapacity, Problem, Throttled, Unreachable
from everstep.model.ids import InstanceId, VolumeId
from everstep.providers import boot_script, host_script
from everstep.providers.aws import pricing, tags
from everstep.providers.aws.calls import Calls
from everstep.providers.aws.errors import GONE, code_of
from everstep.providers.aws.market import VOLUME_TYPE, region_of
from everstep.providers.aws.settings import CPU_IMAGE
from everstep.providers.aws.user_data import LIMIT_BYTES
from everstep.providers.aws.volumes import Volumes
from everstep.providers.hosting import Host, Rates, Standing

ADDRESS_USD_PER_H = 0.005
_ALIVE = ("pending", "running", "stopping", "stopped")
REPEATS = 4
"""So often a launch is asked for whose answer does not come: the token makes it one launch."""
_GENERATIONS = 20
# boto3 on a test machine finds the machine's role at a metadata service that is not at 169.254.169.254.
_HERE = r"""
AWS_EC2_METADATA_SERVICE_ENDPOINT="${EVERSTEP_METADATA#*=}/"
export AWS_EC2_METADATA_SERVICE_ENDPOINT
more=" HOME=$HOME AWS_EC2_METADATA_SERVICE_ENDPOINT=$AWS_EC2_METADATA_SERVICE_ENDPOINT"
"""


class AwsHosting:
    """Implements ``Hosting``.

    Args:
        region: where.
        subnets: by zone; default: the default subnet of the zone.
        endpoint_url: where to call instead of AWS, for fakes.
        look_s: between two looks at something that changes.
        patience_s: how long anything may take.
        now: UTC seconds.
    """

    kind = "aws"

    def __init__(
        self,
        region: str,
        *,
        subnets: Mapping[str, str] | None = None,
        endpoint_url: str | None = None,
        look_s: float = 2.0,
        patience_s: float = 600.0,
        now: Callable[[], float] = time.time,
    ) -> None:
        if find_spec("boto3") is None:
            problem = Problem("provider", "aws", "needs boto3, which is not installed", "pip install 'everstep[aws]'")
            raise BadInput(problem)
        self.calls = Calls(endpoint_url=endpoint_url)
        self._region = region
        self._subnets = dict(subnets or {})
        self._look_s = look_s
        self._patience_s = patience_s
        self._now = now
        self._volumes = Volumes(self.calls, (region,), look_s=look_s, now=now)

    async def zone_for(self, machine: str) -> str:
        """See ``Hosting``: the first in order."""
        rows = await self.calls.pages(
            self._region,
            "describe_instance_type_offerings",
            "InstanceTypeOfferings",
            LocationType="availability-zone",
            Filters=[{"Name": "instance-type", "Values": [machine]}],
        )
        zones: list[str] = sorted(row["Location"] for row in rows if row["InstanceType"] == machine)
        if not zones:
            raise BadRequest(f"no zone of {self._region} has machines of type {machine!r}")
        return next((zone for zone in zones if zone in self._subnets), zones[0])

    async def rates(self, host: Host) -> Rates:
        """See ``Hosting``."""
        machine = await pricing.on_demand_usd_per_h(self.calls, self._region, [host.machine])
        per_gib = await pricing.disk_usd_per_gib_h(self.calls, self._region, VOLUME_TYPE)
        return Rates(
            machine.get(host.machine, 0.0), per_gib * host.disk_gib, ADDRESS_USD_PER_H, f"{pricing.SOURCE}, VPC page"
        )

    async def look(self, host: Host) -> Standing:
        """See ``Hosting``."""
        machines = await self._machines(host)
        alive = [m for m in machines if m["State"]["Name"] in _ALIVE]
        disk = await self._disk(host)
        found = Standing(
            disk="" if disk is None else disk["VolumeId"],
            disk_since=0.0 if disk is None else disk["CreateTime"].timestamp(),
            generation=host.generation,
        )
        if not alive:
            return found
        machine = max(alive, key=lambda m: (m["LaunchTime"], m["InstanceId"]))
        return Standing(
            machine=machine["InstanceId"],
            state=machine["State"]["Name"],
            address=machine.get("PublicIpAddress") or "",
            disk=found.disk,
            machine_since=machine["LaunchTime"].timestamp(),
            disk_since=found.disk_since,
            generation=host.generation,
        )

    async def ensure(self, host: Host) -> Standing:
        """See ``Hosting``. The disk first: the script names it."""
        if region_of(host.zone) != self._region:
            raise BadRequest(f"zone {host.zone!r} is not in {self._region}")
        group = await self._group(host) or await self._make_group(host)
        disk = await self._disk(host) or await self._make_disk(host)
        machine = await self.look(host)
        if machine.state in ("stopping", "stopped"):
            text = f"{machine.machine} is {machine.state}"
            raise BadRequest(f"{text}; start it (aws ec2 start-instances), or end it: everstep server down")
        instance, generation = machine.machine, host.generation
        if not instance:
            await self._free(host, disk["VolumeId"])
            instance, generation = await self._run(host, group["GroupId"], disk["VolumeId"])
        why = await self._volumes.attach_when_running(self._region, VolumeId(disk["VolumeId"]), InstanceId(instance))
        if why:
            raise NoCapacity(f"{instance} ended while it started: {why}")
        deadline = time.monotonic() + self._patience_s
        while True:
            machine = await self.look(host)
            if machine.machine == instance and machine.state == "running" and machine.address:
                break
            if time.monotonic() > deadline:
                fix = "its subnet gives none; name one that does under providers.aws.subnets"
                raise BadRequest(f"{instance} has no public address after {self._patience_s:.0f} s: {fix}")
            await asyncio.sleep(self._look_s)
        return Standing(
            instance,
            machine.state,
            machine.address,
            machine.disk,
            machine.machine_since,
            machine.disk_since,
            generation,
        )

    async def let_in(self, host: Host, ports: Sequence[int]) -> None:
        """See ``Hosting``."""
        group = await self._group(host)
        if group is None:
            return
        wanted = {(port, cidr) for port in ports for cidr in host.allow}
        there = {
            (int(rule["FromPort"]), cidr)
            for rule in group.get("IpPermissions", [])
            for cidr in (
                *(r["CidrIp"] for r in rule.get("IpRanges", [])),
                *(r["CidrIpv6"] for r in rule.get("Ipv6Ranges", [])),
            )
        }
        for operation, rules in (
            ("authorize_security_group_ingress", wanted - there),
            ("revoke_security_group_ingress", there - wanted),
        ):
            if rules:
                permissions = [_permission(port, cidr) for port, cidr in sorted(rules)]
                try:
                    await self.calls.ec2(self._region, operation, GroupId=group["GroupId"], IpPermissions=permissions)
                except BadRequest as error:
                    if code_of(error) not in ("InvalidPermission.Duplicate", "InvalidPermission.NotFound"):
                        raise

    async def remove(self, host: Host, *, disk: bool) -> None:
        """See ``Hosting``. Machines first: they hold the rest."""
        going = [m["InstanceId"] for m in await self._machines(host) if m["State"]["Name"] in _ALIVE]
        if going:
            await self.calls.ec2(self._region, "terminate_instances", InstanceIds=going)
        deadline = time.monotonic() + self._patience_s
        while any(m["State"]["Name"] != "terminated" for m in await self._machines(host)):
            if time.monotonic() > deadline:
                raise Throttled(f"{', '.join(going)} has not ended after {self._patience_s:.0f} s")
            await asyncio.sleep(self._look_s)
        while (group := await self._group(host)) is not None:
            try:
                await self.calls.ec2(self._region, "delete_security_group", GroupId=group["GroupId"])
            except BadRequest as error:
                if code_of(error) == "InvalidGroup.NotFound":
                    break
                if code_of(error) != "DependencyViolation" or time.monotonic() > deadline:
                    raise
            await asyncio.sleep(self._look_s)
        if disk:
            for volume in await self._disks(host):
                await self._volumes.delete(VolumeId(volume["VolumeId"]))

    def close(self) -> None:
        """See ``Hosting``."""
        self.calls.close()

    # --- the machine -------------------------------------------------------------------------------------------------

    async def _run(self, host: Host, group: str, disk: str) -> tuple[str, int]:
        """Starts one; a token whose machine has ended is followed by the next."""
        for generation in range(host.generation, host.generation + _GENERATIONS):
            try:
                machine = await self._run_once(f"evs-{host.id}-{generation}", self._parameters(host, group, disk))
            except BadRequest as error:
                if code_of(error) not in ("IdempotentInstanceTerminated", "IdempotentParameterMismatch"):
                    raise
                there = await self.look(host)
                if there.machine:
                    return there.machine, generation
                continue
            if machine["State"]["Name"] in _ALIVE:
                return str(machine["InstanceId"]), generation
        raise Throttled(f"EC2 still answers with machines of {host.name} that have ended", retry_after_s=60.0)

    async def _run_once(self, token: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        for left in reversed(range(REPEATS)):
            try:
                answer = await self.calls.ec2(self._region, "run_instances", ClientToken=token, **parameters)
            except Unreachable:
                if not left:
                    raise
                await asyncio.sleep(self._look_s)
                continue
            machine: dict[str, Any] = answer["Instances"][0]
            return machine
        raise AssertionError

    def _parameters(self, host: Host, group: str, disk: str) -> dict[str, Any]:
        # EBS shows a volume under its id without the dash.
        device = f"nvme-Amazon_Elastic_Block_Store_{disk.replace('-', '')}"
        user_data = host_script.script(
            host,
            first=["#cloud-boothook", "#!/bin/sh"],
            mount=boot_script.mounted(device, or_else="/dev/xvdf"),
            here=_HERE,
            limit=("EC2", LIMIT_BYTES),
        )
        marks = {tags.SERVER: host.id, "Name": host.name}
        parameters: dict[str, Any] = {
            "ImageId": host.image or CPU_IMAGE,
            "InstanceType": host.machine,
            "MinCount": 1,
            "MaxCount": 1,
            "UserData": user_data,
            "SecurityGroupIds": [group],
            "MetadataOptions": {"HttpTokens": "required", "HttpEndpoint": "enabled", "HttpPutResponseHopLimit": 1},
            "TagSpecifications": [tags.specification(kind, marks) for kind in ("instance", "volume")],
        }
        subnet = self._subnets.get(host.zone)
        if subnet is None:
            parameters["Placement"] = {"AvailabilityZone": host.zone}
        else:
            parameters["SubnetId"] = subnet
        if host.role:
            parameters["IamInstanceProfile"] = {"Name": host.role}
        return parameters

    async def _machines(self, host: Host) -> list[dict[str, Any]]:
        reservations = await self.calls.pages(
            self._region, "describe_instances", "Reservations", Filters=_filters(host)
        )
        return [i for r in reservations for i in r["Instances"]]

    # --- its disk ----------------------------------------------------------------------------------------------------

    async def _disks(self, host: Host) -> list[dict[str, Any]]:
        """Those that outlive machines: a machine's own one carries its tags too, and goes with it."""
        found = await self.calls.pages(self._region, "describe_volumes", "Volumes", Filters=_filters(host))
        return [
            v
            for v in sorted(found, key=lambda v: (v["CreateTime"], v["VolumeId"]))
            if v["State"] in ("creating", "available", "in-use") and tags.VOLUME in tags.of(v)
        ]

    async def _disk(self, host: Host) -> dict[str, Any] | None:
        return next(iter(await self._disks(host)), None)

    async def _make_disk(self, host: Host) -> dict[str, Any]:
        marks = {tags.SERVER: host.id, tags.VOLUME: "server", "Name": host.name}
        # The token is of an id that is never used again, so a repeat within a run cannot meet a deleted disk.
        return await self.calls.ec2(
            self._region,
            "create_volume",
            ClientToken=f"evd-{host.id}",
            AvailabilityZone=host.zone,
            Size=host.disk_gib,
            VolumeType=VOLUME_TYPE,
            TagSpecifications=[tags.specification("volume", marks)],
        )

    async def _free(self, host: Host, disk: str) -> None:
        """Returns when no machine holds the disk any more: one that was ended takes a moment."""
        deadline = time.monotonic() + self._patience_s
        while True:
            try:
                answer = await self.calls.ec2(self._region, "describe_volumes", VolumeIds=[disk])
                if answer["Volumes"] and answer["Volumes"][0]["State"] == "available":
                    return
            except BadRequest as error:
                if code_of(error) not in GONE:  # made a moment ago
                    raise
            if time.monotonic() > deadline:
                raise Throttled(f"{disk} of {host.name} is not free after {self._patience_s:.0f} s")
            await asyncio.sleep(self._look_s)

    # --- who may call ------------------------------------------------------------------------------------------------

    async def _group(self, host: Host) -> dict[str, Any] | None:
        found = await self.calls.pages(
            self._region,
            "describe_security_groups",
            "SecurityGroups",
            Filters=[{"Name": "group-name", "Values": [host.name]}],
        )
        return next((g for g in found if tags.of(g).get(tags.SERVER) == host.id), None)

    async def _make_group(self, host: Host) -> dict[str, Any]:
        marks = {tags.SERVER: host.id, "Name": host.name}
        parameters: dict[str, Any] = {
            "GroupName": host.name,
            "Description": "everstep server: who may call it",
            "TagSpecifications": [tags.specification("security-group", marks)],
        }
        subnet = self._subnets.get(host.zone)
        if subnet is not None:
            answer = await self.calls.ec2(self._region, "describe_subnets", SubnetIds=[subnet])
            parameters["VpcId"] = answer["Subnets"][0]["VpcId"]
        try:
            return await self.calls.ec2(self._region, "create_security_group", **parameters)
        except BadRequest as error:
            found = await self._group(host) if code_of(error) == "InvalidGroup.Duplicate" else None
            if found is None:
                raise
            return found


def _filters(host: Host) -> list[dict[str, Any]]:
    return [{"Name": f"tag:{tags.SERVER}", "Values": [host.id]}]


def _permission(port: int, cidr: str) -> dict[str, Any]:
    ranges = {"Ipv6Ranges": [{"CidrIpv6": cidr}]} if ":" in cidr else {"IpRanges": [{"CidrIp": cidr}]}
    return {"IpProtocol": "tcp", "FromPort": port, "ToPort": port, **ranges}
