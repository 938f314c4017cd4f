"""What the project may hold in a region, as ``regions.get`` tells it: accelerators and virtual CPUs.

https://docs.cloud.google.com/compute/resource-usage: spot machines count against a ``PREEMPTIBLE_`` quota where the
project has one above 0, else against the common one; newer families have a quota of virtual CPUs of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from everstep.model.offers import Market, Offer
from everstep.providers.gcp.accelerators import vendors_name
from everstep.providers.gcp.calls import Calls

_OWN_CPUS = ("a2", "a3", "c2", "c2d", "c3", "g2", "m1", "m2", "m3", "n2", "n2d", "t2a", "t2d")
"""Families with a quota of virtual CPUs of their own, ``N2_CPUS``, where the region tells one."""
EVERYWHERE = "GPUS_ALL_REGIONS"
"""Accelerators of the whole project, of any kind."""


@dataclass(frozen=True, slots=True)
class Quota:
    """One bound. ``needed`` is what one machine takes of it; ``used`` what is taken now."""

    metric: str
    limit: float
    used: float
    needed: float

    @property
    def holds(self) -> bool:
        """Whether it holds one machine at all, if everything else is given back."""
        return self.limit >= self.needed


Limits = Mapping[str, tuple[float, float]]
"""Limit and usage by metric."""


async def limits(calls: Calls, region: str) -> Limits:
    """Those of a region."""
    answer = await calls.call("regions", "get", region=region)
    return limits_of(answer)


def limits_of(described: Mapping[str, object]) -> Limits:
    """Those of a region or project, as REST has it."""
    rows = described.get("quotas", [])
    assert isinstance(rows, list)
    return {q["metric"]: (float(q.get("limit", 0.0)), float(q.get("usage", 0.0))) for q in rows}


def quotas_of(offer: Offer, known: Limits) -> list[Quota]:
    """The bounds that a machine of an offer meets; those that the vendor does not tell are left out."""
    machine, spot = offer.machine, offer.market is Market.SPOT
    wanted: list[tuple[str, float]] = []
    if machine.accelerator:
        name = vendors_name(machine.accelerator).removeprefix("nvidia-").removeprefix("tesla-")
        wanted.append((f"NVIDIA_{name.upper().replace('-', '_')}_GPUS", float(machine.accelerator_count)))
    family = machine.name.partition("-")[0]
    own = f"{family.upper()}_CPUS"
    wanted.append((own if family in _OWN_CPUS and own in known else "CPUS", machine.cpus))
    found = []
    for metric, needed in wanted:
        cheap = f"PREEMPTIBLE_{metric}"
        # The common quota of CPUs stands in for a preemptible one of 0; accelerators have no such stand-in.
        if spot and cheap in known and (known[cheap][0] > 0 or metric.endswith("_GPUS")):
            metric = cheap
        if metric in known:
            found.append(Quota(metric, *known[metric], needed))
    return found
