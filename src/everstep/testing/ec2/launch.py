"""``RunInstances`` of the fake vendor: everything that EC2 checks before it gives a machine away."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any

from everstep.testing.ec2.books import Attachment, Machine, SpotRequest
from everstep.testing.ec2.paper import region_of
from everstep.testing.ec2.wire import Refused

if TYPE_CHECKING:
    from everstep.testing.ec2.cloud import Cloud

_USER_DATA_BYTES = 16_384


class Launches:
    """Launch requests and their tokens.

    Attributes:
        refuses_dead: a token whose machines have ended is refused; if not, it is answered with their state. EC2's
            pages know both.
    """

    def __init__(self, cloud: Cloud) -> None:
        self.refuses_dead = True
        self._cloud = cloud
        self._tokens: dict[tuple[str, str], tuple[str, list[str]]] = {}

    def run(self, region: str, p: dict[str, Any]) -> dict[str, Any]:
        """Launches, or answers what the same token was answered before."""
        cloud = self._cloud
        token, digest = p.get("ClientToken", ""), cloud.paper.digest(p)
        if len(token) > 64 or not token.isascii():
            raise Refused("InvalidParameterValue", "ClientToken: at most 64 ASCII characters")
        known = self._tokens.get((region, token)) if token else None
        if known is not None:
            return self._again(known, digest)
        p = cloud.paper.with_template(region, p)
        zone, subnet = self._place(region, p)
        kind = self._kind(region, zone, p)
        image = cloud.paper.image(region, p.get("ImageId", ""))
        groups = cloud.paper.groups(region, p.get("SecurityGroupIds", []))
        user_data = _user_data(p.get("UserData", ""))
        bid = self._bid(zone, kind, p)
        if p["MinCount"] < 1 or p["MinCount"] > p["MaxCount"]:
            raise Refused("InvalidParameterValue", "minCount is above maxCount or below 1")
        self._check_cluster(region, zone, kind, p)
        count = self._room(region, zone, kind, spot=bid is not None, wanted=(p["MinCount"], p["MaxCount"]))
        reservation = cloud.new_id("r")
        made = []
        for _ in range(count):
            machine = self._machine(p, kind, (region, zone, subnet), bid)
            machine.reservation, machine.image = reservation, image
            machine.groups, machine.user_data = groups, user_data
            made.append(machine)
        if token:
            self._tokens[region, token] = (digest, [m.id for m in made])
        return self._answer([m.id for m in made])

    def _again(self, known: tuple[str, list[str]], digest: str) -> dict[str, Any]:
        if known[0] != digest:
            text = "Arguments on this idempotent request are inconsistent with arguments used in previous request(s)."
            raise Refused("IdempotentParameterMismatch", text)
        now = self._cloud.now()
        if self.refuses_dead and all(not self._cloud.machines[i].alive(now) for i in known[1]):
            text = "The client token was used for an instance that has been terminated."
            raise Refused("IdempotentInstanceTerminated", text)
        return self._answer(known[1])

    def _answer(self, ids: list[str]) -> dict[str, Any]:
        cloud = self._cloud
        machines = [cloud.machines[i] for i in ids]
        described = [m.described(cloud.now()) for m in machines]
        return {"ReservationId": machines[0].reservation, "OwnerId": cloud.paper.account, "Instances": described}

    # --- what is asked for -------------------------------------------------------------------------------------------

    def _place(self, region: str, p: dict[str, Any]) -> tuple[str, str]:
        cloud = self._cloud
        placement = p.get("Placement", {})
        zone = placement.get("AvailabilityZone", "")
        if zone and (zone not in cloud.world.zones or region_of(zone) != region):
            raise Refused("InvalidParameterValue", f"Invalid availability zone: [{zone}]")
        if "SubnetId" in p:
            there = cloud.paper.zone_of_subnet(region, p["SubnetId"])
            if zone and there != zone:
                raise Refused("InvalidParameterValue", f"The subnet is in {there}, the placement in {zone}")
            zone = there
        if not zone:
            mine = [z for z, k in cloud.world.supplies if region_of(z) == region and k == p.get("InstanceType")]
            if not mine:
                raise Refused("InvalidParameterValue", f"Invalid value '{p.get('InstanceType')}' for InstanceType.")
            zone = min(mine)
        group = placement.get("GroupName")
        if group and not cloud.paper.has_group(region, group):
            raise Refused("InvalidPlacementGroup.Unknown", f"The Placement Group '{group}' is unknown.")
        return zone, p.get("SubnetId") or cloud.paper.default_subnet(region, zone)

    def _kind(self, region: str, zone: str, p: dict[str, Any]) -> str:
        kind = str(p.get("InstanceType", ""))
        if not any(k == kind and region_of(z) == region for z, k in self._cloud.world.supplies):
            raise Refused("InvalidParameterValue", f"Invalid value '{kind}' for InstanceType.")
        if (zone, kind) not in self._cloud.world.supplies:
            text = (
                f"Your requested instance type ({kind}) is not supported in your requested Availability Zone ({zone})."
            )
            raise Refused("Unsupported", text)
        return kind

    def _bid(self, zone: str, kind: str, p: dict[str, Any]) -> float | None:
        """Maximum price of a spot request, USD per hour; None for on demand."""
        market = p.get("InstanceMarketOptions", {})
        options = market.get("SpotOptions", {})
        tagged = {s.get("ResourceType") for s in p.get("TagSpecifications", [])}
        if market.get("MarketType") != "spot":
            if options or "spot-instances-request" in tagged:
                raise Refused("InvalidParameterCombination", "spot options or tags without the spot market")
            return None
        lasting = options.get("SpotInstanceType", "one-time") == "persistent"
        if options.get("InstanceInterruptionBehavior", "terminate") != "terminate" and not lasting:
            raise Refused("InvalidParameterCombination", "stop and hibernate need a persistent request")
        price = self._cloud.world.supplies[zone, kind].price(self._cloud.now())
        try:
            bid = float(options.get("MaxPrice") or self._cloud.world.on_demand_usd_per_h[kind])
        except ValueError:
            raise Refused("InvalidParameterValue", f"Value ({options['MaxPrice']}) for MaxPrice is invalid.") from None
        if bid < price:
            text = f"Your Spot request price of {bid} is lower than the minimum required Spot request fulfillment price"
            raise Refused("SpotMaxPriceTooLow", f"{text} of {price}.")
        return bid

    def _check_cluster(self, region: str, zone: str, kind: str, p: dict[str, Any]) -> None:
        """https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/placement-strategies.html; the codes are not documented,
        but that of a group without room."""
        cloud, name = self._cloud, p.get("Placement", {}).get("GroupName")
        if not name:
            return
        strategies = cloud.paper.type(kind).get("PlacementGroupInfo", {}).get("SupportedStrategies", [])
        if "cluster" not in strategies:
            text = f"Cluster placement groups are not supported by the '{kind}' instance type."
            raise Refused("InvalidParameterCombination", text)
        behaviour = p.get("InstanceMarketOptions", {}).get("SpotOptions", {}).get("InstanceInterruptionBehavior")
        if behaviour in ("stop", "hibernate"):
            raise Refused("InvalidParameterCombination", "stop and hibernate do not go with a placement group")
        now = cloud.now()
        inside = [
            m for m in cloud.machines.values() if (m.region, m.placement_group) == (region, name) and m.alive(now)
        ]
        if any(m.zone != zone for m in inside):
            raise Refused("InvalidParameterValue", f"A cluster placement group lies in one zone, and {name} in another")
        room = cloud.world.supplies[zone, kind].cluster_room
        if room is not None and len(inside) + p["MinCount"] > room:
            text = f"We currently do not have sufficient {kind} capacity in the placement group {name}."
            raise Refused("InsufficientInstanceCapacity", text, status=500)

    def _room(self, region: str, zone: str, kind: str, *, spot: bool, wanted: tuple[int, int]) -> int:
        """How many of the wanted (least, most) there are. Raises Refused for fewer than the least."""
        cloud = self._cloud
        now = cloud.now()
        held = [m for m in cloud.machines.values() if m.alive(now) and (m.spot is not None) == spot]
        quota = cloud.world.spot_vcpus if spot else cloud.world.on_demand_vcpus
        if quota is not None:
            used = sum(cloud.paper.vcpus(m.kind) for m in held if m.region == region)
            if used + wanted[0] * cloud.paper.vcpus(kind) > quota:
                code = "MaxSpotInstanceCountExceeded" if spot else "VcpuLimitExceeded"
                raise Refused(code, f"You have requested more vCPU capacity than your current limit of {quota} allows")
        supply = cloud.world.supplies[zone, kind]
        room = supply.room(now) if spot else supply.on_demand_room
        if room is None:
            return wanted[1]
        left = room - sum(1 for m in held if m.zone == zone and m.kind == kind)
        if left < wanted[0]:
            text = (
                f"We currently do not have sufficient {kind} capacity in the Availability Zone you requested ({zone})."
            )
            raise Refused("InsufficientInstanceCapacity", text, status=500)
        return min(left, wanted[1])

    # --- what is made ------------------------------------------------------------------------------------------------

    def _machine(self, p: dict[str, Any], kind: str, place: tuple[str, str, str], bid: float | None) -> Machine:
        cloud = self._cloud
        region, zone, subnet = place
        now = cloud.now()
        tags = cloud.paper.tags_of(p.get("TagSpecifications", []))
        name = cloud.new_id("i")
        spot = None
        price = cloud.world.on_demand_usd_per_h[kind]
        if bid is not None:
            marks = dict(tags.get("spot-instances-request", {}))
            spot = SpotRequest(cloud.new_id("sir"), name, now, bid, marks, updated_at=now)
            price = cloud.world.supplies[zone, kind].price(now)
        machine = Machine(
            id=name,
            reservation="",
            token=p.get("ClientToken", ""),
            kind=kind,
            zone=zone,
            region=region,
            image="",
            subnet=subnet,
            vpc=cloud.paper.vpc_of_subnet(region, subnet),
            groups=(),
            address=cloud.paper.address(len(cloud.machines)),
            spot=spot,
            price_usd_per_h=price,
            launched_at=now,
            runs_at=now + cloud.timing.boot_s,
            visible_at=now + cloud.timing.hidden_s,
            tags=dict(tags.get("instance", {})),
            user_data="",
            metadata_tokens=p.get("MetadataOptions", {}).get("HttpTokens", "optional"),
            placement_group=p.get("Placement", {}).get("GroupName", ""),
            profile=_profile(p.get("IamInstanceProfile", {})),
        )
        cloud.machines[name] = machine
        mappings = p.get("BlockDeviceMappings") or [{"DeviceName": "/dev/sda1", "Ebs": {}}]
        for mapping in mappings:
            ebs = mapping.get("Ebs", {})
            disk = cloud.new_disk(zone, int(ebs.get("VolumeSize", 8)), ebs.get("VolumeType", "gp3"), "volume", p)
            disk.attachment = Attachment(name, mapping["DeviceName"], now, ebs.get("DeleteOnTermination", True))
            disk.made_with = name
            machine.disks.append(disk.id)
        return machine


def _profile(named: dict[str, str]) -> str:
    if len(named) > 1:
        raise Refused("InvalidParameterCombination", "The parameter 'arn' may not be used with 'name'")
    return named.get("Name", "") or named.get("Arn", "").rpartition("/")[2]


def _user_data(text: str) -> str:
    try:
        raw = base64.b64decode(text, validate=True)
    except binascii.Error:
        raise Refused("InvalidUserData.Malformed", "Invalid BASE64 encoding of user data.") from None
    if len(raw) > _USER_DATA_BYTES:
        raise Refused("InvalidParameterValue", f"User data is limited to {_USER_DATA_BYTES} bytes")
    return raw.decode("utf-8", "replace")
