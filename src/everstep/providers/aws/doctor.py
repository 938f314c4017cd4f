"""Is EC2 ready for us? Credentials, clock, permissions, types, quotas, networks: what is missing, and the exact fix.

Nothing is made: calls that would make something are dry runs, which EC2 answers with ``DryRunOperation`` when they
would be allowed (https://docs.aws.amazon.com/AWSEC2/latest/APIReference/CommonParameters.html).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from everstep.model.errors import ProviderError, Unauthorized
from everstep.model.offers import Market, Offer
from everstep.ports import OfferQuery
from everstep.providers.aws import network, quotas
from everstep.providers.aws.errors import code_of
from everstep.providers.aws.market import VOLUME_TYPE
from everstep.providers.finding import Finding

if TYPE_CHECKING:
    from everstep.providers.aws.provider import AwsProvider

POLICY = "give its user or role what docs/aws-iam-policy.json lists"
_SKEW_S = 60.0
"""EC2 refuses requests that are five minutes off; a minute is a clock nobody keeps."""


async def examine(provider: AwsProvider) -> list[Finding]:
    """Looks at every configured region; a region that cannot be reached at all is one finding."""
    found = []
    for region in await asyncio.gather(*(_region(provider, r) for r in provider.settings.regions)):
        found += region
    if not all(f.ok for f in found):
        return found
    return found + await _market(provider)


async def _offered(provider: AwsProvider, offers: Sequence[Offer]) -> list[Finding]:
    """Quotas and networks, where machines are offered."""
    found: list[Finding] = []
    for region in provider.settings.regions:
        here = [o for o in offers if o.region == region]
        found += await _quotas(provider, region, here)
        found += await network.examine(provider.calls, provider.settings, region, {o.zone for o in here})
    return found


async def _quotas(provider: AwsProvider, region: str, offers: Sequence[Offer]) -> list[Finding]:
    """Per family and market: is there room for the smallest machine of it?"""
    smallest: dict[quotas.Quota, Offer] = {}
    for offer in offers:
        quota = quotas.quota_of(offer.machine.name, offer.market)
        if quota is not None and (quota not in smallest or offer.machine.cpus < smallest[quota].machine.cpus):
            smallest[quota] = offer
    try:
        limits = await quotas.limits(provider.calls, region)
    except Unauthorized as error:
        return [Finding(f"quotas, {region}", True, f"not looked at: {error}", network.RIGHTS)]
    except ProviderError as error:
        return [Finding(f"quotas, {region}", False, str(error), "try again")]
    found = []
    for quota, offer in sorted(smallest.items(), key=lambda item: str(item[0])):
        limit, cpus = limits.get(quota.code), offer.machine.cpus
        if limit is not None:
            fix = "" if limit >= cpus else quotas.how_to_raise(quota, region, cpus)
            seen = f"{limit:.0f} vCPUs; {offer.machine.name} has {cpus:.0f}"
            found.append(Finding(f"quota {quota}, {region}", not fix, seen, fix))
    return found


async def _region(provider: AwsProvider, region: str) -> list[Finding]:
    """Credentials and clock first: without them nothing else can be told."""
    filters = [{"Name": "instance-type", "Values": list(provider.settings.types)}]
    what = f"credentials, {region}"
    try:
        answer = await provider.calls.ec2(region, "describe_instance_types", Filters=filters)
    except Unauthorized as error:
        denied = code_of(error) in ("UnauthorizedOperation", "AccessDenied")
        if not denied:
            fix = "see 'Credentials' in docs/aws.md; a region may have to be switched on for the account"
            return [Finding(what, False, str(error), fix)]
        return [Finding(f"permission DescribeInstanceTypes, {region}", False, str(error), POLICY)]
    except ProviderError as error:
        return [Finding(f"network, {region}", False, str(error), "can this computer reach the endpoint?")]
    findings = [Finding(what, True, "accepted"), *_clock(answer, provider.now()), _identity(provider, region)]
    for name, call in _permissions(provider, region).items():
        findings.append(await _permission(f"permission {name}, {region}", call))
    return findings


def _identity(provider: AwsProvider, region: str) -> Finding:
    what = f"identity of machines, {region}"
    if provider.identity.covers(region):
        return Finding(what, True, "certificates known")
    fix = "put the region's RSA certificate into a file and name it: identity_certificates (docs/aws.md)"
    return Finding(what, False, "no certificate for it is shipped: its machines could not join", fix)


def _clock(answer: Mapping[str, Any], now: float) -> list[Finding]:
    date = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    if date is None:
        return []
    off_s = now - parsedate_to_datetime(date).timestamp()
    fix = "" if abs(off_s) < _SKEW_S else "set this computer's clock, for example with chrony or systemd-timesyncd"
    return [Finding("clock", not fix, f"{off_s:+.0f} s from EC2's", fix)]


def _permissions(provider: AwsProvider, region: str) -> dict[str, Callable[[], Awaitable[object]]]:
    calls = provider.calls
    tags = [{"Key": "everstep:deployment", "Value": "doctor"}]
    launch = {
        "ImageId": provider.settings.cpu_image,
        "MinCount": 1,
        "MaxCount": 1,
        "TagSpecifications": [{"ResourceType": "instance", "Tags": tags}],
        "DryRun": True,
    }
    disk = {
        "AvailabilityZone": f"{region}a",
        "Size": 1,
        "VolumeType": VOLUME_TYPE,
        "TagSpecifications": [{"ResourceType": "volume", "Tags": tags}],
        "DryRun": True,
    }
    return {
        "DescribeInstances": lambda: calls.ec2(region, "describe_instances", MaxResults=5),
        "DescribeVolumes": lambda: calls.ec2(region, "describe_volumes", MaxResults=5),
        "DescribeSpotInstanceRequests": lambda: calls.ec2(region, "describe_spot_instance_requests", MaxResults=5),
        "DescribeSpotPriceHistory": lambda: calls.ec2(region, "describe_spot_price_history", MaxResults=5),
        "RunInstances": lambda: calls.ec2(region, "run_instances", **launch),
        "CreateVolume": lambda: calls.ec2(region, "create_volume", **disk),
    }


async def _permission(what: str, call: Callable[[], Awaitable[object]]) -> Finding:
    try:
        await call()
    except Unauthorized as error:
        return Finding(what, False, str(error), POLICY)
    except ProviderError as error:
        # A refusal for any other reason came after the permission was granted.
        return Finding(what, True, "granted" if code_of(error) == "DryRunOperation" else f"granted ({code_of(error)})")
    return Finding(what, True, "granted")


async def _market(provider: AwsProvider) -> list[Finding]:
    try:
        offers = await provider.offers(OfferQuery())
    except Unauthorized as error:
        return [Finding("offers", False, str(error), POLICY)]
    except ProviderError as error:
        return [Finding("offers", False, str(error), "try again")]
    findings = []
    for wanted in provider.settings.types:
        mine = [o for o in offers if fnmatchcase(o.machine.name, wanted)]
        fix = "" if mine else "no configured region sells it; see: aws ec2 describe-instance-type-offerings"
        findings.append(Finding(f"type {wanted}", bool(mine), _sold(mine), fix))
    return findings + await _offered(provider, offers)


def _sold(offers: Sequence[Offer]) -> str:
    spot = sum(o.market is Market.SPOT for o in offers)
    return f"{len(offers)} pools, {spot} of them spot" if offers else "no pools"
