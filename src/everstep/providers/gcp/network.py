"""Do machines of Compute Engine reach the server and each other? Subnetworks and firewall rules, as doctor sees them.

What no rule says: everything may leave, nothing may come in (https://docs.cloud.google.com/firewall/docs/firewalls,
"Implied rules").
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import ip_network
from typing import TYPE_CHECKING

from everstep.model.errors import BadRequest, ProviderError, Unauthorized
from everstep.providers.finding import Finding
from everstep.providers.gcp.calls import Calls, Json
from everstep.providers.gcp.errors import GONE, code_of
from everstep.providers.gcp.naming import last

if TYPE_CHECKING:
    from everstep.providers.gcp.settings import Settings

PERMISSIONS = ("compute.firewalls.list", "compute.subnetworks.get")
"""What this needs; not part of the role."""
_SUBNET = re.compile(r"(?:.*?projects/(?P<project>[^/]+)/)?regions/(?P<region>[^/]+)/subnetworks/(?P<name>[^/]+)")


async def examine(calls: Calls, settings: Settings, region: str) -> list[Finding]:
    """What is wrong with the network of a region, or that all is well."""
    what = f"network, {region}"
    named = _SUBNET.fullmatch(settings.subnetworks.get(region, ""))
    project = (named["project"] if named else None) or settings.project
    name = named["name"] if named else last(settings.network)
    try:
        subnet = await calls.call("subnetworks", "get", project=project, region=region, subnetwork=name)
        rules = await _rules(calls, project, last(subnet["network"]))
    except Unauthorized as error:
        return [Finding(what, True, f"not looked at: {error}", f"grant {' and '.join(PERMISSIONS)}")]
    except ProviderError as error:
        fix = f"providers.gcp.subnetworks.{region}: name one that is there (gcloud compute networks subnets list)"
        if isinstance(error, BadRequest) and code_of(error) in GONE and named is None:
            fix = f"gcloud compute networks create {name} --subnet-mode=auto, or name another: subnetworks"
        return [Finding(what, False, str(error), fix)]
    network, found = last(subnet["network"]), []
    shut = [r["name"] for r in rules if r.get("direction") == "EGRESS" and r.get("denied") and _is_everywhere(r)]
    if shut:
        fix = (
            f"gcloud compute firewall-rules update {shut[0]} --disabled, or one of a higher priority that lets 443 out"
        )
        found.append(Finding(what, False, f"rule {shut[0]} keeps machines from the server", fix))
    inside = str(subnet.get("ipCidrRange", ""))
    if not any(_lets_in(r, inside) for r in rules):
        allow = f"--direction=INGRESS --allow=all --source-ranges={inside}"
        fix = f"gcloud compute firewall-rules create everstep-gangs --network={network} {allow}"
        found.append(Finding(what, False, "no rule lets machines reach each other, as gangs need", fix))
    nat = "" if settings.external_address else "; no external addresses: it needs Cloud NAT"
    return found or [Finding(what, True, f"subnetwork {name} ({inside}); machines get out and reach each other{nat}")]


async def _rules(calls: Calls, project: str, network: str) -> list[Json]:
    """Those in force in a network."""
    rules = await calls.listed("firewalls", project=project)
    return [r for r in rules if last(r.get("network", "")) == network and not r.get("disabled")]


def _is_everywhere(rule: Json) -> bool:
    """Whether it is about all addresses and all machines; what is narrower is the user's to know."""
    narrow = rule.get("targetTags") or rule.get("targetServiceAccounts")
    return not narrow and "0.0.0.0/0" in rule.get("destinationRanges", ["0.0.0.0/0"])


def _lets_in(rule: Json, inside: str) -> bool:
    """Whether it lets machines of a subnetwork reach every TCP port of the others."""
    if rule.get("direction") != "INGRESS" or rule.get("targetTags") or rule.get("targetServiceAccounts"):
        return False
    ports: Iterable[Json] = rule.get("allowed", ())
    wide = any(
        p.get("IPProtocol") == "all" or (p.get("IPProtocol") == "tcp" and p.get("ports") in (None, [], ["0-65535"]))
        for p in ports
    )
    return wide and any(_covers(source, inside) for source in rule.get("sourceRanges", ()))


def _covers(source: str, inside: str) -> bool:
    try:
        outer, inner = ip_network(source, strict=False), ip_network(inside, strict=False)
    except ValueError:
        return False
    return outer.version == inner.version and inner.subnet_of(outer)  # type: ignore[arg-type]
