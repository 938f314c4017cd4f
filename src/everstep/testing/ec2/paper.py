"""What the fake takes from moto: regions' default networks, images, launch templates and the catalog of types."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from everstep.testing.ec2 import filters as by
from everstep.testing.ec2.books import tag_list
from everstep.testing.ec2.wire import Refused

ACCOUNT = "123456789012"
TAGGABLE = {"instance", "volume", "spot-instances-request", "network-interface", "elastic-gpu", "placement-group"}
_PUBLIC = "resolve:ssm:/aws/service/"


class Paper:
    """moto's backend of each region, and questions to it."""

    def __init__(self, account: str = ACCOUNT) -> None:
        self.account = account
        self._backends: dict[str, Any] = {}
        self._types: dict[str, dict[str, Any]] = {}
        self._groups: dict[tuple[str, str], dict[str, str]] = {}

    def backend(self, region: str) -> Any:
        """moto's EC2 in a region, of this fake alone."""
        from moto.ec2.models import EC2Backend

        if region not in self._backends:
            made: Any = EC2Backend(region, self.account)
            # moto's default group keeps its members apart. EC2's lets them reach each other:
            # https://docs.aws.amazon.com/vpc/latest/userguide/default-security-group.html
            group = made.get_default_security_group()
            members = [{"GroupId": group.id}]
            made.authorize_security_group_ingress(group.id, "-1", None, None, [], source_groups=members)
            self._backends[region] = made
        return self._backends[region]

    # --- machine types -----------------------------------------------------------------------------------------------

    def type(self, kind: str) -> dict[str, Any]:
        """A type as in ``DescribeInstanceTypes``. Raises ValueError if moto's catalog has none of that name."""
        if not self._types:
            from moto.ec2.models.instance_types import INSTANCE_TYPES

            self._types = dict(INSTANCE_TYPES)
        if kind not in self._types:
            raise ValueError(f"moto's catalog has no machine type {kind!r}")
        return self._types[kind]

    def vcpus(self, kind: str) -> int:
        """Its virtual CPUs."""
        return int(self.type(kind)["VCpuInfo"]["DefaultVCpus"])

    # --- networks, images, groups ------------------------------------------------------------------------------------

    def default_subnet(self, region: str, zone: str) -> str:
        """Of the zone."""
        subnet = self.backend(region).get_default_subnets().get(zone)
        if subnet is None:
            raise Refused("MissingInput", f"No default subnet for availability zone: '{zone}'.")
        return str(subnet.id)

    def zone_id(self, region: str, zone: str) -> str:
        """``use1-az4`` of ``us-east-1a``: what the zone is called in every account."""
        found = {z.name: z.zone_id for z in self.backend(region).describe_availability_zones()}
        return str(found[zone])

    def zone_of_subnet(self, region: str, subnet: str) -> str:
        """Where a subnet lies."""
        return str(self._subnet(region, subnet).availability_zone)

    def vpc_of_subnet(self, region: str, subnet: str) -> str:
        """The network it belongs to."""
        return str(self._subnet(region, subnet).vpc_id)

    def address(self, number: int) -> str:
        """A private address for the machine of that number."""
        return f"172.31.{(number // 250) % 256}.{number % 250 + 4}"

    def image(self, region: str, name: str) -> str:
        """The AMI behind an id or a public parameter."""
        images = self.backend(region).describe_images()
        if name.startswith("resolve:ssm:"):
            # Of the public parameters, which name a new image every month, any image will do.
            if name.startswith(_PUBLIC) and name.endswith("/ami-id"):
                return str(images[0].id)
            raise Refused("InvalidParameterValue", f"The parameter {name} does not exist")
        if not any(i.id == name for i in images):
            raise Refused("InvalidAMIID.NotFound", f"The image id '[{name}]' does not exist")
        return name

    def groups(self, region: str, ids: Iterable[str]) -> tuple[str, ...]:
        """Security groups, checked; the default one if none is named."""
        backend = self.backend(region)
        for one in ids:
            if backend.get_security_group_from_id(one) is None:
                raise Refused("InvalidGroup.NotFound", f"The security group '{one}' does not exist")
        named = tuple(ids)
        return named or (str(backend.get_default_security_group().id),)

    def _subnet(self, region: str, subnet: str) -> Any:
        for one in self.backend(region).describe_subnets():
            if one.id == subnet:
                return one
        raise Refused("InvalidSubnetID.NotFound", f"The subnet ID '{subnet}' does not exist")

    # --- placement groups --------------------------------------------------------------------------------------------

    def has_group(self, region: str, name: str) -> bool:
        """Whether there is a placement group of that name."""
        return (region, name) in self._groups

    def create_placement_group(self, region: str, p: dict[str, Any]) -> dict[str, Any]:
        """``CreatePlacementGroup``."""
        if self.has_group(region, p["GroupName"]):
            raise Refused("InvalidPlacementGroup.Duplicate", f"The Placement Group '{p['GroupName']}' already exists.")
        if p.get("Strategy") != "cluster":
            raise Refused("UnsupportedOperation", "this fake plays cluster placement groups only")
        tags = self.tags_of(p.get("TagSpecifications", [])).get("placement-group", {})
        self._groups[region, p["GroupName"]] = dict(tags)
        return {"PlacementGroup": _group(p["GroupName"], tags)}

    def delete_placement_group(self, region: str, p: dict[str, Any]) -> dict[str, Any]:
        """``DeletePlacementGroup``."""
        if not self.has_group(region, p["GroupName"]):
            raise Refused("InvalidPlacementGroup.Unknown", f"The Placement Group '{p['GroupName']}' is unknown.")
        del self._groups[region, p["GroupName"]]
        return {}

    def describe_placement_groups(self, region: str, p: dict[str, Any]) -> dict[str, Any]:
        """``DescribePlacementGroups``."""
        wanted = p.get("GroupNames")
        known = {name: tags for (r, name), tags in self._groups.items() if r == region}
        for name in wanted or ():
            if name not in known:
                raise Refused("InvalidPlacementGroup.Unknown", f"The Placement Group '{name}' is unknown.")
        described = [_group(name, tags) for name, tags in sorted(known.items()) if not wanted or name in wanted]
        return {"PlacementGroups": by.matching(described, p.get("Filters", []), by.GROUP)}

    # --- requests ----------------------------------------------------------------------------------------------------

    def with_template(self, region: str, p: dict[str, Any]) -> dict[str, Any]:
        """The request with what its launch template adds: what the request says itself goes first."""
        named = p.get("LaunchTemplate")
        if not named:
            return p
        try:
            data = self.backend(region)._get_template_from_args(named).data
        except Exception as error:
            raise Refused("InvalidLaunchTemplateId.NotFound", str(error)) from None
        data = {key: value for key, value in data.items() if value not in (None, {}, [])}
        return {**data, **p, "TagSpecifications": p.get("TagSpecifications") or data.get("TagSpecifications", [])}

    @staticmethod
    def tags_of(specifications: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, str]]:
        """Tags by kind of resource, checked by the vendor's rules."""
        found: dict[str, dict[str, str]] = {}
        for specification in specifications:
            kind = specification.get("ResourceType", "")
            if kind not in TAGGABLE or kind in found:
                raise Refused(
                    "InvalidParameterValue", f"'{kind}' is not a valid taggable resource type, or comes twice"
                )
            tags = found[kind] = {}
            for tag in specification.get("Tags", []):
                key, value = tag.get("Key", ""), tag.get("Value", "")
                if not key or len(key) > 127 or len(value) > 255 or key.startswith("aws:") or key in tags:
                    raise Refused("InvalidParameterValue", f"Tag '{key}' is malformed, reserved or given twice")
                tags[key] = value
            if len(tags) > 50:
                raise Refused("TagLimitExceeded", "The maximum number of tags on a resource is 50")
        return found

    @staticmethod
    def digest(p: Mapping[str, Any]) -> str:
        """All parameters but the token, as one text."""
        return json.dumps({k: v for k, v in p.items() if k != "ClientToken"}, sort_keys=True, default=str)


def region_of(zone: str) -> str:
    """``us-east-1`` of ``us-east-1a``."""
    found = re.match(r"[a-z]{2}(?:-[a-z]+)+-\d", zone)
    return found[0] if found else ""


def _group(name: str, tags: Mapping[str, str]) -> dict[str, Any]:
    return {"GroupName": name, "Strategy": "cluster", "State": "available", "Tags": tag_list(dict(tags))}
