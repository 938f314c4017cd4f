"""What Compute Engine sells: machine types, the zones that have them, their prices; kept for as long as it is good."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from fnmatch import fnmatchcase, translate
from typing import Any

from everstep.model.errors import BadRequest, ProviderError
from everstep.model.offers import BillingRule, MachineType, Market, Offer, Pool
from everstep.ports import HistoryPoint
from everstep.providers.gcp import pricing, quotas
from everstep.providers.gcp.accelerators import machine_of, parted, vendors_name
from everstep.providers.gcp.advice import Advice
from everstep.providers.gcp.calls import Calls
from everstep.providers.gcp.naming import last

NOTICE_S = 30.0
"""Between the signal and the forced stop: "30 seconds for Spot VMs" (``Scheduling.skipGuestOsShutdown`` in the API)."""
LEGACY_LIFE_S = 86_400.0
"""Preemptible machines of the old kind "always stop after 24 hours":
https://docs.cloud.google.com/compute/docs/instances/preemptible"""
EGRESS_USD_PER_GB = 0.12
"""Out to the internet, first tier, premium network: https://cloud.google.com/vpc/network-pricing. Between regions it is
less; the dearer one keeps a move from looking cheaper than it is."""
BILLING = {
    # Per second, at least a minute; what is preempted in its first minute costs nothing:
    # https://cloud.google.com/compute/vm-instance-pricing and
    # https://docs.cloud.google.com/compute/docs/instances/preemptible
    Market.SPOT: BillingRule(granularity_s=1.0, minimum_s=60.0, free_if_reclaimed_within_s=60.0),
    Market.ON_DEMAND: BillingRule(granularity_s=1.0, minimum_s=60.0),
}
_CATALOG_GOOD_FOR_S = 86_400.0
_PRICES_GOOD_FOR_S = 6 * 3600.0
_LIMITS_GOOD_FOR_S = 3600.0
"""Spot prices change at most once a day, and the catalog is up to 12 hours old."""

log = logging.getLogger(__name__)


class GceMarket:
    """Offers and price history of some types in some regions: three calls a day, the price list four times.

    Besides quotas, one call per region and hour, and capacity advice (see ``advice``).
    """

    def __init__(
        self,
        name: str,
        calls: Calls,
        *,
        regions: Sequence[str],
        types: Sequence[str],
        legacy: bool,
        boot_disk: tuple[str, int],
        now: Callable[[], float],
    ) -> None:
        """Makes a market.

        Args:
            name: of the provider.
            types: names with ``*``.
            legacy: preemptibles of 24 hours.
            boot_disk: type and GiB of the disk that comes and goes with a machine.
            now: UTC seconds.
        """
        self._name = name
        self._calls = calls
        self._regions = tuple(regions)
        self._types = tuple(types)
        self._legacy = legacy
        self._boot_disk = boot_disk
        self._now = now
        self._machines: dict[str, list[MachineType]] = {}
        self._machines_at = float("-inf")
        self._rates = pricing.Rates()
        self._rates_at = float("-inf")
        self._advice = Advice(calls, now=now)
        self._limits: dict[str, quotas.Limits] = {}
        self._limits_at = float("-inf")
        self._told: set[str] = set()
        self._lock = asyncio.Lock()

    async def offers(self) -> list[Offer]:
        """Every pool whose price is known."""
        await self._refresh()
        await self._refresh_bounds()
        found = []
        for zone, machines in sorted(self._machines.items()):
            for machine in machines:
                found += self._offers_of(zone, machine)
        return found

    async def spot_usd_per_h(self, zone: str, machine: MachineType) -> float | None:
        """Spot price in force; None if it is not known."""
        await self._refresh()
        return self._rates.machine_usd_per_h(region_of(zone), machine, spot=True)

    async def disk_usd_per_gib_h(self, region: str, disk_type: str) -> float:
        """Price of a GiB of a disk for an hour; 0 if the catalog does not tell."""
        await self._refresh()
        return self._rates.disks.get((region, disk_type), 0.0)

    async def history(self, pools: Sequence[Pool], since: float) -> list[HistoryPoint]:
        """Spot list prices of the pools since then, oldest first (``advice.capacityHistory``; availability unknown)."""
        wanted = [p for p in pools if p.market is Market.SPOT and p.provider == self._name]
        wanted = [p for p in wanted if region_of(p.zone) in self._regions]
        answers = await asyncio.gather(*(self._history_of(p, since) for p in wanted))
        return sorted((point for points in answers for point in points), key=lambda p: p.at)

    # --- what is known -----------------------------------------------------------------------------------------------

    async def _refresh(self) -> None:
        async with self._lock:
            now = self._now()
            if now - self._machines_at >= _CATALOG_GOOD_FOR_S:
                self._machines, self._machines_at = await self._sold(), now
            if now - self._rates_at >= _PRICES_GOOD_FOR_S:
                self._rates, self._rates_at = await pricing.rates(self._calls, self._regions), now
                self._tell_unpriced()

    async def _refresh_bounds(self) -> None:
        """Quotas and advice are a help, not a need: without them Compute Engine refuses what it cannot give."""
        async with self._lock:
            if self._now() - self._limits_at >= _LIMITS_GOOD_FOR_S:
                self._limits_at = self._now()
                try:
                    found = await asyncio.gather(*(quotas.limits(self._calls, r) for r in self._regions))
                    self._limits = dict(zip(self._regions, found, strict=True))
                except ProviderError as error:
                    self._limits = {}
                    self._tell_once("no quotas", str(error))
            self._tell_once("no capacity advice", await self._advice.refresh(self._machines))

    def _tell_once(self, what: str, why: str) -> None:
        if why and what not in self._told:
            self._told.add(what)
            log.info("%s: %s: %s", self._name, what, why)

    async def _sold(self) -> dict[str, list[MachineType]]:
        """Machines by zone."""
        wanted = [parted(t) for t in self._types]
        names = "|".join(dict.fromkeys(_regular(kind) for kind, _ in wanted))
        described = await self._calls.everything("machine_types", "machineTypes", filter=f'name eq "{names}"')
        attachable: dict[str, dict[str, int]] = {}
        if any(attached for _, attached in wanted):
            for one in await self._calls.everything("accelerator_types", "acceleratorTypes"):
                most = int(one.get("maximumCardsPerInstance", 0))
                attachable.setdefault(last(one["zone"]), {})[one["name"]] = most
        found: dict[str, dict[str, MachineType]] = {}
        for one in described:
            zone = last(one["zone"])
            if region_of(zone) not in self._regions or "deprecated" in one:
                continue
            for kind, attached in wanted:
                if not fnmatchcase(one["name"], kind):
                    continue
                if attached and attachable.get(zone, {}).get(vendors_name(attached[0]), 0) < attached[1]:
                    continue
                machine = machine_of(one, attached)
                if machine is not None:
                    found.setdefault(zone, {})[machine.name] = machine
        return {zone: sorted(machines.values(), key=lambda m: m.name) for zone, machines in found.items()}

    def _tell_unpriced(self) -> None:
        for zone, machines in self._machines.items():
            for machine in machines:
                if self._rates.machine_usd_per_h(region_of(zone), machine, spot=False) is None:
                    log.warning("%s: %s in %s is not offered: its price is not known", self._name, machine.name, zone)

    def _offers_of(self, zone: str, machine: MachineType) -> list[Offer]:
        region = region_of(zone)
        on_demand = self._rates.machine_usd_per_h(region, machine, spot=False)
        if on_demand is None:
            return []  # without a list price there is no bound for the spot price either
        offers = [self._offer(zone, machine, Market.ON_DEMAND, on_demand, on_demand)]
        spot = self._rates.machine_usd_per_h(region, machine, spot=True)
        if spot is not None and spot <= on_demand:
            offers.append(self._offer(zone, machine, Market.SPOT, spot, on_demand))
        return offers

    def _offer(self, zone: str, machine: MachineType, market: Market, usd: float, on_demand: float) -> Offer:
        spot = market is Market.SPOT
        advice = self._advice.of(zone, machine.name) if spot else None
        offer = Offer(
            provider=self._name,
            region=region_of(zone),
            zone=zone,
            machine=machine,
            market=market,
            price_usd_per_h=round(usd, 9),
            on_demand_usd_per_h=round(on_demand, 9),
            price_as_of=self._rates_at,
            price_source=pricing.SOURCE,
            billing=BILLING[market],
            max_life_s=LEGACY_LIFE_S if spot and self._legacy else None,
            notice_s=NOTICE_S if spot else 0.0,
            boot_disk_usd_per_h=self._rates.disks.get((region_of(zone), self._boot_disk[0]), 0.0) * self._boot_disk[1],
            egress_usd_per_gb=EGRESS_USD_PER_GB,
            advice=None if advice is None else advice[0],
            advice_as_of=None if advice is None else advice[1],
        )
        for quota in quotas.quotas_of(offer, self._limits.get(offer.region, {})):
            if not quota.holds:
                return replace(offer, available=0, bound=f"quota {quota.metric}: {quota.limit:g}")
        return offer

    # --- what was ----------------------------------------------------------------------------------------------------

    async def _history_of(self, pool: Pool, since: float) -> list[HistoryPoint]:
        kind, attached = parted(pool.machine_type)
        properties: dict[str, Any] = {"machineType": kind, "scheduling": {"provisioningModel": "SPOT"}}
        if attached is not None:
            link = f"zones/{pool.zone}/acceleratorTypes/{vendors_name(attached[0])}"
            properties["guestAccelerators"] = [{"acceleratorType": link, "acceleratorCount": attached[1]}]
        body = {
            "instanceProperties": properties,
            "locationPolicy": {"location": f"zones/{pool.zone}"},
            "types": ["PRICE"],
        }
        resource = ("capacity_history_request_resource", body)
        try:
            answer = await self._calls.call("advice", "capacity_history", resource, region=region_of(pool.zone))
        except BadRequest as error:
            log.warning("%s: no history of %s: %s", self._name, pool, error)
            return []
        points = []
        for record in answer.get("priceHistory", []):
            interval, price = record.get("interval", {}), record.get("listPrice", {})
            start = instant(interval.get("startTime", ""))
            end = instant(interval.get("endTime", "")) or float("inf")
            if start is None or end <= since or start > self._now():
                continue
            usd = int(price.get("units", 0) or 0) + int(price.get("nanos", 0) or 0) / 1e9
            points.append(HistoryPoint(pool, max(start, since), usd, None))
        return points


def region_of(zone: str) -> str:
    """``us-central1`` of ``us-central1-a``."""
    return zone.rpartition("-")[0]


def instant(text: str) -> float | None:
    """UTC seconds of an RFC 3339 time; None if it is none."""
    try:
        return datetime.fromisoformat(text).timestamp() if text else None
    except ValueError:
        return None


def _regular(pattern: str) -> str:
    """A name with ``*`` as the regular expression that ``eq`` takes."""
    found = re.fullmatch(r"\(\?s:(.*)\)(?:\\Z|\\z)", translate(pattern))
    return found[1] if found else re.escape(pattern)
