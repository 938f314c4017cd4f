"""List prices from AWS's own price list (``pricing:GetProducts``).

A product is a JSON text whose ``terms.OnDemand.*.priceDimensions.*`` hold ``unit`` and ``pricePerUnit.USD``:
https://docs.aws.amazon.com/awsaccountbilling/latest/aboutv2/reading-service-price-list-file-for-services.html
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from everstep.model.errors import Unreachable
from everstep.providers.aws.calls import Calls

SOURCE = "AWS price list"
HOURS_PER_MONTH = 730.0
"""How AWS turns a month into hours: https://aws.amazon.com/ebs/pricing/ and its calculator."""
_FEW = 8
"""So many types are asked for one by one; of more, the whole region is read."""
_LINUX = {
    "operatingSystem": "Linux",
    "tenancy": "Shared",
    "preInstalledSw": "NA",
    "capacitystatus": "Used",
}


async def on_demand_usd_per_h(calls: Calls, region: str, types: Sequence[str]) -> dict[str, float]:
    """Price of an hour of each type on demand, Linux; types without a price are left out."""
    fixed = {"regionCode": region, **_LINUX}
    wanted = [{**fixed, "instanceType": t} for t in types] if len(types) <= _FEW else [fixed]
    prices = {}
    for fields in wanted:
        for product in await _products(calls, fields):
            name = product["product"]["attributes"].get("instanceType")
            for unit, usd in _dimensions(product):
                if unit == "Hrs" and usd > 0:
                    prices[name] = usd
    return {t: prices[t] for t in types if t in prices}


async def disk_usd_per_gib_h(calls: Calls, region: str, volume_type: str) -> float:
    """Price of one GiB of an EBS volume for one hour."""
    fields = {"regionCode": region, "productFamily": "Storage", "volumeApiName": volume_type}
    for product in await _products(calls, fields):
        for unit, usd in _dimensions(product):
            if unit == "GB-Mo":
                return usd / HOURS_PER_MONTH
    return 0.0


async def _products(calls: Calls, fields: dict[str, str]) -> list[dict[str, Any]]:
    filters = [{"Type": "TERM_MATCH", "Field": key, "Value": value} for key, value in fields.items()]
    listed = await calls.price_list("PriceList", ServiceCode="AmazonEC2", Filters=filters, FormatVersion="aws_v1")
    try:
        return [json.loads(text) for text in listed]
    except (TypeError, ValueError) as error:
        raise Unreachable(f"{SOURCE}: cannot be read: {error}") from error


def _dimensions(product: dict[str, Any]) -> Iterator[tuple[str, float]]:
    for term in product.get("terms", {}).get("OnDemand", {}).values():
        for dimension in term.get("priceDimensions", {}).values():
            usd = dimension.get("pricePerUnit", {}).get("USD")
            if usd is not None:
                yield dimension.get("unit", ""), float(usd)
