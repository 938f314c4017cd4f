"""On-demand list prices alone: ``region``, ``instance_type``, ``on_demand_usd_per_h``."""

from __future__ import annotations

from pathlib import Path

from everstep.market.clouds import cloud_of_file, cloud_of_region
from everstep.market.prices import Gathering, Place, PriceSeries
from everstep.market.rows import rows

COLUMNS = ("region", "instance_type", "on_demand_usd_per_h")


def read_list_prices(path: Path, *, as_of: float) -> tuple[PriceSeries, ...]:
    """Every machine type and region, as of one instant (UTC seconds).

    Raises:
        Malformed: a row is malformed.
    """
    found = Gathering(path.name)
    for row in rows(path, COLUMNS):
        region = row.word("region")
        cloud = cloud_of_file(path.name) or cloud_of_region(region)
        place = Place(cloud, region, "", row.word("instance_type"))
        found.add(place, as_of, on_demand=row.price("on_demand_usd_per_h"))
    return found.series()
