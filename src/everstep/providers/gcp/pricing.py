"""List prices and spot prices from Google's own catalog: rates of cores, memory and accelerators, added up.

The Cloud Billing catalog (https://cloud.google.com/billing/docs/reference/rest/v1/services.skus/list) knows no machine
types. A SKU says in its description what it is a rate of, ``Spot Preemptible G2 Instance Core running in Americas``;
region, unit and usage (``OnDemand``, ``Preemptible``) are fields. A machine whose rates are not all found is not
offered: a wrong price would be worse.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from everstep.model.offers import MachineType
from everstep.providers.gcp.accelerators import vendors_name
from everstep.providers.gcp.calls import Calls

SOURCE = "Google Cloud Billing catalog"
HOURS_PER_MONTH = 730.0
"""How Google turns a month into hours: https://cloud.google.com/compute/all-pricing."""
_SERVICE = "services/6F81-5844-456A"
"""Compute Engine."""
_OTHERS = re.compile(r"commitment|sole tenancy|custom|dws|calendar|flex|reserved|overcommit|premium|confidential", re.I)
"""Of what is no plain machine: rates of contracts, of other ways to lease, of options."""
_PART = re.compile(r"(?:Spot Preemptible )?(.+?)(?: Predefined)?(?: AMD)? Instance (Core|Ram) running in .+")
_COMPUTE_OPTIMIZED = re.compile(r"(?:Spot Preemptible )?Compute optimized (Core|Ram) running in .+")
_GPU = re.compile(r"(.+?) GPU(?: attached to Spot Preemptible VMs)? running in .+")
_DISK = {
    "Balanced PD Capacity": "pd-balanced",
    "SSD backed PD Capacity": "pd-ssd",
    "Storage PD Capacity": "pd-standard",
}
_FAMILIES = {"a3-megagpu": "A3PLUS", "a3-ultragpu": "A3ULTRA"}
"""Machine types whose rates are not named after the first part of their name."""
_USAGES = {"OnDemand": False, "Preemptible": True}


@dataclass(slots=True)
class Rates:
    """What an hour of a thing costs, USD: by region, by whether it is spot, by what it is a rate of.

    Attributes:
        parts: of ``("N1", "Core")``, per core; of ``("N1", "Ram")``, per GiB.
        gpus: by the words of its name: ``{"t4"}``, ``{"a100", "80gb"}``.
        disks: of a GiB of a disk type, by region and type.
    """

    parts: dict[tuple[str, bool, tuple[str, str]], float] = field(default_factory=dict)
    gpus: dict[tuple[str, bool, frozenset[str]], float] = field(default_factory=dict)
    disks: dict[tuple[str, str], float] = field(default_factory=dict)

    def machine_usd_per_h(self, region: str, machine: MachineType, *, spot: bool) -> float | None:
        """An hour of a machine; None if a rate of it is not known."""
        kind = machine.name.partition("+")[0]
        family = _FAMILIES.get("-".join(kind.split("-")[:2]), kind.partition("-")[0].upper())
        core = self.parts.get((region, spot, (family, "Core")))
        ram = self.parts.get((region, spot, (family, "Ram")))
        if core is None or ram is None:
            return None
        usd = machine.cpus * core + machine.memory_gib * ram
        if not machine.accelerator:
            return usd
        gpu = self.gpus.get((region, spot, _words(vendors_name(machine.accelerator))))
        return None if gpu is None else usd + machine.accelerator_count * gpu


async def rates(calls: Calls, regions: Iterable[str]) -> Rates:
    """The catalog's rates in some regions, as of now (up to 12 hours old, as its documentation says)."""
    wanted = frozenset(regions)
    found = Rates()
    for sku in await calls.prices(_SERVICE):
        here = wanted.intersection(sku.get("serviceRegions", ()))
        if here and not _OTHERS.search(sku.get("description", "")):
            _take(found, sku, here)
    return found


def _take(found: Rates, sku: Mapping[str, Any], regions: Iterable[str]) -> None:
    category, description = sku.get("category", {}), str(sku.get("description", ""))
    usd, unit = _rate(sku)
    if usd <= 0:
        return
    if category.get("resourceFamily") == "Storage" and unit == "GiBy.mo":
        name, _, place = description.partition(" in ")
        if name in _DISK and place:
            for region in regions:
                found.disks[region, _DISK[name]] = usd / HOURS_PER_MONTH
        return
    spot = _USAGES.get(category.get("usageType", ""))
    if category.get("resourceFamily") != "Compute" or spot is None:
        return
    part = _PART.fullmatch(description)
    general = _COMPUTE_OPTIMIZED.fullmatch(description)
    gpu = _GPU.fullmatch(description)
    for region in regions:
        if general is not None:
            found.parts[region, spot, ("C2", general[1])] = usd
        elif part is not None and unit == ("h" if part[2] == "Core" else "GiBy.h"):
            found.parts[region, spot, (part[1].replace(" ", "").upper(), part[2])] = usd
        elif gpu is not None and category.get("resourceGroup") == "GPU":
            found.gpus[region, spot, _words(gpu[1])] = usd


def _rate(sku: Mapping[str, Any]) -> tuple[float, str]:
    """USD and unit; of several tiers the first that costs."""
    for info in sku.get("pricingInfo", ()):
        expression = info.get("pricingExpression", {})
        for tier in expression.get("tieredRates", ()):
            price = tier.get("unitPrice", {})
            usd = int(price.get("units", 0) or 0) + float(price.get("nanos", 0) or 0) / 1e9
            if usd > 0 and price.get("currencyCode", "USD") == "USD":
                return usd, str(expression.get("usageUnit", ""))
    return 0.0, ""


def _words(name: str) -> frozenset[str]:
    """``Nvidia Tesla A100 80GB`` and ``nvidia-a100-80gb`` are the same."""
    words = set(re.split(r"[\s-]+", name.lower())) - {"nvidia", "tesla"}
    return frozenset("mega" if w == "plus" else w for w in words)
