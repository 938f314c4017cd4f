"""GCP's spot and on-demand prices of whole machines, one snapshot a month.

Columns: ``date``, ``machine_type``, ``region``, ``on_demand_hour``, ``spot_hour`` (USD). a2, a3, a4 and g2 include
their accelerators, n1 has none. Prices are those of a region.
"""

from __future__ import annotations

from pathlib import Path

from everstep.market.prices import Gathering, Place, PriceSeries
from everstep.market.rows import rows

COLUMNS = ("date", "machine_type", "region", "on_demand_hour", "spot_hour")


def read_gcp_monthly(path: Path) -> tuple[PriceSeries, ...]:
    """Every machine type and region of the file.

    Raises:
        Malformed: a row is malformed.
    """
    found = Gathering(path.name)
    for row in rows(path, COLUMNS):
        place = Place("gcp", row.word("region"), "", row.word("machine_type"))
        found.add(place, row.instant("date"), row.price("spot_hour"), row.price("on_demand_hour"))
    return found.series()
