"""Types, offerings, prices and placement scores of the fake vendor: what is only ever read."""

from __future__ import annotations

import json
from typing import Any

from everstep.testing.ec2 import filters as by
from everstep.testing.ec2.books import moment
from everstep.testing.ec2.cloud import Cloud
from everstep.testing.ec2.market import changes
from everstep.testing.ec2.paper import region_of
from everstep.testing.ec2.wire import Refused, check

_LINUX = "Linux/UNIX"
_HISTORY_S = 90 * 86_400.0


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
        {"Region": where, **({"AvailabilityZoneId": zone} if zone else {}), "Score": max(round(share * 10), 1)}
        for (where, zone), share in sorted(shares.items(), key=lambda item: (-item[1], item[0]))
    ]
    return {"SpotPlacementScores": scores}


def get_products(cloud: Cloud, p: dict[str, Any]) -> dict[str, Any]:
    """``GetProducts`` of the price list: machines on demand and gp3."""
    check("pricing", "GetProducts", p)
    if p["ServiceCode"] != "AmazonEC2":
        raise Refused("InvalidParameterException", f"Invalid ServiceCode {p['ServiceCode']}")
    products = []
    for region in sorted({region_of(z) for z, _ in cloud.world.supplies}):
        for kind in sorted({k for z, k in cloud.world.supplies if region_of(z) == region}):
            attributes = {
                "instanceType": kind,
                "regionCode": region,
                "operatingSystem": "Linux",
                "tenancy": "Shared",
                "preInstalledSw": "NA",
                "capacitystatus": "Used",
            }
            products.append(("Compute Instance", attributes, "Hrs", cloud.world.on_demand_usd_per_h[kind]))
        disk = {"volumeApiName": "gp3", "regionCode": region}
        products.append(("Storage", disk, "GB-Mo", cloud.world.disk_usd_per_gib_month))
    wanted = {f["Field"]: f["Value"] for f in p.get("Filters", [])}
    found = [
        _product(family, attributes, unit, usd)
        for family, attributes, unit, usd in products
        if all({"productFamily": family, **attributes}.get(k) == v for k, v in wanted.items())
    ]
    page, more = _slice(found, {"MaxResults": 100, **p})
    return {"FormatVersion": "aws_v1", "PriceList": page, **({"NextToken": more} if more else {})}


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
    first = int(p.get("NextToken") or 0)
    rest = first + min(p.get("MaxResults", 1000), 1000)
    return items[first:rest], str(rest) if rest < len(items) else None
