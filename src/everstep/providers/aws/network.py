"""Do machines of EC2 reach the server and each other? Subnets and security groups, as ``everstep doctor`` sees them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from everstep.model.errors import ProviderError, Unauthorized
from everstep.providers.aws.calls import Calls
from everstep.providers.aws.market import region_of
from everstep.providers.finding import Finding

if TYPE_CHECKING:
    from everstep.providers.aws.settings import Settings

RIGHTS = "grant what docs/aws-iam-policy-person.json lists, if it is to be looked at"
_ALL = "-1"
_ANYWHERE = ("0.0.0.0/0", "::/0")

Json = dict[str, Any]


async def examine(calls: Calls, settings: Settings, region: str, zones: Iterable[str]) -> list[Finding]:
    """What is wrong with the network of a region, or that all is well.

    Args:
        zones: of the region, where machines are to be leased.
    """
    what = f"network, {region}"
    try:
        subnets = await _subnets(calls, settings, region)
        named = list(settings.security_groups.get(region, ()))
        vpcs = sorted({s["VpcId"] for s in subnets.values()})
        how: Json = {"GroupIds": named} if named else {"Filters": [*_default_groups(vpcs)]}
        groups = await calls.pages(region, "describe_security_groups", "SecurityGroups", **how) if vpcs or named else []
    except Unauthorized as error:
        return [Finding(what, True, f"not looked at: {error}", RIGHTS)]
    except ProviderError as error:
        return [Finding(what, False, str(error), "see providers.aws.subnets and security_groups in config.yaml")]
    found = [f for zone in sorted(zones) if (f := _of_zone(settings, region, zone, subnets)) is not None]
    found += [f for group in groups for f in _of_group(region, group)]
    if found:
        return found
    ids = ", ".join(g["GroupId"] for g in groups)
    private = [z for z, s in subnets.items() if z in zones and not s.get("MapPublicIpOnLaunch", True)]
    more = f"; no public addresses in {', '.join(sorted(private))}: these need a NAT gateway" if private else ""
    return [Finding(what, True, f"{len(subnets)} subnets; {ids} lets machines out and to each other{more}")]


async def _subnets(calls: Calls, settings: Settings, region: str) -> dict[str, Json]:
    """The subnet of each zone: that of the settings, else the default one."""
    filters = [{"Name": "default-for-az", "Values": ["true"]}]
    found = {
        s["AvailabilityZone"]: s for s in await calls.pages(region, "describe_subnets", "Subnets", Filters=filters)
    }
    wanted = {zone: subnet for zone, subnet in settings.subnets.items() if region_of(zone) == region}
    if wanted:
        ids = sorted(set(wanted.values()))
        named = {s["SubnetId"]: s for s in await calls.pages(region, "describe_subnets", "Subnets", SubnetIds=ids)}
        found |= {zone: named[subnet] for zone, subnet in wanted.items() if subnet in named}
    return found


def _of_zone(settings: Settings, region: str, zone: str, subnets: dict[str, Json]) -> Finding | None:
    what, subnet = f"subnet, {zone}", subnets.get(zone)
    if subnet is None:
        fix = f"aws ec2 create-default-subnet --availability-zone {zone} --region {region}, or providers.aws.subnets"
        return Finding(what, False, "the zone has no default subnet and none is configured", fix)
    if subnet["AvailabilityZone"] != zone:
        there = subnet["AvailabilityZone"]
        fix = f"name a subnet of {zone} in providers.aws.subnets.{zone}"
        return Finding(what, False, f"{subnet['SubnetId']} lies in {there}", fix)
    if subnet.get("AvailableIpAddressCount", 1) < 1:
        fix = f"make a larger subnet and name it in providers.aws.subnets.{zone}"
        return Finding(what, False, f"{subnet['SubnetId']} has no free address", fix)
    return None


def _default_groups(vpcs: list[str]) -> list[Json]:
    return [{"Name": "group-name", "Values": ["default"]}, {"Name": "vpc-id", "Values": vpcs}]


def _of_group(region: str, group: Json) -> list[Finding]:
    name, found = group["GroupId"], []
    what = f"security group {name}, {region}"
    if not any(_is_open(rule) for rule in group.get("IpPermissionsEgress", [])):
        rule = "'IpProtocol=-1,IpRanges=[{CidrIp=0.0.0.0/0}]'"
        fix = f"aws ec2 authorize-security-group-egress --region {region} --group-id {name} --ip-permissions {rule}"
        found.append(Finding(what, False, "does not let machines out to the server", fix))
    if not any(_lets_members_in(rule, name) for rule in group.get("IpPermissions", [])):
        ask = f"aws ec2 authorize-security-group-ingress --region {region} --group-id {name}"
        fix = f"{ask} --protocol all --source-group {name}"
        found.append(Finding(what, False, "does not let its own machines reach each other, as gangs need", fix))
    return found


def _is_open(rule: Json) -> bool:
    """Whether it lets TCP out to anywhere; an address range of the user's own is his to know."""
    ranges = [r.get("CidrIp") for r in rule.get("IpRanges", [])] + [
        r.get("CidrIpv6") for r in rule.get("Ipv6Ranges", [])
    ]
    return rule.get("IpProtocol") in (_ALL, "tcp") and any(r in _ANYWHERE for r in ranges)


def _lets_members_in(rule: Json, group: str) -> bool:
    members = any(p.get("GroupId") == group for p in rule.get("UserIdGroupPairs", []))
    ports = rule.get("FromPort", 0) in (0, -1, 1) and rule.get("ToPort", 65_535) in (65_535, -1)
    wide = any(r.get("CidrIp") == "0.0.0.0/0" for r in rule.get("IpRanges", []))
    return (members or wide) and (rule.get("IpProtocol") == _ALL or (rule.get("IpProtocol") == "tcp" and ports))
