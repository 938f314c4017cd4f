"""What EC2 sells: machine types, the zones that have them, their prices; each kept for as long as it is good."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from everstep.model.errors import ProviderError
from everstep.model.offers import BillingRule, MachineType, Market, Offer, Pool
from everstep.ports import HistoryPoint
from everstep.providers.aws import pricing, quotas
from everstep.providers.aws.advice import Scores
from everstep.providers.aws.calls import Calls

LINUX = "Linux/UNIX"
SPOT_SOURCE = "EC2 spot price history"
NOTICE_S = 120.0
"""https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html"""
EGRESS_USD_PER_GB = 0.09
"""Out to the internet, first tier: https://aws.amazon.com/ec2/pricing/on-demand/#Data_Transfer. Between regions it is
less; the dearer one keeps a move from looking cheaper than it is."""
BILLING = {
    # Per second, at least a minute; a spot machine that EC2 takes back within its first hour costs nothing:
    # https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/billing-for-interrupted-spot-instances.html
    Market.SPOT: BillingRule(granularity_s=1.0, minimum_s=60.0, free_if_reclaimed_within_s=3600.0),
    Market.ON_DEMAND: BillingRule(granularity_s=1.0, minimum_s=60.0),
}
VOLUME_TYPE = "gp3"
_DISK_MINIMUM_S = 60.0
"""Provisioned storage is billed by the second, at least a minute: https://aws.amazon.com/ebs/pricing/"""
_CATALOG_GOOD_FOR_S = 86_400.0
_SPOT_GOOD_FOR_S = 300.0
_QUOTAS_GOOD_FOR_S = 3600.0
_BIG_A100_MIB = 80_000

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Region:
    """What is known of one region."""

    machines: dict[str, MachineType] = field(default_factory=dict)
    zones: dict[str, tuple[str, ...]] = field(default_factory=dict)
    on_demand: dict[str, float] = field(default_factory=dict)
    disk_usd_per_gib_h: float = 0.0
    catalog_at: float = float("-inf")
    spot: dict[tuple[str, str], tuple[float, float]] = field(default_factory=dict)
    spot_at: float = float("-inf")
    vcpus: dict[str, float] = field(default_factory=dict)
    vcpus_at: float = float("-inf")
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Ec2Market:
    """Offers and price history of some types in some regions.

    Types, zones and list prices are asked for once a day, spot prices every five minutes: with T types of R regions
    that is 3 + min(T, 8) calls per region and day, and one per region and five minutes. Besides, where they are
    permitted, quotas every hour and placement scores (see ``advice``).
    """

    def __init__(
        self,
        name: str,
        calls: Calls,
        *,
        regions: Sequence[str],
        types: Sequence[str],
        boot_disk_gib: int,
        now: Callable[[], float],
    ) -> None:
        """Args: name: of the provider; types: names with ``*``; boot_disk_gib: of each machine; now: UTC seconds."""
        self._name = name
        self._calls = calls
        self._types = tuple(types)
        self._boot_disk_gib = boot_disk_gib
        self._now = now
        self._regions = {region: _Region() for region in regions}
        self._scores = Scores(calls, regions, now=now)
        self._told: set[str] = set()
        self.unanswered: tuple[str, ...] = ()
        """Regions that the last offers lack."""

    async def offers(self) -> list[Offer]:
        """Every pool. A region in trouble is left out while another answers; else its error is raised."""
        answers = await asyncio.gather(*(self._refresh(r) for r in self._regions), return_exceptions=True)
        errors = [a for a in answers if isinstance(a, BaseException)]
        for error in errors:
            if not isinstance(error, ProviderError) or len(errors) == len(answers):
                raise error
            log.warning("%s: %s", self._name, error)
        self.unanswered = tuple(r for r, answer in zip(self._regions, answers, strict=True) if answer is not None)
        machines = [m for region in self._regions.values() for m in region.machines.values()]
        self._tell_once("no placement scores", await self._scores.refresh(machines))
        return [
            offer
            for (name, region), answer in zip(self._regions.items(), answers, strict=True)
            if answer is None
            for offer in self._offers_of(name, region)
        ]

    async def disk_usd_per_gib_h(self, region: str) -> float:
        """Price of a GiB of a volume for an hour; yesterday's where today's is not to be had."""
        known = self._regions[region]
        async with known.lock:
            try:
                await self._refresh_catalog(region, known)
            except ProviderError as error:
                # What there is must be seen also while nobody tells what it costs.
                if known.catalog_at == float("-inf"):
                    raise
                log.warning("%s: %s", self._name, error)
        return known.disk_usd_per_gib_h

    async def history(self, pools: Sequence[Pool], since: float) -> list[HistoryPoint]:
        """Spot prices of the pools since then, oldest first: one point per change, availability unknown."""
        wanted = {(p.zone, p.machine_type): p for p in pools if p.market is Market.SPOT and p.provider == self._name}
        points = []
        for region in self._regions:
            here = {key for key in wanted if region_of(key[0]) == region}
            if not here:
                continue
            rows = await self._spot_rows(region, sorted({t for _, t in here}), since)
            for zone, machine_type, at, usd in rows:
                # The row in force at the start was written before it.
                if (zone, machine_type) in here:
                    points.append(HistoryPoint(wanted[zone, machine_type], max(at, since), usd, None))
        return sorted(points, key=lambda p: p.at)

    # --- what is known -----------------------------------------------------------------------------------------------

    async def _refresh(self, name: str) -> None:
        region = self._regions[name]
        async with region.lock:
            await self._refresh_catalog(name, region)
            await self._refresh_quotas(name, region)
            if self._now() - region.spot_at < _SPOT_GOOD_FOR_S or not region.machines:
                return
            started = self._now()
            newest: dict[tuple[str, str], tuple[float, float]] = {}
            # "Now" as the start gives the price in force of every zone.
            for zone, machine_type, at, usd in await self._spot_rows(name, sorted(region.machines), started):
                if at >= newest.get((zone, machine_type), (float("-inf"), 0.0))[0]:
                    newest[zone, machine_type] = (at, usd)
            region.spot, region.spot_at = newest, started

    async def _refresh_catalog(self, name: str, region: _Region) -> None:
        if self._now() - region.catalog_at < _CATALOG_GOOD_FOR_S:
            return
        filters = [{"Name": "instance-type", "Values": list(self._types)}]
        described = await self._calls.pages(name, "describe_instance_types", "InstanceTypes", Filters=filters)
        machines = {m.name: m for m in map(machine_type_of, described) if m is not None}
        sold = await self._calls.pages(
            name,
            "describe_instance_type_offerings",
            "InstanceTypeOfferings",
            LocationType="availability-zone",
            Filters=filters,
        )
        zones: dict[str, list[str]] = {}
        for row in sold:
            zones.setdefault(row["InstanceType"], []).append(row["Location"])
        region.on_demand = await pricing.on_demand_usd_per_h(self._calls, name, sorted(machines)) if machines else {}
        region.disk_usd_per_gib_h = await pricing.disk_usd_per_gib_h(self._calls, name, VOLUME_TYPE)
        region.zones = {t: tuple(sorted(places)) for t, places in zones.items()}
        region.machines, region.catalog_at = machines, self._now()

    async def _refresh_quotas(self, name: str, region: _Region) -> None:
        """Quotas are a help, not a need: without them EC2 refuses what they do not hold."""
        if self._now() - region.vcpus_at < _QUOTAS_GOOD_FOR_S:
            return
        region.vcpus_at = self._now()
        try:
            region.vcpus = await quotas.limits(self._calls, name)
        except ProviderError as error:
            region.vcpus = {}
            self._tell_once(f"no quotas of {name}", str(error))

    def _tell_once(self, what: str, why: str) -> None:
        if why and what not in self._told:
            self._told.add(what)
            log.info("%s: %s: %s", self._name, what, why)

    async def _spot_rows(self, region: str, types: Sequence[str], since: float) -> list[tuple[str, str, float, float]]:
        rows = await self._calls.pages(
            region,
            "describe_spot_price_history",
            "SpotPriceHistory",
            InstanceTypes=list(types),
            ProductDescriptions=[LINUX, f"{LINUX} (Amazon VPC)"],
            StartTime=datetime.fromtimestamp(since, UTC),
        )
        return [
            (r["AvailabilityZone"], r["InstanceType"], r["Timestamp"].timestamp(), float(r["SpotPrice"])) for r in rows
        ]

    def _offers_of(self, name: str, region: _Region) -> list[Offer]:
        offers = []
        for machine in region.machines.values():
            on_demand = region.on_demand.get(machine.name)
            if on_demand is None:
                continue  # without a list price there is no bound for the spot price either
            for zone in region.zones.get(machine.name, ()):
                offers.append(self._offer(name, zone, machine, Market.ON_DEMAND, price=(region.catalog_at, on_demand)))
                spot = region.spot.get((zone, machine.name))
                # Above its list price a spot machine is none: EC2 caps at on demand unless told otherwise.
                if spot is not None and spot[1] <= on_demand:
                    price = (region.spot_at, spot[1])
                    offers.append(self._offer(name, zone, machine, Market.SPOT, price=price, on_demand=on_demand))
        return offers

    def _offer(
        self,
        region: str,
        zone: str,
        machine: MachineType,
        market: Market,
        *,
        price: tuple[float, float],
        on_demand: float | None = None,
    ) -> Offer:
        spot = market is Market.SPOT
        quota = quotas.quota_of(machine.name, market)
        limit = None if quota is None else self._regions[region].vcpus.get(quota.code)
        bound = f"quota {quota}: {limit:.0f} vCPUs" if limit is not None and limit < machine.cpus else ""
        advice = self._scores.of(zone, machine.name) if spot else None
        return Offer(
            provider=self._name,
            region=region,
            zone=zone,
            machine=machine,
            market=market,
            price_usd_per_h=price[1],
            on_demand_usd_per_h=price[1] if on_demand is None else on_demand,
            price_as_of=price[0],
            price_source=SPOT_SOURCE if spot else pricing.SOURCE,
            billing=BILLING[market],
            notice_s=NOTICE_S if spot else 0.0,
            egress_usd_per_gb=EGRESS_USD_PER_GB,
            boot_disk_usd_per_h=self._regions[region].disk_usd_per_gib_h * self._boot_disk_gib,
            disk_minimum_s=_DISK_MINIMUM_S,
            available=0 if bound else None,
            bound=bound,
            advice=None if advice is None else advice[0],
            advice_as_of=None if advice is None else advice[1],
        )


def region_of(zone: str) -> str:
    """``us-east-1`` of ``us-east-1a``, also of a local zone such as ``us-west-2-lax-1a``."""
    found = re.match(r"[a-z]{2}(?:-[a-z]+)+-\d", zone)
    return found[0] if found else ""


def machine_type_of(described: dict[str, Any]) -> MachineType | None:
    """A machine type of ``DescribeInstanceTypes``; None for what cannot run our images (ARM, bare Macs)."""
    if "x86_64" not in described.get("ProcessorInfo", {}).get("SupportedArchitectures", ["x86_64"]):
        return None
    gpus = described.get("GpuInfo", {}).get("Gpus", [])
    name, count = "", 0
    if gpus and gpus[0].get("Manufacturer", "NVIDIA") == "NVIDIA":
        name, count = _accelerator(gpus[0]), int(gpus[0].get("Count", 0))
    return MachineType(
        described["InstanceType"],
        name if count else "",
        count,
        float(described["VCpuInfo"]["DefaultVCpus"]),
        described["MemoryInfo"]["SizeInMiB"] / 1024.0,
    )


def _accelerator(gpu: dict[str, Any]) -> str:
    name = str(gpu.get("Name", "GPU")).replace(" ", "")
    if name == "A100" and gpu.get("MemoryInfo", {}).get("SizeInMiB", 0) >= _BIG_A100_MIB:
        return "A100-80GB"
    return name
