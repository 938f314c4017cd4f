"""Change logs of catalogs: a row whenever a price changed, empty prices when the machine left the catalog.

Columns: ``unix_time`` (seconds) or ``date`` (the day's last value), ``instance_type``, ``accelerator``,
``accelerator_count``, ``region``, ``zone``, ``on_demand_usd_per_h``, ``spot_usd_per_h``; ``cloud`` may be there.
On GCP an empty ``instance_type`` is a bare accelerator: its host is another row.
"""

from __future__ import annotations

from pathlib import Path

from everstep.market.clouds import cloud_of_region
from everstep.market.prices import Gathering, Place, PriceSeries
from everstep.market.rows import LATEST_S, header, rows

COLUMNS = ("instance_type", "region", "zone", "on_demand_usd_per_h", "spot_usd_per_h")


def read_change_log(path: Path) -> tuple[PriceSeries, ...]:
    """Every place of the log.

    Raises:
        Malformed: a row is malformed.
    """
    time = "date" if "unix_time" not in header(path) else "unix_time"
    found = Gathering(path.name)
    for row in rows(path, (*COLUMNS, time)):
        region = row.word("region")
        place = Place(
            row.text("cloud") or cloud_of_region(region),
            region,
            row.text("zone"),
            row.text("instance_type"),
            row.text("accelerator"),
            row.count("accelerator_count"),
        )
        if not (place.machine_type or place.accelerator):
            raise row.fault("instance_type", "neither a machine type nor an accelerator")
        at = row.number(time, "seconds since 1970") if time == "unix_time" else row.instant(time)
        if at > LATEST_S:
            raise row.fault(time, f"expected seconds since 1970, found {row.text(time)!r}")
        found.add(place, at, row.price("spot_usd_per_h"), row.price("on_demand_usd_per_h"))
    return found.series()
