"""What can be leased: machine types, markets, prices, billing rules, pools."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum


class Market(StrEnum):
    """How a machine is leased."""

    SPOT = "spot"
    ON_DEMAND = "on_demand"
    RESERVED = "reserved"
    STATIC = "static"


@dataclass(frozen=True, slots=True)
class BillingRule:
    """How a vendor turns a machine's life into money.

    Attributes:
        granularity_s: billed time is rounded up to a multiple of this.
        minimum_s: at least this much is billed.
        free_if_reclaimed_within_s: nothing is billed when the vendor takes a spot machine back earlier than this
            (EC2: 3600).
        time_scale: market seconds per second of the clock. 1 for real clouds; a cloud in a box that plays one trace
            hour in ten seconds bills 360 market seconds for each of them. The fields above are market seconds.
    """

    granularity_s: float = 1.0
    minimum_s: float = 60.0
    free_if_reclaimed_within_s: float = 0.0
    time_scale: float = 1.0

    def billed_s(self, lived_s: float, *, reclaimed: bool) -> float:
        """Market seconds billed for a machine that lived ``lived_s`` seconds of the clock.

        Args:
            lived_s: from the provider's start to the provider's end, seconds of the clock.
            reclaimed: the vendor took it back.
        """
        market_s = max(lived_s, 0.0) * self.time_scale
        if reclaimed and market_s < self.free_if_reclaimed_within_s:
            return 0.0
        # The tiny slack keeps 60.000000001 s, a product of floating point, from being billed as the next unit.
        units = math.ceil(market_s / self.granularity_s - 1e-9)
        return max(units * self.granularity_s, self.minimum_s)

    def cost_usd(self, lived_s: float, price_usd_per_h: float, *, reclaimed: bool) -> float:
        """What that life costs at a constant hourly price, USD."""
        return self.billed_s(lived_s, reclaimed=reclaimed) / 3600.0 * price_usd_per_h


@dataclass(frozen=True, slots=True)
class MachineType:
    """A kind of machine.

    Attributes:
        name: the vendor's name, ``p3.2xlarge``.
        accelerator: canonical accelerator name (``V100``), empty for none.
        accelerator_count: how many of them.
        cpus: virtual CPUs.
        memory_gib: main memory.
    """

    name: str
    accelerator: str = ""
    accelerator_count: int = 0
    cpus: float = 1.0
    memory_gib: float = 1.0


@dataclass(frozen=True, slots=True)
class Pool:
    """What preemption statistics are kept on."""

    provider: str
    zone: str
    machine_type: str
    market: Market

    def __str__(self) -> str:
        """``provider/zone/machine_type/market``."""
        return f"{self.provider}/{self.zone}/{self.machine_type}/{self.market}"


@dataclass(frozen=True, slots=True)
class Offer:
    """What can be leased now.

    Attributes:
        price_usd_per_h: price of one machine for one market hour, USD.
        on_demand_usd_per_h: list price of the same machine on demand, the bound of every spot price we pay.
        price_as_of: UTC seconds when the price was read.
        price_source: where the price comes from, for the ledger.
        available: how many could start now, if the provider knows; None = unknown.
        max_life_s: the vendor ends it after so long (legacy GCE preemptibles: 86,400); None = never.
        notice_s: usual warning before a preemption.
        egress_usd_per_gb: price of moving data out of the zone's region.
        boot_disk_usd_per_h: price of the disk that comes and goes with the machine, where it is charged besides: for as
            long as the machine is there, also where its own time is free.
        disk_minimum_s: so many market seconds of any disk are billed at least.
        bound: why the account cannot hold even one, though it is sold; then ``available`` is 0. Empty = it can.
        advice: how likely the vendor itself thinks that some can be had, 0 to 1; None = it was not asked.
        advice_as_of: UTC seconds when it was.
    """

    provider: str
    region: str
    zone: str
    machine: MachineType
    market: Market
    price_usd_per_h: float
    on_demand_usd_per_h: float
    price_as_of: float
    price_source: str
    billing: BillingRule = BillingRule()
    available: int | None = None
    max_life_s: float | None = None
    notice_s: float = 0.0
    egress_usd_per_gb: float = 0.0
    boot_disk_usd_per_h: float = 0.0
    disk_minimum_s: float = 0.0
    bound: str = ""
    advice: float | None = None
    advice_as_of: float | None = None

    @property
    def pool(self) -> Pool:
        """The pool whose statistics this offer belongs to."""
        return Pool(self.provider, self.zone, self.machine.name, self.market)

    @property
    def key(self) -> str:
        """Names the offer with its price.

        It is part of the launch token, since vendors refuse a token with other parameters.
        """
        return f"{self.pool}@{self.price_usd_per_h:.6f}"


@dataclass(frozen=True, slots=True)
class AcceleratorWish:
    """So many of such an accelerator."""

    name: str
    count: int


@dataclass(frozen=True, slots=True)
class MachineRequirement:
    """What a machine of a slot group must have.

    Attributes:
        accelerators: any of these will do; empty = no accelerator is asked for (machines with one still qualify only
            if nothing else does).
        ordered: the order of ``accelerators`` is a preference.
        cpus_min, cpus_exact: virtual CPUs; at most one is set.
        memory_gib_min, memory_gib_exact: main memory; at most one is set.
        memory_per_cpu_min: GiB per CPU (SkyPilot's ``4x``).
        places: any of these (provider, region, zone), each part ``""`` = any.
        machine_types: any of these names; empty = any.
        disk_gib: size of the disk.
    """

    accelerators: tuple[AcceleratorWish, ...] = ()
    ordered: bool = False
    cpus_min: float | None = None
    cpus_exact: float | None = None
    memory_gib_min: float | None = None
    memory_gib_exact: float | None = None
    memory_per_cpu_min: float | None = None
    places: tuple[tuple[str, str, str], ...] = ()
    machine_types: tuple[str, ...] = ()
    disk_gib: float | None = None

    def fits(self, offer: Offer) -> bool:
        """Whether the machine of ``offer`` meets every part of the requirement (price and market are not looked at)."""
        return self._fits_machine(offer.machine) and self._fits_place(offer)

    def _fits_place(self, offer: Offer) -> bool:
        here = (offer.provider, offer.region, offer.zone)
        return not self.places or any(
            all(want in ("", have) for want, have in zip(place, here, strict=True)) for place in self.places
        )

    def _fits_machine(self, m: MachineType) -> bool:
        if self.machine_types and m.name not in self.machine_types:
            return False
        if self.accelerators and not any(
            w.name.lower() == m.accelerator.lower() and w.count == m.accelerator_count for w in self.accelerators
        ):
            return False
        bounds = (
            self.cpus_min is None or m.cpus >= self.cpus_min,
            self.cpus_exact is None or m.cpus == self.cpus_exact,
            self.memory_gib_min is None or m.memory_gib >= self.memory_gib_min,
            self.memory_gib_exact is None or m.memory_gib == self.memory_gib_exact,
            self.memory_per_cpu_min is None or m.memory_gib >= self.memory_per_cpu_min * m.cpus,
        )
        return all(bounds)
