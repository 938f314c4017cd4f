"""Is Compute Engine ready for us? Credentials, clock, permissions, quotas, networks: what is missing, and the fix.

Nothing is made. Permissions are asked for by name (``projects.testIamPermissions`` of the Resource Manager).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from email.utils import parsedate_to_datetime
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from everstep.model.errors import ProviderError, Unauthorized
from everstep.model.offers import Market, Offer
from everstep.ports import OfferQuery
from everstep.providers.finding import Finding
from everstep.providers.gcp import network, quotas
from everstep.providers.gcp.errors import code_of

if TYPE_CHECKING:
    from everstep.providers.gcp.provider import GcpProvider

ROLE = "give its account the role of docs/gcp-role.yaml"
PERMISSIONS = (
    "compute.acceleratorTypes.list",
    "compute.disks.create",
    "compute.disks.delete",
    "compute.disks.get",
    "compute.disks.list",
    "compute.disks.setLabels",
    "compute.disks.use",
    "compute.globalOperations.list",
    "compute.images.getFromFamily",
    "compute.images.useReadOnly",
    "compute.instances.create",
    "compute.instances.delete",
    "compute.instances.get",
    "compute.instances.list",
    "compute.instances.setLabels",
    "compute.instances.setMetadata",
    "compute.instances.setServiceAccount",
    "compute.machineTypes.list",
    "compute.projects.get",
    "compute.regions.get",
    "compute.regionOperations.get",
    "compute.regionOperations.list",
    "compute.resourcePolicies.create",
    "compute.resourcePolicies.delete",
    "compute.resourcePolicies.get",
    "compute.resourcePolicies.list",
    "compute.resourcePolicies.use",
    "compute.subnetworks.use",
    "compute.subnetworks.useExternalIp",
    "compute.zoneOperations.get",
    "compute.zoneOperations.list",
    "iam.serviceAccounts.actAs",
)
"""What the role in the docs holds; a test runs the provider with these alone."""
_SKEW_S = 60.0


async def examine(provider: GcpProvider) -> list[Finding]:
    """Looks at the project and at every configured region; what cannot be reached at all is one finding."""
    try:
        project, headers = await provider.calls.clock_and_project()
    except Unauthorized as error:
        return [Finding("credentials", False, str(error), _mended(code_of(error)))]
    except ProviderError as error:
        return [Finding("network", False, str(error), "can this computer reach compute.googleapis.com?")]
    found = [Finding("credentials", True, f"accepted by project {project.get('name', provider.settings.project)}")]
    found += _clock(headers, provider.now())
    permissions, may_look = await _permissions(provider)
    found += permissions
    if not all(f.ok for f in found):
        return found
    found += await _market(provider, quotas.limits_of(project))
    for region in provider.settings.regions if may_look else ():
        found += await network.examine(provider.calls, provider.settings, region)
    if not may_look:
        fix = f"grant {' and '.join(network.PERMISSIONS)}, if it is to be looked at"
        found.append(Finding("network", True, "not looked at", fix))
    return found


def _mended(code: str) -> str:
    if code == "accessNotConfigured":
        return "gcloud services enable compute.googleapis.com cloudbilling.googleapis.com"
    return ROLE if code == "forbidden" else "gcloud auth application-default login; see 'Credentials' in docs/gcp.md"


def _clock(headers: Mapping[str, str], now: float) -> list[Finding]:
    date = headers.get("Date")
    if date is None:
        return []
    off_s = now - parsedate_to_datetime(date).timestamp()
    fix = "" if abs(off_s) < _SKEW_S else "set this computer's clock, for example with chrony or systemd-timesyncd"
    return [Finding("clock", not fix, f"{off_s:+.0f} s from Google's", fix)]


async def _permissions(provider: GcpProvider) -> tuple[list[Finding], bool]:
    """What is granted of the role, and whether the network may be looked at besides."""
    try:
        granted = await provider.calls.granted([*PERMISSIONS, *network.PERMISSIONS])
    except ProviderError as error:
        fix = "gcloud services enable cloudresourcemanager.googleapis.com"
        return [Finding("permissions", False, str(error), fix)], False
    may_look = granted.issuperset(network.PERMISSIONS)
    missing = [p for p in PERMISSIONS if p not in granted]
    if not missing:
        return [Finding("permissions", True, f"all {len(PERMISSIONS)} granted")], may_look
    return [Finding(f"permission {p}", False, "not granted", ROLE) for p in missing], may_look


async def _market(provider: GcpProvider, everywhere: quotas.Limits) -> list[Finding]:
    try:
        offers = await provider.offers(OfferQuery())
        bounds = await asyncio.gather(*(quotas.limits(provider.calls, r) for r in provider.settings.regions))
    except Unauthorized as error:
        return [Finding("offers", False, str(error), _mended(code_of(error)))]
    except ProviderError as error:
        return [Finding("offers", False, str(error), "try again")]
    found = []
    for wanted in provider.settings.types:
        mine = [o for o in offers if fnmatchcase(o.machine.name, wanted)]
        fix = (
            ""
            if mine
            else "no configured region sells it, or its price is not known; see: gcloud compute machine-types list"
        )
        found.append(Finding(f"type {wanted}", bool(mine), _sold(mine), fix))
    for region, known in zip(provider.settings.regions, bounds, strict=True):
        found += _limits(region, [o for o in offers if o.region == region], known, everywhere)
    return found


def _limits(region: str, offers: Iterable[Offer], known: quotas.Limits, everywhere: quotas.Limits) -> list[Finding]:
    """Each quota that machines meet, by what the smallest of them needs."""
    met: dict[str, tuple[quotas.Quota, str]] = {}
    for offer in offers:
        mine = quotas.quotas_of(offer, known)
        if offer.machine.accelerator and quotas.EVERYWHERE in everywhere:
            most, used = everywhere[quotas.EVERYWHERE]
            mine.append(quotas.Quota(quotas.EVERYWHERE, most, used, float(offer.machine.accelerator_count)))
        for quota in mine:
            if quota.metric not in met or quota.needed < met[quota.metric][0].needed:
                met[quota.metric] = (quota, offer.machine.name)
    found = []
    for metric, (quota, name) in sorted(met.items()):
        fix = "" if quota.holds else f"ask for {quota.needed:.0f} or more: console, IAM & Admin, Quotas, {metric}"
        seen = f"{quota.limit:.0f}, {quota.used:.0f} in use; {name} takes {quota.needed:.0f}"
        found.append(Finding(f"quota {metric}, {region}", quota.holds, seen, fix))
    return found


def _sold(offers: list[Offer]) -> str:
    spot = sum(o.market is Market.SPOT for o in offers)
    return f"{len(offers)} pools, {spot} of them spot" if offers else "no pools"
