"""The fake vendor's rules: what happens to machines and disks, and what is refused. No protocol here.

Every method takes parameters as boto3's caller writes them and returns what boto3's caller gets, or raises ``Refused``.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Any

from everstep.testing.ec2 import filters as by
from everstep.testing.ec2.books import Attachment, Disk, Machine, gmt
from everstep.testing.ec2.launch import Launches
from everstep.testing.ec2.market import Timing, World
from everstep.testing.ec2.paper import Paper, region_of
from everstep.testing.ec2.wire import Refused

_INSTANCE_ID = re.compile(r"i-[0-9a-f]{8}([0-9a-f]{9})?")
_VOLUME_ID = re.compile(r"vol-[0-9a-f]{8}([0-9a-f]{9})?")
_DEVICE = re.compile(r"/dev/(sd[f-p]|xvd[f-p])")
_FORGOTTEN_S = 3600.0
"""Ended machines are listed for about an hour: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/
terminating-instances.html"""


class Cloud:
    """One account. Not thread-safe: the server holds its lock around each call."""

    def __init__(self, world: World, timing: Timing, paper: Paper, *, rng: Random, now: Callable[[], float]) -> None:
        """Args: paper: regions, subnets, images and the catalog of types; rng: for ids; now: UTC seconds."""
        self.world = world
        self.timing = timing
        self.now = now
        self.paper = paper
        self.machines: dict[str, Machine] = {}
        self.disks: dict[str, Disk] = {}
        self._rng = rng
        self._volume_tokens: dict[tuple[str, str], tuple[str, str]] = {}
        self.launches = Launches(self)
        # Whether processes stand behind the machines (``power``): one is terminated when they are gone, not before.
        self.powered = False
        # Default subnets give every machine one; where processes stand behind it they can be called there (``power``).
        self.public_address: Callable[[Machine], str] = lambda m: m.address.replace("172.31.", "198.51.", 1)

    def new_id(self, prefix: str) -> str:
        """``i-0123...``: 17 hexadecimal digits."""
        return f"{prefix}-{self._rng.getrandbits(68):017x}"

    # --- time passes -------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Brings everything to the present: what was announced happens, what ended lets go of its disks."""
        now = self.now()
        for machine in self.machines.values():
            if machine.doom is not None and machine.doom[0] <= now and machine.ends_at is None:
                self._end(machine, machine.doom[0], "Server.SpotInstanceTermination", machine.doom[1])
        for (zone, kind), supply in self.world.supplies.items():
            for machine in self._spot(zone, kind):
                bid = machine.spot.max_price_usd_per_h if machine.spot is not None else 0.0
                if machine.doom is None and supply.price(now) > bid:
                    self.interrupt(machine.id, by_price=True)
            room = supply.room(now)
            if room is None:
                continue
            held = [m for m in self._spot(zone, kind) if m.doom is None]
            for machine in held[: max(len(held) - room, 0)]:
                self.interrupt(machine.id)
        for machine in self.machines.values():
            if machine.gone_at is not None and machine.gone_at <= now:
                self._let_go(machine, machine.gone_at)

    def _spot(self, zone: str, kind: str) -> list[Machine]:
        now = self.now()
        return [
            m
            for m in self.machines.values()
            if m.spot is not None and m.zone == zone and m.kind == kind and m.alive(now)
        ]

    def _end(self, machine: Machine, at: float, code: str, spot_code: str) -> None:
        machine.ends_at, machine.gone_at = at, None if self.powered else at + self.timing.shut_down_s
        machine.reason_code = code
        machine.reason = f"User initiated ({gmt(at)})" if code.startswith("Client.") else code
        if machine.spot is not None:
            machine.spot.code, machine.spot.updated_at, machine.spot.state = spot_code, at, "closed"

    def _let_go(self, machine: Machine, at: float) -> None:
        for name in machine.disks:
            disk = self.disks[name]
            if disk.attachment is not None and disk.attachment.machine == machine.id:
                if disk.attachment.delete_on_termination:
                    disk.deleted_at = at
                disk.attachment = None
        machine.disks = []

    # --- what the vendor does by itself ------------------------------------------------------------------------------

    def interrupt(self, instance: str, *, notice_s: float | None = None, by_price: bool = False) -> float:
        """Marks a spot machine for termination. Returns when it will end, UTC seconds."""
        machine = self.machines[instance]
        if machine.spot is None:
            raise ValueError(f"{instance} is no spot machine")
        begins = float(int(self.now()))
        deadline = begins + (self.timing.notice_s if notice_s is None else notice_s)
        machine.doom = (deadline, "instance-terminated-by-price" if by_price else "instance-terminated-no-capacity")
        machine.spot.code, machine.spot.updated_at = "marked-for-termination", begins
        return deadline

    def lose(self, instance: str) -> None:
        """The host is gone: no notice, and the machine is terminated at once."""
        machine = self.machines[instance]
        self._end(machine, self.now(), "Server.InternalError", "instance-terminated-by-service")
        if not self.powered:
            machine.gone_at = machine.ends_at

    # --- instances ---------------------------------------------------------------------------------------------------

    def run_instances(self, region: str, p: dict[str, Any]) -> dict[str, Any]:
        """``RunInstances``."""
        return self.launches.run(region, p)

    def describe_instances(self, region: str, p: dict[str, Any]) -> dict[str, Any]:
        """``DescribeInstances``; what has just been launched is not shown yet."""
        if p.get("InstanceIds") and "MaxResults" in p:
            message = "The parameter instancesSet cannot be used with the parameter maxResults"
            raise Refused("InvalidParameterCombination", message)
        now = self.now()
        shown = [
            m
            for m in self.machines.values()
            if m.region == region and m.visible_at <= now and (m.gone_at is None or now < m.gone_at + _FORGOTTEN_S)
        ]
        if p.get("InstanceIds"):
            wanted = {m.id for m in self.instances(region, p["InstanceIds"])}
            shown = [m for m in shown if m.id in wanted]
        described = by.matching((self._described(m) for m in shown), p.get("Filters", []), by.INSTANCE)
        page, more = _page(described, p, 5)
        reservations = [
            {
                "ReservationId": self.machines[d["InstanceId"]].reservation,
                "OwnerId": self.paper.account,
                "Instances": [d],
            }
            for d in page
        ]
        return {"Reservations": reservations, "NextToken": more}

    def check_group_unused(self, region: str, name: str) -> None:
        """Raises Refused while a machine is in the placement group, also one that is on its way out."""
        now = self.now()
        for machine in self.machines.values():
            if (machine.region, machine.placement_group) == (region, name) and machine.state(now) != "terminated":
                raise Refused("InvalidPlacementGroup.InUse", f"The placement group {name} is in use.")

    def describe_instance_attribute(self, region: str, p: dict[str, Any]) -> dict[str, Any]:
        """``DescribeInstanceAttribute``, of the user data alone."""
        (machine,) = self.instances(region, [p["InstanceId"]])
        if p["Attribute"] != "userData":
            raise Refused("UnsupportedOperation", f"this fake does not tell the attribute {p['Attribute']}")
        value = base64.b64encode(machine.user_data.encode()).decode()
        return {"InstanceId": machine.id, "UserData": {"Value": value} if value else {}}

    def terminate_instances(self, region: str, p: dict[str, Any]) -> dict[str, Any]:
        """``TerminateInstances``: all of them or, if one is unknown, none."""
        now, answers = self.now(), []
        for machine in self.instances(region, p["InstanceIds"]):
            before = machine.described(now)["State"]
            if machine.ends_at is None:
                self._end(machine, now, "Client.UserInitiatedShutdown", "instance-terminated-by-user")
            after = machine.described(now)["State"]
            answers.append({"InstanceId": machine.id, "PreviousState": before, "CurrentState": after})
        return {"TerminatingInstances": answers}

    def instances(self, region: str, ids: Sequence[str]) -> list[Machine]:
        """Machines by id, as a call may name them: known in the region and visible."""
        for one in ids:
            if not _INSTANCE_ID.fullmatch(one):
                raise Refused("InvalidInstanceID.Malformed", f'Invalid id: "{one}"')
        now = self.now()
        known = {m.id: m for m in self.machines.values() if m.region == region and m.visible_at <= now}
        missing = [one for one in ids if one not in known]
        if missing:
            plural = len(missing) > 1
            text = f"The instance ID{'s' if plural else ''} '{', '.join(missing)}' do{'' if plural else 'es'} not exist"
            raise Refused("InvalidInstanceID.NotFound", text)
        return [known[one] for one in dict.fromkeys(ids)]

    def check_unused(self, group: str) -> None:
        """Raises Refused for a security group that machines are still in; moto knows nothing of our machines."""
        now = self.now()
        if any(group in m.groups and m.state(now) != "terminated" for m in self.machines.values()):
            raise Refused("DependencyViolation", f"resource {group} has a dependent object")

    def _described(self, machine: Machine) -> dict[str, Any]:
        described = machine.described(self.now())
        if described["State"]["Name"] == "running":
            described["PublicIpAddress"] = self.public_address(machine)
        described["BlockDeviceMappings"] = [
            {
                "DeviceName": a.device,
                "Ebs": {"VolumeId": name, "Status": "attached", "DeleteOnTermination": a.delete_on_termination},
            }
            for name in machine.disks
            if (a := self.disks[name].attachment) is not None
        ]
        return described

    # --- tags --------------------------------------------------------------------------------------------------------

    def create_tags(self, region: str, p: dict[str, Any]) -> dict[str, Any]:
        """``CreateTags``, of machines, disks and spot requests."""
        tags = self.paper.tags_of([{"ResourceType": "instance", "Tags": p["Tags"]}])["instance"]
        targets: list[dict[str, str]] = []
        for name in p["Resources"]:
            if name.startswith("i-"):
                targets += [m.tags for m in self.instances(region, [name])]
            elif name.startswith("vol-"):
                targets += [d.tags for d in self.volumes(region, [name])]
            else:
                requests = [m.spot for m in self.machines.values() if m.spot is not None and m.spot.id == name]
                if not requests:
                    raise Refused("InvalidID", f"The ID '{name}' is not valid")
                targets += [r.tags for r in requests]
        for target in targets:
            target.update(tags)
        return {}

    # --- volumes -----------------------------------------------------------------------------------------------------

    def create_volume(self, region: str, p: dict[str, Any]) -> dict[str, Any]:
        """``CreateVolume``, idempotent by its token."""
        now, zone = self.now(), p.get("AvailabilityZone", "")
        if region_of(zone) != region or zone not in self.world.zones:
            raise Refused("InvalidZone.NotFound", f"The zone '{zone}' does not exist.")
        if "Size" not in p and "SnapshotId" not in p:
            raise Refused("MissingParameter", "The request must contain the parameter size/snapshot")
        token, digest = p.get("ClientToken", ""), self.paper.digest(p)
        if token:
            known = self._volume_tokens.get((region, token))
            if known is not None and known[0] != digest:
                raise Refused("IdempotentParameterMismatch", "The request parameters do not match an earlier request")
            if known is not None:
                return self.disks[known[1]].described(now)
        disk = self.new_disk(zone, int(p.get("Size", 8)), p.get("VolumeType", "gp2"), "volume", p)
        if token:
            self._volume_tokens[region, token] = (digest, disk.id)
        return disk.described(now)

    def new_disk(self, zone: str, size_gib: int, kind: str, tagged_as: str, p: dict[str, Any]) -> Disk:
        """Makes a disk with the tags that the request gives volumes."""
        now = self.now()
        tags = dict(self.paper.tags_of(p.get("TagSpecifications", [])).get(tagged_as, {}))
        ready = now + self.timing.hidden_s
        disk = Disk(self.new_id("vol"), zone, size_gib, kind, now, ready, ready, tags)
        self.disks[disk.id] = disk
        return disk

    def delete_volume(self, region: str, p: dict[str, Any]) -> dict[str, Any]:
        """``DeleteVolume``."""
        (disk,) = self.volumes(region, [p["VolumeId"]])
        if disk.attachment is not None:
            text = f"Volume {disk.id} is currently attached to {disk.attachment.machine}"
            raise Refused("VolumeInUse", text)
        disk.deleted_at = self.now()
        return {}

    def describe_volumes(self, region: str, p: dict[str, Any]) -> dict[str, Any]:
        """``DescribeVolumes``."""
        now = self.now()
        shown: Iterable[Disk] = (
            d
            for d in self.disks.values()
            if region_of(d.zone) == region and d.visible_at <= now and (d.deleted_at is None or now < d.deleted_at + 1)
        )
        if p.get("VolumeIds"):
            wanted = {d.id for d in self.volumes(region, p["VolumeIds"])}
            shown = [d for d in shown if d.id in wanted]
        described = by.matching((d.described(now) for d in shown), p.get("Filters", []), by.VOLUME)
        page, more = _page(described, p, 5)
        return {"Volumes": page, "NextToken": more}

    def attach_volume(self, region: str, p: dict[str, Any]) -> dict[str, Any]:
        """``AttachVolume``: same zone, one machine, a running one, a free device."""
        now = self.now()
        (disk,) = self.volumes(region, [p["VolumeId"]])
        (machine,) = self.instances(region, [p["InstanceId"]])
        if disk.zone != machine.zone:
            text = f"The volume '{disk.id}' is not in the same availability zone as instance '{machine.id}'"
            raise Refused("InvalidVolume.ZoneMismatch", text)
        if disk.attachment is not None:
            raise Refused("VolumeInUse", f"{disk.id} is already attached to an instance")
        if disk.state(now) != "available":
            raise Refused("IncorrectState", f"{disk.id} is not 'available'.")
        if machine.state(now) != "running":
            raise Refused("IncorrectState", f"Instance '{machine.id}' is not 'running'.")
        if not _DEVICE.fullmatch(p["Device"]):
            raise Refused("InvalidParameterValue", f"Value ({p['Device']}) for parameter device is invalid.")
        if any(a.device == p["Device"] for n in machine.disks if (a := self.disks[n].attachment) is not None):
            raise Refused("InvalidParameterValue", f"{p['Device']} is already in use")
        disk.attachment = Attachment(machine.id, p["Device"], now)
        machine.disks.append(disk.id)
        return {**disk.described(now)["Attachments"][0], "State": "attaching"}

    def detach_volume(self, region: str, p: dict[str, Any]) -> dict[str, Any]:
        """``DetachVolume``."""
        (disk,) = self.volumes(region, [p["VolumeId"]])
        if disk.attachment is None:
            raise Refused("IncorrectState", f"Volume '{disk.id}' is in the 'available' state.")
        attached = disk.described(self.now())["Attachments"][0]
        self.machines[disk.attachment.machine].disks.remove(disk.id)
        disk.attachment = None
        return {**attached, "State": "detaching"}

    def volumes(self, region: str, ids: Sequence[str]) -> list[Disk]:
        """Disks by id, as a call may name them."""
        now, found = self.now(), []
        for one in ids:
            if not _VOLUME_ID.fullmatch(one):
                raise Refused("InvalidVolumeID.Malformed", f"Value ({one}) for parameter volumeId is invalid.")
            disk = self.disks.get(one)
            if disk is None or region_of(disk.zone) != region or disk.visible_at > now or disk.deleted_at is not None:
                raise Refused("InvalidVolume.NotFound", f"The volume '{one}' does not exist.")
            found.append(disk)
        return found

    # --- spot --------------------------------------------------------------------------------------------------------

    def describe_spot_instance_requests(self, region: str, p: dict[str, Any]) -> dict[str, Any]:
        """``DescribeSpotInstanceRequests``."""
        now = self.now()
        shown = [m.spot for m in self.machines.values() if m.spot is not None and m.region == region]
        described = [r.described() for r in shown if self.machines[r.machine].visible_at <= now]
        if p.get("SpotInstanceRequestIds"):
            described = [d for d in described if d["SpotInstanceRequestId"] in p["SpotInstanceRequestIds"]]
        page, more = _page(by.matching(described, p.get("Filters", []), by.SPOT_REQUEST), p, 5)
        return {"SpotInstanceRequests": page, "NextToken": more}


def _page(items: list[dict[str, Any]], p: dict[str, Any], least: int) -> tuple[list[dict[str, Any]], str | None]:
    """One page and the token of the next. EC2 gives at most 1,000, and everything when not asked for pages."""
    size = p.get("MaxResults", len(items) or 1)
    if "MaxResults" in p and size < least:
        raise Refused("InvalidParameterValue", f"Value ( {size} ) for parameter maxResults is invalid.")
    size = min(size, 1000)
    try:
        first = int(p.get("NextToken") or 0)
    except ValueError:
        raise Refused("InvalidPaginationToken", "The pagination token is invalid") from None
    rest = first + size
    return items[first:rest], str(rest) if rest < len(items) else None
