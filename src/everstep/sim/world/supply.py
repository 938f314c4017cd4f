"""What a zone has, at what price, over time: steps read from traces, looked at only where they change."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from everstep.market.availability import Series
from everstep.model.offers import MachineType

_INSTANT_S = 1e-6


@dataclass(frozen=True, eq=False)
class Supply:
    """Spot of one zone and machine type, in ticks of ``gap_s`` seconds. What the last tick says holds for ever after.

    Attributes:
        counts: shape (ticks,): machines that can be held in each tick.
        prices: shape (ticks,), USD per hour of one machine; None = ``price_usd_per_h`` all the time.
        begins_at: UTC seconds at which the first tick begins.
        factor: machines in the world for each machine of the trace.
    """

    counts: NDArray[np.int64]
    prices: NDArray[np.float64] | None
    price_usd_per_h: float
    gap_s: float
    begins_at: float
    factor: int = 1
    _changes: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        """Finds the ticks at which anything changes; the arrays themselves are shared, not copied."""
        changed = self.counts[1:] != self.counts[:-1]
        if self.prices is not None:
            changed = changed | (self.prices[1:] != self.prices[:-1])
        object.__setattr__(self, "_changes", np.flatnonzero(changed) + 1)

    def tick(self, now: float) -> int:
        """The tick in force at ``now`` (UTC seconds)."""
        # The slack undoes floating point: who comes at the instant of a change must find it made. Instants of today are
        # told apart to half a microsecond only.
        slack = max(1e-6, _INSTANT_S / self.gap_s)
        return min(max(math.floor((now - self.begins_at) / self.gap_s + slack), 0), len(self.counts) - 1)

    def count(self, now: float) -> int:
        """Machines that can be held."""
        return int(self.counts[self.tick(now)]) * self.factor

    def price(self, now: float) -> float:
        """USD per hour of one machine."""
        return self.price_usd_per_h if self.prices is None else float(self.prices[self.tick(now)])

    def next_change(self, now: float) -> float | None:
        """The first instant after ``now`` at which count or price change, UTC seconds; None = never again."""
        at = int(np.searchsorted(self._changes, self.tick(now), side="right"))
        return None if at == len(self._changes) else self.begins_at + int(self._changes[at]) * self.gap_s

    def changes(self, since: float, until: float) -> Iterator[float]:
        """Instants in ``(since, until]`` at which count or price change."""
        at = self.next_change(since)
        while at is not None and at <= until:
            yield at
            at = self.next_change(at)


@dataclass(frozen=True, eq=False)
class Steps:
    """Spot of one zone and machine type that changes at any instants. The last step holds for ever after.

    Attributes:
        at: shape (n,), ascending UTC seconds; the first is ``begins_at`` or before.
        counts, prices: shape (n,): machines that can be held, USD per hour of one, from each instant on.
    """

    at: NDArray[np.float64]
    counts: NDArray[np.int64]
    prices: NDArray[np.float64]
    begins_at: float

    def _step(self, now: float) -> int:
        return max(int(np.searchsorted(self.at, now + _INSTANT_S, side="right")) - 1, 0)

    def count(self, now: float) -> int:
        """Machines that can be held."""
        return int(self.counts[self._step(now)])

    def price(self, now: float) -> float:
        """USD per hour of one machine."""
        return float(self.prices[self._step(now)])

    def next_change(self, now: float) -> float | None:
        """See ``Supply``."""
        following = self._step(now) + 1
        return float(self.at[following]) if following < len(self.at) else None

    def changes(self, since: float, until: float) -> Iterator[float]:
        """See ``Supply``."""
        at = self.next_change(since)
        while at is not None and at <= until:
            yield at
            at = self.next_change(at)


@dataclass(frozen=True, eq=False)
class Lot:
    """What one zone sells of one machine type.

    Attributes:
        spot: None = no spot is sold. on_demand_limit: machines on demand; None = as many as are wanted.
    """

    zone: str
    region: str
    machine: MachineType
    on_demand_usd_per_h: float
    spot: Supply | Steps | None
    on_demand_limit: int | None = None

    def spot_usd_per_h(self, now: float) -> float:
        """Price of spot now, never above on-demand."""
        assert self.spot is not None
        return min(self.spot.price(now), self.on_demand_usd_per_h)


@dataclass(frozen=True, slots=True)
class Fallback:
    """Prices where a trace states none, USD per hour."""

    spot_usd_per_h: float = 0.9731
    on_demand_usd_per_h: float = 3.06


def lot_of(series: Series, *, begins_at: float, start_tick: int = 0, fallback: Fallback | None = None) -> Lot:
    """The lot that a trace describes, with tick ``start_tick`` in force at ``begins_at`` (UTC seconds)."""
    prices = fallback or Fallback()
    on_demand = series.on_demand_usd_per_h
    spot = series.spot_usd_per_h
    supply = Supply(
        counts=series.counts,
        prices=series.prices,
        price_usd_per_h=prices.spot_usd_per_h if spot is None else spot,
        gap_s=series.gap_s,
        begins_at=begins_at - start_tick * series.gap_s,
    )
    return Lot(
        zone=series.zone,
        region=series.region or series.zone,
        machine=MachineType(series.machine_type or "machine", series.accelerator, 1 if series.accelerator else 0),
        on_demand_usd_per_h=prices.on_demand_usd_per_h if on_demand is None else on_demand,
        spot=supply,
    )
