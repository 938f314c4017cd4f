"""Spot price history as AWS gives it: the output of ``aws ec2 describe-spot-price-history``.

``{"SpotPriceHistory": [{"AvailabilityZone", "InstanceType", "ProductDescription", "SpotPrice", "Timestamp"}, ...]}``.
A row is a change: its price holds until the next row of the same zone and type.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

from everstep.market.clouds import region_of_zone
from everstep.market.documents import line_of, number, read_document, shown
from everstep.market.faults import Malformed
from everstep.market.prices import Gathering, Place, PriceSeries
from everstep.market.rows import PRICE, instant

KEY = "SpotPriceHistory"
LINUX = "Linux/UNIX"


def read_aws_history(path: Path, *, product: str = LINUX) -> tuple[PriceSeries, ...]:
    """Every zone and machine type of the file.

    Args:
        path: the file.
        product: operating system; rows of others are left out, since they are dearer. A history names a product of a
            virtual private cloud apart (``Linux/UNIX (Amazon VPC)``): both count.

    Raises:
        Malformed: an entry is malformed, or there is none of ``product``.
    """
    document, text = read_document(path)
    entries = document.get(KEY)
    if not isinstance(entries, list):
        raise Malformed(path, KEY, f"expected a list, found {shown(entries)}")
    found = Gathering(path.name)
    others: set[str] = set()
    for index, entry in enumerate(entries):
        if not isinstance(entry, dict):
            _refuse(path, text, index, "", f"expected an object, found {shown(entry)}")
        sold = entry.get("ProductDescription", product)
        if sold not in (product, f"{product} (Amazon VPC)"):
            others.add(str(sold))
            continue
        found.add(*_row(path, text, index, entry))
    series = found.series()
    if not series:
        instead = f", but of {', '.join(sorted(others))}" if others else ""
        raise Malformed(path, KEY, f"has no prices of {product}{instead}")
    return series


def _row(path: Path, text: str, index: int, entry: dict[str, Any]) -> tuple[Place, float, float]:
    words = []
    for field in ("AvailabilityZone", "InstanceType", "Timestamp"):
        value = entry.get(field)
        if not isinstance(value, str) or not value:
            _refuse(path, text, index, field, f"expected text, found {shown(value)}")
        words.append(value)
    zone, machine_type, stamp = words
    price = number(entry.get("SpotPrice"))
    if price is None or price < 0:
        _refuse(path, text, index, "SpotPrice", f"expected {PRICE}, found {shown(entry.get('SpotPrice'))}")
    try:
        at = instant(stamp)
    except ValueError:
        _refuse(path, text, index, "Timestamp", f"expected a time such as 2030-01-31T18:00:00Z, found {shown(stamp)}")
    return Place("aws", region_of_zone("aws", zone), zone, machine_type), at, price


def _refuse(path: Path, text: str, index: int, field: str, message: str) -> NoReturn:
    where = f"{KEY}[{index}]" + (f".{field}" if field else "")
    raise Malformed(path, where, message, line=line_of(text, KEY, index, field))
