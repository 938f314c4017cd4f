"""Spot prices of AWS, Azure and GCP side by side (published for the winter of 2019-20).

Columns: ``cloud``, ``region``, ``zone``, ``instance_type``, ``gpu``, ``num_gpus``, ``timestamp``, ``price`` (USD per
hour of the whole machine). AWS rows are changes, the others are samples; a price holds until the next row of the same
offer.
"""

from __future__ import annotations

from pathlib import Path

from everstep.market.prices import Gathering, Place, PriceSeries
from everstep.market.rows import PRICE, rows

COLUMNS = ("cloud", "region", "zone", "instance_type", "gpu", "num_gpus", "timestamp", "price")


def read_three_clouds(path: Path) -> tuple[PriceSeries, ...]:
    """Every offer of the file.

    Raises:
        Malformed: a row is malformed.
    """
    found = Gathering(path.name)
    for row in rows(path, COLUMNS):
        place = Place(
            row.word("cloud"),
            row.word("region"),
            row.text("zone"),
            row.word("instance_type"),
            row.text("gpu").upper(),
            row.count("num_gpus"),
        )
        found.add(place, row.instant("timestamp"), row.number("price", PRICE))
    return found.series()
