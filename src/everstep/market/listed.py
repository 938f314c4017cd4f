"""One row of a catalog, before it becomes offers."""

from __future__ import annotations

from dataclasses import dataclass

from everstep.model.offers import MachineType


@dataclass(frozen=True, slots=True)
class Listed:
    """A machine at a place.

    Attributes:
        machine: name, accelerators, CPUs and memory; the name of a bare accelerator of GCP is empty.
        region, zone: where; ``zone`` is empty for clouds without.
        on_demand_usd_per_h, spot_usd_per_h: nan = not sold so.
    """

    machine: MachineType
    region: str
    zone: str
    on_demand_usd_per_h: float
    spot_usd_per_h: float
