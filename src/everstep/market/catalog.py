"""Public price catalogs in the family of SkyPilot's ``vms.csv``, schemas v5 to v8, by the names in the header.

``InstanceType``, ``AcceleratorName``, ``AcceleratorCount``, ``vCPUs``, ``MemoryGiB``, ``Price``, ``SpotPrice``,
``Region`` and, where the cloud has them, ``AvailabilityZone`` and ``Arch``; other columns are ignored. Their order
differs from cloud to cloud. An empty ``SpotPrice`` means that there is no spot offer; a price of 0 is how catalogs
fill a hole: no offer either, unless it is the host of accelerators that are another row.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path

from everstep.market.clouds import cloud_of_file
from everstep.market.faults import Malformed
from everstep.market.gcp_machines import whole_machines
from everstep.market.listed import Listed
from everstep.market.rows import Row, rows
from everstep.model.offers import MachineType, Market, Offer

COLUMNS = ("InstanceType", "AcceleratorName", "AcceleratorCount", "vCPUs", "MemoryGiB", "Price", "SpotPrice", "Region")


def read_catalog(path: Path, *, as_of: float, cloud: str = "", source: str = "") -> tuple[Offer, ...]:
    """What the catalog sells, in the order of the file: at most one offer per machine, place and market.

    Args:
        path: the file.
        as_of: UTC seconds as of which the prices are.
        cloud: whose they are; empty = as the name of the source or of the file says.
        source: where they come from, for the ledger; empty = the file's name.

    Raises:
        Malformed: a row is malformed, or nothing tells whose catalog it is.
    """
    listed: Iterable[Listed] = [_listed(row) for row in rows(path, COLUMNS)]
    cloud = cloud or cloud_of_file(source) or cloud_of_file(str(path))
    if not cloud:
        raise Malformed(path, "", "nothing tells whose catalog this is", fix="name the cloud (--cloud aws)")
    if cloud == "gcp":
        listed = whole_machines(listed)
    return tuple(dict.fromkeys(_offers(listed, cloud, as_of, source or path.name)))


def _listed(row: Row) -> Listed:
    name, accelerator = row.text("InstanceType"), row.text("AcceleratorName")
    if not (name or accelerator):
        raise row.fault("InstanceType", "neither a machine type nor an accelerator")
    cpus, memory_gib = (row.number(column) if row.text(column) else 0.0 for column in ("vCPUs", "MemoryGiB"))
    return Listed(
        MachineType(name, accelerator, _accelerators(row, accelerator), cpus, memory_gib),
        row.word("Region"),
        row.text("AvailabilityZone"),
        row.price("Price"),
        row.price("SpotPrice"),
    )


def _accelerators(row: Row, accelerator: str) -> int:
    """How many; a share of one (``0.5``) is sold as one."""
    if not accelerator:
        return 0
    return max(math.ceil(row.number("AcceleratorCount")), 1) if row.text("AcceleratorCount") else 1


def _offers(listed: Iterable[Listed], cloud: str, as_of: float, source: str) -> Iterator[Offer]:
    for one in listed:
        prices = {Market.ON_DEMAND: one.on_demand_usd_per_h, Market.SPOT: one.spot_usd_per_h}
        for market, price in prices.items():
            # nan is not above 0 either.
            if not price > 0:
                continue
            yield Offer(
                provider=cloud,
                region=one.region,
                zone=one.zone or one.region,
                machine=one.machine,
                market=market,
                price_usd_per_h=price,
                # A machine that is sold as spot alone has no other bound than its own price.
                on_demand_usd_per_h=one.on_demand_usd_per_h if one.on_demand_usd_per_h > 0 else price,
                price_as_of=as_of,
                price_source=source,
            )
