"""What the fake vendor sells: machine types, accelerators, capacity by zone, rates by region; constant or of a trace.

As at the vendor, a machine has no price of its own: its cores, memory and accelerators have, by family and region
(https://cloud.google.com/compute/vm-instance-pricing). Spot prices are such rates too, and change at most once a day.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from everstep.testing.steps import Steps, value_at


@dataclass(frozen=True, slots=True)
class Kind:
    """A machine type. ``accelerator`` is the vendor's name of what is built in, empty for none."""

    cpus: int
    memory_mib: int
    accelerator: str = ""
    accelerators: int = 0


@dataclass(frozen=True, slots=True)
class Rate:
    """What one core, GiB or accelerator costs an hour, USD."""

    on_demand: float
    spot: Steps

    def at(self, now: float, *, spot: bool) -> float:
        """The rate in force."""
        return value_at(self.spot, now) if spot else self.on_demand


@dataclass(frozen=True, slots=True)
class Supply:
    """One pool in one zone.

    Attributes:
        spot_room: how many spot machines the zone has over time; empty = without end.
        on_demand_room: how many standard machines; None = without end.
        compact_room: how many machines find a place in one compact placement policy; None = without end.
        preempted_share: what the vendor tells as preemption rate, 0 to 1.
    """

    spot_room: Steps = ()
    on_demand_room: int | None = None
    compact_room: int | None = None
    preempted_share: float = 0.1

    def room(self, now: float) -> int | None:
        """Spot machines that can be held now; None = without end."""
        return int(value_at(self.spot_room, now)) if self.spot_room else None


@dataclass(frozen=True, slots=True)
class World:
    """Everything that is for sale.

    Attributes:
        supplies: by zone and pool. A pool is a machine type, with ``+ACCELERATOR:COUNT`` where accelerators are
            attached: ``n1-standard-8+nvidia-tesla-t4:1``.
        kinds: machine types.
        rates: by region and resource: ``N1 core``, ``N1 ram``, or an accelerator's name. Region ``""`` = any other.
        disk_usd_per_gib_month: by disk type.
        quotas: by region and metric, ``("us-central1", "PREEMPTIBLE_NVIDIA_T4_GPUS")``; what is missing has no bound.
    """

    supplies: Mapping[tuple[str, str], Supply]
    kinds: Mapping[str, Kind]
    rates: Mapping[tuple[str, str], Rate]
    disk_usd_per_gib_month: Mapping[str, float] = field(
        default_factory=lambda: {"pd-balanced": 0.10, "pd-ssd": 0.17, "pd-standard": 0.04}
    )
    quotas: Mapping[tuple[str, str], int] = field(default_factory=dict)

    @property
    def zones(self) -> list[str]:
        """Every zone, in order."""
        return sorted({zone for zone, _ in self.supplies})

    @property
    def regions(self) -> list[str]:
        """Every region, in order."""
        return sorted({region_of(zone) for zone in self.zones})

    def rate(self, region: str, resource: str) -> Rate:
        """Rate of a core, GiB or accelerator. Raises KeyError."""
        return self.rates.get((region, resource)) or self.rates["", resource]

    def price_usd_per_h(self, region: str, pool: str, now: float, *, spot: bool) -> float:
        """What a machine of a pool costs an hour."""
        name, accelerator, count = parted(pool)
        kind = self.kinds[name]
        family = name.partition("-")[0].upper()
        usd = kind.cpus * self.rate(region, f"{family} core").at(now, spot=spot)
        usd += kind.memory_mib / 1024 * self.rate(region, f"{family} ram").at(now, spot=spot)
        accelerator, count = (accelerator, count) if accelerator else (kind.accelerator, kind.accelerators)
        return usd + (count * self.rate(region, accelerator).at(now, spot=spot) if accelerator else 0.0)


@dataclass(frozen=True, slots=True)
class Timing:
    """How long things take, seconds. The defaults are about the vendor's.

    Attributes:
        notice_s: from a preemption's signal to the forced stop: "30 seconds for Spot VMs" (discovery document,
            ``Scheduling.skipGuestOsShutdown``).
        stop_s: stopping or deleting any other machine.
        provision_s: PROVISIONING.
        stage_s: STAGING.
        operation_s: an operation that makes no machine.
        hidden_s: until then lists may not show what an unfinished operation makes.
        repair_s: REPAIRING after a host error.
        maintenance_s: from the announcement of a host event to its begin.
    """

    notice_s: float = 30.0
    stop_s: float = 10.0
    provision_s: float = 2.0
    stage_s: float = 8.0
    operation_s: float = 2.0
    hidden_s: float = 1.0
    repair_s: float = 20.0
    maintenance_s: float = 60.0


KINDS: Mapping[str, Kind] = {
    # https://cloud.google.com/compute/docs/machine-resource
    "n1-standard-4": Kind(4, 15_360),
    "n1-standard-8": Kind(8, 30_720),
    "n1-highmem-8": Kind(8, 53_248),
    "e2-standard-4": Kind(4, 16_384),
    "n2-standard-4": Kind(4, 16_384),
    "g2-standard-8": Kind(8, 32_768, "nvidia-l4", 1),
    "a2-highgpu-1g": Kind(12, 87_040, "nvidia-tesla-a100", 1),
}

SMALL_WORLD = World(
    supplies={
        ("us-central1-a", "n1-standard-8+nvidia-tesla-t4:1"): Supply(),
        ("us-central1-b", "n1-standard-8+nvidia-tesla-t4:1"): Supply(),
        ("us-central1-a", "g2-standard-8"): Supply(),
        ("us-central1-a", "e2-standard-4"): Supply(),
        ("us-west1-b", "n1-standard-8+nvidia-tesla-t4:1"): Supply(),
    },
    kinds=KINDS,
    rates={
        ("", "N1 core"): Rate(0.0316, [(0.0, 0.0066)]),
        ("", "N1 ram"): Rate(0.0042, [(0.0, 0.0009)]),
        ("", "E2 core"): Rate(0.0218, [(0.0, 0.0065)]),
        ("", "E2 ram"): Rate(0.0029, [(0.0, 0.0009)]),
        ("", "G2 core"): Rate(0.0250, [(0.0, 0.0100)]),
        ("", "G2 ram"): Rate(0.0029, [(0.0, 0.0012)]),
        ("", "A2 core"): Rate(0.0316, [(0.0, 0.0095)]),
        ("", "A2 ram"): Rate(0.0042, [(0.0, 0.0013)]),
        ("", "nvidia-tesla-t4"): Rate(0.35, [(0.0, 0.14)]),
        ("", "nvidia-l4"): Rate(0.56, [(0.0, 0.22)]),
        ("", "nvidia-tesla-a100"): Rate(2.93, [(0.0, 0.88)]),
    },
)


def region_of(zone: str) -> str:
    """``us-central1`` of ``us-central1-a``."""
    return zone.rpartition("-")[0]


def parted(pool: str) -> tuple[str, str, int]:
    """Machine type, attached accelerator and how many; no accelerator is ``""`` and 0."""
    kind, _, attached = pool.partition("+")
    name, _, count = attached.partition(":")
    return kind, name, int(count or 0)
