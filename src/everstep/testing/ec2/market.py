"""What the fake vendor sells: zones, types, capacity and prices, constant or as steps of a trace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from everstep.testing.steps import Steps, value_at


@dataclass(frozen=True, slots=True)
class Supply:
    """One machine type in one zone.

    Attributes:
        spot_usd_per_h: spot price over time.
        spot_room: how many spot machines the zone has over time; empty = without end.
        on_demand_room: how many on-demand machines; None = without end.
        cluster_room: how many machines find a place in one cluster placement group; None = without end.
    """

    spot_usd_per_h: Steps
    spot_room: Steps = ()
    on_demand_room: int | None = None
    cluster_room: int | None = None

    def price(self, now: float) -> float:
        """Spot price in force, USD per hour."""
        return value_at(self.spot_usd_per_h, now)

    def room(self, now: float) -> int | None:
        """Spot machines that can be held now; None = without end."""
        return int(value_at(self.spot_room, now)) if self.spot_room else None


@dataclass(frozen=True, slots=True)
class World:
    """Everything that is for sale.

    Attributes:
        supplies: by zone and machine type. Types are those of moto's catalog, with its CPUs, memory and GPUs.
        on_demand_usd_per_h: list price by type, in every region.
        disk_usd_per_gib_month: price of gp3.
        spot_vcpus, on_demand_vcpus: quota of the account in each region; None = none.
    """

    supplies: Mapping[tuple[str, str], Supply]
    on_demand_usd_per_h: Mapping[str, float]
    disk_usd_per_gib_month: float = 0.08
    spot_vcpus: int | None = None
    on_demand_vcpus: int | None = None

    @property
    def zones(self) -> list[str]:
        """Every zone, in order."""
        return sorted({zone for zone, _ in self.supplies})


@dataclass(frozen=True, slots=True)
class Timing:
    """How long things take, seconds. The defaults are EC2's, except the notice's length in tests that cannot wait.

    Attributes:
        notice_s: from the interruption notice to the end; whole seconds.
        boot_s: pending.
        shut_down_s: shutting-down.
        hidden_s: a new machine or disk is not shown, and not known by its id, for so long.
    """

    notice_s: float = 120.0
    boot_s: float = 10.0
    shut_down_s: float = 30.0
    hidden_s: float = 1.0


SMALL_WORLD = World(
    supplies={
        ("us-east-1a", "g4dn.xlarge"): Supply([(0.0, 0.17)]),
        ("us-east-1b", "g4dn.xlarge"): Supply([(0.0, 0.19)]),
        ("us-east-1a", "g5.xlarge"): Supply([(0.0, 0.41)]),
        ("us-west-2b", "g4dn.xlarge"): Supply([(0.0, 0.21)]),
    },
    on_demand_usd_per_h={"g4dn.xlarge": 0.526, "g5.xlarge": 1.006},
)


@dataclass(slots=True)
class Bucket:
    """A token bucket: https://docs.aws.amazon.com/ec2/latest/devguide/ec2-api-throttling.html."""

    size: float
    refill_per_s: float
    level: float = field(default=-1.0)
    at: float = 0.0

    def take(self, now: float) -> bool:
        """Whether there was one."""
        if self.level < 0:
            self.level = self.size
        else:
            self.level = min(self.level + (now - self.at) * self.refill_per_s, self.size)
        self.at = now
        if self.level < 1.0:
            return False
        self.level -= 1.0
        return True
