"""Zones, types, images, quotas, prices and advice of the fake vendor: what is only ever read."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

from everstep.testing.gce.books import stamp
from everstep.testing.gce.cloud import Cloud
from everstep.testing.gce.discovery import Called, Refused
from everstep.testing.gce.market import parted, region_of
from everstep.testing.steps import changes

COMPUTE_SERVICE = "6F81-5844-456A"
"""Compute Engine in the Cloud Billing catalog."""
_HISTORY_S = 30 * 86_400.0
_GEOGRAPHY = {"us": "Americas", "europe": "EMEA", "asia": "APAC"}
_MARKETING = {
    # How the catalog's descriptions call accelerators.
    "nvidia-tesla-t4": "Nvidia Tesla T4",
    "nvidia-tesla-p4": "Nvidia Tesla P4",
    "nvidia-tesla-p100": "Nvidia Tesla P100",
    "nvidia-tesla-v100": "Nvidia Tesla V100",
    "nvidia-l4": "Nvidia L4",
    "nvidia-tesla-a100": "Nvidia Tesla A100",
    "nvidia-a100-80gb": "Nvidia Tesla A100 80GB",
    "nvidia-h100-80gb": "Nvidia H100 80GB",
}
_STORAGE = {
    "pd-standard": "Storage PD Capacity",
    "pd-balanced": "Balanced PD Capacity",
    "pd-ssd": "SSD backed PD Capacity",
}


def zones(cloud: Cloud) -> list[dict[str, Any]]:
    """As ``Zone``."""
    return [
        {
            "kind": "compute#zone",
            "name": zone,
            "status": "UP",
            "region": cloud.project.link(f"regions/{region_of(zone)}"),
            "selfLink": cloud.project.link(f"zones/{zone}"),
        }
        for zone in cloud.world.zones
    ]


def regions(cloud: Cloud) -> list[dict[str, Any]]:
    """As ``Region``, with the quotas that the world bounds."""
    return [
        {
            "kind": "compute#region",
            "name": region,
            "status": "UP",
            "selfLink": cloud.project.link(f"regions/{region}"),
            "zones": [cloud.project.link(f"zones/{z}") for z in cloud.world.zones if region_of(z) == region],
            "quotas": [
                {"metric": metric, "limit": float(limit), "usage": 0.0}
                for (where, metric), limit in cloud.world.quotas.items()
                if where == region
            ],
        }
        for region in cloud.world.regions
    ]


def project(cloud: Cloud) -> dict[str, Any]:
    """As ``Project``, with its own quotas: those of the world whose region is empty."""
    quotas = [
        {"metric": metric, "limit": float(limit), "usage": 0.0}
        for (where, metric), limit in cloud.world.quotas.items()
        if where == ""
    ]
    return {
        "kind": "compute#project",
        "name": cloud.project.id,
        "id": str(cloud.project.number),
        **({"quotas": quotas} if quotas else {}),
    }


def subnetworks(cloud: Cloud) -> dict[str, list[dict[str, Any]]]:
    """As ``Subnetwork``: that of the network ``default`` in each region."""
    return {
        region: [
            {
                "kind": "compute#subnetwork",
                "name": "default",
                "network": cloud.project.link("global/networks/default"),
                "region": cloud.project.link(f"regions/{region}"),
                "ipCidrRange": f"10.{128 + number}.0.0/20",
                "selfLink": cloud.project.link(f"regions/{region}/subnetworks/default"),
            }
        ]
        for number, region in enumerate(cloud.world.regions)
    }


def firewalls(cloud: Cloud) -> list[dict[str, Any]]:
    """As ``Firewall``."""
    common = {"kind": "compute#firewall", "direction": "INGRESS", "priority": 65_534, "disabled": False}
    network = cloud.project.link("global/networks/default")
    return [{**common, "name": name, "network": network, **rule} for name, rule in cloud.firewall_rules.items()]


def machine_types(cloud: Cloud) -> dict[str, list[dict[str, Any]]]:
    """As ``MachineType``, by zone."""
    found: dict[str, list[dict[str, Any]]] = {}
    for zone in cloud.world.zones:
        for name in sorted({parted(p)[0] for z, p in cloud.world.supplies if z == zone}):
            kind = cloud.world.kinds[name]
            described: dict[str, Any] = {
                "kind": "compute#machineType",
                "name": name,
                "description": f"{kind.cpus} vCPUs",
                "guestCpus": kind.cpus,
                "memoryMb": kind.memory_mib,
                "architecture": "X86_64",
                "isSharedCpu": False,
                "zone": zone,
                "selfLink": cloud.project.link(f"zones/{zone}/machineTypes/{name}"),
            }
            if kind.accelerator:
                described["accelerators"] = [
                    {"guestAcceleratorType": kind.accelerator, "guestAcceleratorCount": kind.accelerators}
                ]
            found.setdefault(zone, []).append(described)
    return found


def accelerator_types(cloud: Cloud) -> dict[str, list[dict[str, Any]]]:
    """As ``AcceleratorType``, by zone: those that are attached, and those that are built in."""
    found: dict[str, list[dict[str, Any]]] = {}
    for zone in cloud.world.zones:
        names: dict[str, int] = {}
        for where, pool in cloud.world.supplies:
            kind, name, count = parted(pool)
            built_in = cloud.world.kinds[kind]
            for one, many in ((name, count), (built_in.accelerator, built_in.accelerators)):
                if where == zone and one:
                    names[one] = max(names.get(one, 0), many)
        for name, most in sorted(names.items()):
            link = cloud.project.link(f"zones/{zone}/acceleratorTypes/{name}")
            described = {"kind": "compute#acceleratorType", "name": name, "maximumCardsPerInstance": most}
            found.setdefault(zone, []).append(
                {**described, "zone": cloud.project.link(f"zones/{zone}"), "selfLink": link}
            )
    return found


def image(cloud: Cloud, project: str, family: str) -> dict[str, Any]:
    """As ``Image``: the newest of a family."""
    url = f"projects/{project}/global/images/{family}-v20300101"
    size = cloud.image_gb(f"projects/{project}/global/images/family/{family}")
    return {
        "kind": "compute#image",
        "name": f"{family}-v20300101",
        "family": family,
        "status": "READY",
        "architecture": "X86_64",
        "diskSizeGb": str(size),
        "selfLink": f"{cloud.project.base}/compute/v1/{url}",
    }


# --- prices ----------------------------------------------------------------------------------------------------------


def skus(cloud: Cloud, service: str) -> list[dict[str, Any]]:
    """As ``Sku`` of the billing catalog: rates of cores, memory, accelerators and disks by region, as of now."""
    if service != COMPUTE_SERVICE:
        raise Refused(404, "NOT_FOUND", f"Unknown service {service}")
    found: list[dict[str, Any]] = []
    for region in cloud.world.regions:
        where = _GEOGRAPHY.get(region.partition("-")[0], region)
        for (area, resource), rate in cloud.world.rates.items():
            if area not in ("", region) or (area == "" and (region, resource) in cloud.world.rates):
                continue
            for spot in (False, True):
                usd = rate.at(cloud.now(), spot=spot)
                description, group, unit = _described(resource, where, spot=spot)
                usage = "Preemptible" if spot else "OnDemand"
                found.append(_sku(len(found), description, ("Compute", group, usage), region, (usd, unit)))
        for kind, usd in cloud.world.disk_usd_per_gib_month.items():
            category = ("Storage", "SSD" if "ssd" in kind else "PDStandard", "OnDemand")
            found.append(_sku(len(found), f"{_STORAGE[kind]} in {where}", category, region, (usd, "GiBy.mo")))
    return found


def _described(resource: str, where: str, *, spot: bool) -> tuple[str, str, str]:
    """Description, resource group and unit."""
    ahead = "Spot Preemptible " if spot else ""
    family, _, part = resource.partition(" ")
    if part:
        predefined = " Predefined" if family == "N1" else ""
        word, unit = ("Core", "h") if part == "core" else ("Ram", "GiBy.h")
        group = "N1Standard" if family == "N1" else ("CPU" if part == "core" else "RAM")
        return f"{ahead}{family}{predefined} Instance {word} running in {where}", group, unit
    attached = " attached to Spot Preemptible VMs" if spot else ""
    return f"{_MARKETING[resource]} GPU{attached} running in {where}", "GPU", "h"


def _sku(
    number: int, description: str, category: tuple[str, str, str], region: str, price: tuple[float, str]
) -> dict[str, Any]:
    usd, unit = price
    nanos = round(usd * 1e9)
    money = {"currencyCode": "USD", "units": str(nanos // 10**9), "nanos": nanos % 10**9}
    sku = f"{number:04X}-0000-FAKE"
    return {
        "name": f"services/{COMPUTE_SERVICE}/skus/{sku}",
        "skuId": sku,
        "description": description,
        "category": {
            "serviceDisplayName": "Compute Engine",
            "resourceFamily": category[0],
            "resourceGroup": category[1],
            "usageType": category[2],
        },
        "serviceRegions": [region],
        "serviceProviderName": "Google",
        "pricingInfo": [
            {
                "pricingExpression": {
                    "usageUnit": unit,
                    "displayQuantity": 1,
                    "tieredRates": [{"startUsageAmount": 0, "unitPrice": money}],
                }
            }
        ],
    }


# --- advice ----------------------------------------------------------------------------------------------------------


def capacity_history(cloud: Cloud, called: Called) -> dict[str, Any]:
    """``advice.capacityHistory``: list prices and preemption rates of spot machines by day, at most 30 of them."""
    body = called.body
    wanted = body.get("instanceProperties", {})
    if wanted.get("scheduling", {}).get("provisioningModel") != "SPOT":
        raise Refused(400, "invalid", "Invalid value for field 'scheduling.provisioningModel': it must be SPOT.")
    found = re.fullmatch(r"(?:.*/)?zones/([^/]+)", body.get("locationPolicy", {}).get("location", ""))
    region = called.path["region"]
    if found is None or region_of(found[1]) != region:
        raise Refused(
            400, "invalid", "Invalid value for field 'locationPolicy.location': a zone of the region is needed."
        )
    pool = wanted.get("machineType", "")
    for accelerator in wanted.get("guestAccelerators", []):
        pool += f"+{accelerator['acceleratorType'].rpartition('/')[2]}:{accelerator['acceleratorCount']}"
    supply = cloud.world.supplies.get((found[1], pool))
    if supply is None:
        raise Refused(400, "invalid", f"Invalid value for field 'machineType': '{pool}' is not sold in {found[1]}.")
    answer: dict[str, Any] = {"machineType": wanted["machineType"], "location": cloud.project.link(f"zones/{found[1]}")}
    if "PRICE" in body.get("types", []):
        answer["priceHistory"] = [
            {"interval": interval, "listPrice": {"currencyCode": "USD", "units": str(n // 10**9), "nanos": n % 10**9}}
            for interval, n in _prices(cloud, region, pool)
        ]
    if "PREEMPTION" in body.get("types", []):
        answer["preemptionHistory"] = [
            {"interval": _interval(a, b), "preemptionRate": supply.preempted_share} for a, b in _days(cloud.now())
        ]
    return answer


def _prices(cloud: Cloud, region: str, pool: str) -> list[tuple[dict[str, str], int]]:
    """Intervals and billionths of a dollar."""
    now, start = cloud.now(), cloud.now() - _HISTORY_S
    kind, accelerator, _ = parted(pool)
    family = kind.partition("-")[0].upper()
    named = accelerator or cloud.world.kinds[kind].accelerator
    resources = [f"{family} core", f"{family} ram", *([named] if named else [])]
    instants = {start}
    for resource in resources:
        instants |= {max(at, start) for at, _ in changes(cloud.world.rate(region, resource).spot, start, now)}
    begins = sorted(instants)
    ends = [*begins[1:], now]
    return [
        (_interval(a, b), round(cloud.world.price_usd_per_h(region, pool, a, spot=True) * 1e9))
        for a, b in zip(begins, ends, strict=True)
    ]


def _days(now: float) -> list[tuple[float, float]]:
    today = datetime.fromtimestamp(now, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    days = [today - timedelta(days=n) for n in range(30, 0, -1)]
    return [(d.timestamp(), d.timestamp() + 86_400.0) for d in days]


def _interval(start: float, end: float) -> dict[str, str]:
    return {"startTime": stamp(start), "endTime": stamp(end)}


def capacity(cloud: Cloud, called: Called) -> dict[str, Any]:
    """``advice.capacity``: how likely so many spot machines are to be had, by zone."""
    size = int(called.body.get("size", 1))
    selections = called.body.get("instanceFlexibilityPolicy", {}).get("instanceSelections", {})
    named = called.body.get("distributionPolicy", {}).get("zones", [])
    zones = {one["zone"].rpartition("/")[2] for one in named}
    pools = set()
    for selection in selections.values():
        cards = [
            f"+{a['acceleratorType'].rpartition('/')[2]}:{a['acceleratorCount']}"
            for a in selection.get("guestAccelerators", [])
        ]
        pools |= {kind + "".join(cards) for kind in selection.get("machineTypes", [])}
    scores = []
    for (zone, pool), supply in sorted(cloud.world.supplies.items()):
        if region_of(zone) == called.path["region"] and pool in pools and (not zones or zone in zones):
            room = supply.room(cloud.now())
            scores.append((1.0 if room is None else min(room / size, 1.0), zone, parted(pool)[0]))
    if not scores:
        raise Refused(400, "invalid", "Invalid value for field 'instanceSelections': not sold in the region.")
    score, zone, kind = max(scores)
    shard = {"zone": zone, "machineType": kind, "instanceCount": size, "provisioningModel": "SPOT"}
    return {"recommendations": [{"scores": {"obtainability": score}, "shards": [shard]}]}
