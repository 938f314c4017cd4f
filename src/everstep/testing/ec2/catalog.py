"""Types, offerings, prices and placement scores of the fake vendor: what is only ever read."""

from __future__ import annotations

import json
from typing import Any

from everstep.testing.ec2 import filters as by
from everstep.testing.ec2.books import moment
from everstep.testing.ec2.cloud import Cloud
from everstep.testing.ec2.paper import region_of
from everstep.testing.ec2.wire import Refused, check
from everstep.testing.steps import changes

_LINUX = "Linux/UNIX"
_HISTORY_S = 90 * 86_400.0
_PLENTY = 100_000
_QUOTAS = {
    # Family: code on demand, code of spot, as ``aws service-quotas list-service-quotas`` tells them.
    "Standard (A, C, D, H, I, M, R, T, Z)": ("L-1216C47A", "L-34B43A08"),
    "G and VT": ("L-DB2E81BA", "L-3819A6DF"),
    "P": ("L-417A185B", "L-7212CCBC"),
    "X": ("L-7295265B", "L-E3A00192"),
}


def describe_instance_types(cloud: Cloud, region: str, p: dict[str, Any]) -> dict[str, Any]:
    """``DescribeInstanceTypes``: those the world sells in the region, as moto's catalog has them."""
    sold = sorted({k for z, k in cloud.world.supplies if region_of(z) == region})
    for wanted in p.get("InstanceTypes", []):
        if wanted not in sold:
            raise Refused("InvalidInstanceType", f"The following supplied instance types do not exist: [{wanted}]")
    named = [k for k in sold if k in p.get("InstanceTypes", sold)]
    described = by.matching((cloud.paper.type(k) for k in named), p.get("Filters", []), by.MACHINE_TYPE)
    return {"InstanceTypes": described}


def describe_instance_type_offerings(cloud: Cloud, region: str, p: dict[str, Any]) -> dict[str, Any]:
    """``DescribeInstanceTypeOfferings``, by zone or by region."""
    kind = p.get("LocationType", "region")
    mine = [(z, k) for z, k in cloud.world.supplies if region_of(z) == region]
    rows = sorted({(z if kind == "availability-zone" else region, k) for z, k in mine})
    described = [{"InstanceType": k, "Location": place, "LocationType": kind} for place, k in rows]
    return {"InstanceTypeOfferings": by.matching(described, p.get("Filters", []), by.OFFERING)}


def describe_spot_price_history(cloud: Cloud, region: str, p: dict[str, Any]) -> dict[str, Any]:
    """``DescribeSpotPriceHistory``: newest first, the price in force at the start included, at most 90 days."""
    now = cloud.now()
    end = p["EndTime"].timestamp() if "EndTime" in p else now
    start = max(p["StartTime"].timestamp() if "StartTime" in p else now - _HISTORY_S, now - _HISTORY_S)
    products = p.get("ProductDescriptions", [_LINUX])
    rows = []
    for (zone, kind), supply in cloud.world.supplies.items():
        if region_of(zone) != region or kind not in p.get("InstanceTypes", [kind]):
            continue
        if p.get("AvailabilityZone", zone) != zone or not any(x.startswith(_LINUX) for x in products):
            continue
        for at, usd in changes(supply.spot_usd_per_h, start, min(end, now)):
            rows.append((max(at, now - _HISTORY_S), zone, kind, usd))
    described = [
        {
            "AvailabilityZone": zone,
            "InstanceType": kind,
            "ProductDescription": _LINUX,
            "SpotPrice": f"{usd:.6f}",
            "Timestamp": moment(at),
        }
        for at, zone, kind, usd in sorted(rows, reverse=True)
    ]
    page, more = _slice(by.matching(described, p.get("Filters", []), by.SPOT_PRICE), p)
    return {"SpotPriceHistory": page, "NextToken": more or ""}


def get_spot_placement_scores(cloud: Cloud, region: str, p: dict[str, Any]) -> dict[str, Any]:
    """``GetSpotPlacementScores``: 1 to 10, by the share of the target that the zones have room for."""
    kinds, regions = p.get("InstanceTypes", []), p.get("RegionNames", [region])
    shares: dict[tuple[str, str], float] = {}
    for (zone, kind), supply in cloud.world.supplies.items():
        where = region_of(zone)
        if where not in regions or kind not in kinds:
            continue
        room = supply.room(cloud.now())
        share = 1.0 if room is None else min(room / p["TargetCapacity"], 1.0)
        key = (where, zone if p.get("SingleAvailabilityZone") else "")
        shares[key] = min(shares.get(key, 0.0) + share, 1.0)
    scores = [
        {
            "Region": where,
            **({"AvailabilityZoneId": cloud.paper.zone_id(where, zone)} if zone else {}),
            "Score": max(round(share * 10), 1),
        }
        for (where, zone), share in sorted(shares.items(), key=lambda item: (-item[1], item[0]))
    ]
    return {"SpotPlacementScores": scores}


def describe_regions(cloud: Cloud, region: str, p: dict[str, Any]) -> dict[str, Any]:
    """``DescribeRegions``: those of the world; none needs an opt-in."""
    named = p.get("RegionNames")
    known = sorted({region_of(zone) for zone in cloud.world.zones})
    missing = sorted(set(named or ()) - set(known))
    if missing:
        raise Refused("InvalidParameterValue", f"Invalid region: [{', '.join(missing)}]")
    return {
        "Regions": [
            {"RegionName": one, "Endpoint": f"ec2.{one}.amazonaws.com", "OptInStatus": "opt-in-not-required"}
            for one in known
            if named is None or one in named
        ]
    }


def get_products(cloud: Cloud, region: str, p: dict[str, Any]) -> dict[str, Any]:
    """``GetProducts`` of the price list: machines on demand and gp3."""
    check("pricing", "GetProducts", p)
    if p["ServiceCode"] != "AmazonEC2":
        raise Refused("InvalidParameterException", f"Invalid ServiceCode {p['ServiceCode']}")
    products = []
    for place in sorted({region_of(z) for z, _ in cloud.world.supplies}):
        for kind in sorted({k for z, k in cloud.world.supplies if region_of(z) == place}):
            attributes = {
                "instanceType": kind,
                "regionCode": place,
                "operatingSystem": "Linux",
                "tenancy": "Shared",
                "preInstalledSw": "NA",
                "capacitystatus": "Used",
            }
            products.append(("Compute Instance", attributes, "Hrs", cloud.world.on_demand_usd_per_h[kind]))
        disk = {"volumeApiName": "gp3", "regionCode": place}
        products.append(("Storage", disk, "GB-Mo", cloud.world.disk_usd_per_gib_month))
    wanted = {f["Field"]: f["Value"] for f in p.get("Filters", [])}
    found = [
        _product(family, attributes, unit, usd)
        for family, attributes, unit, usd in products
        if all({"productFamily": family, **attributes}.get(k) == v for k, v in wanted.items())
    ]
    page, more = _slice(found, {"MaxResults": 100, **p})
    return {"FormatVersion": "aws_v1", "PriceList": page, **({"NextToken": more} if more else {})}


def list_service_quotas(cloud: Cloud, region: str, p: dict[str, Any]) -> dict[str, Any]:
    """``ListServiceQuotas`` of EC2: virtual CPUs by family; the world bounds all families alike."""
    check("service-quotas", "ListServiceQuotas", p)
    if p["ServiceCode"] != "ec2":
        raise Refused("NoSuchResourceException", f"The service {p['ServiceCode']} does not exist.")
    rows = []
    for family, codes in _QUOTAS.items():
        limits = (cloud.world.on_demand_vcpus, cloud.world.spot_vcpus)
        names = (f"Running On-Demand {family} instances", f"All {family} Spot Instance Requests")
        for code, name, limit in zip(codes, names, limits, strict=True):
            rows.append(
                {
                    "ServiceCode": "ec2",
                    "ServiceName": "Amazon Elastic Compute Cloud (Amazon EC2)",
                    "QuotaArn": f"arn:aws:servicequotas:{region}:{cloud.paper.account}:ec2/{code}",
                    "QuotaCode": code,
                    "QuotaName": name,
                    "Value": float(_PLENTY if limit is None else limit),
                    "Unit": "None",
                    "Adjustable": True,
                    "GlobalQuota": False,
                }
            )
    page, more = _slice([r for r in rows if p.get("QuotaCode") in (None, r["QuotaCode"])], p)
    return {"Quotas": page, **({"NextToken": more} if more else {})}


def _product(family: str, attributes: dict[str, str], unit: str, usd: float) -> str:
    dimension = {"unit": unit, "pricePerUnit": {"USD": f"{usd:.10f}"}}
    return json.dumps(
        {
            "product": {"productFamily": family, "attributes": attributes, "sku": "FAKE"},
            "serviceCode": "AmazonEC2",
            "terms": {"OnDemand": {"FAKE.TERM": {"priceDimensions": {"FAKE.TERM.RATE": dimension}}}},
        }
    )


def _slice(items: list[Any], p: dict[str, Any]) -> tuple[list[Any], str | None]:
    try:
        first = int(p.get("NextToken") or 0)
    except ValueError:
        raise Refused("InvalidPaginationToken", "The pagination token is invalid") from None
    rest = first + min(p.get("MaxResults", 1000), 1000)
    return items[first:rest], str(rest) if rest < len(items) else None
