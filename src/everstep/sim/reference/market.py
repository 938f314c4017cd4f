"""What the reference driver runs in: zones on one clock, with spot that is up or down and has a price in each tick."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from everstep.brain.select.course import Place

SPOT_USD_PER_H, ON_DEMAND_USD_PER_H = 0.9731, 3.06
"""Prices of the published single-zone comparisons, the same for every series."""


@dataclass(frozen=True, eq=False)
class Zone:
    """One zone, or one gang of machines in it.

    Attributes:
        up: shape (ticks,): spot can be had in that tick.
        spot_usd_per_h: one price, or shape (ticks,).
    """

    name: str
    region: str
    up: NDArray[np.bool_]
    spot_usd_per_h: float | NDArray[np.float64] = SPOT_USD_PER_H
    on_demand_usd_per_h: float = ON_DEMAND_USD_PER_H


def free_transfer(source: str, target: str) -> float:
    """USD per GB where moving costs nothing."""
    del source, target
    return 0.0


@dataclass(eq=False)
class Market:
    """Zones with one clock.

    Attributes:
        zones: in a fixed order.
        tick_s: seconds per tick.
        transfer: USD per GB from region to region.
        checkpoint_gb: how much is moved.
    """

    zones: Sequence[Zone]
    tick_s: float
    transfer: Callable[[str, str], float] = free_transfer
    checkpoint_gb: float = 0.0
    ticks: int = field(init=False)
    _changes: list[int] = field(init=False)
    _index: dict[str, int] = field(init=False)
    _paid: list[NDArray[np.float64] | None] = field(init=False)
    _up: list[bytes] = field(init=False)
    _leaving: dict[str, float] = field(init=False, default_factory=dict)
    _shown: dict[str | None, list[_Shown]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.ticks = min(len(zone.up) for zone in self.zones)
        self._index = {zone.name: number for number, zone in enumerate(self.zones)}
        changed = np.zeros(self.ticks, dtype=bool)
        self._paid = []
        for zone in self.zones:
            changed[1:] |= zone.up[1 : self.ticks] != zone.up[: self.ticks - 1]
            paid = None
            if not isinstance(zone.spot_usd_per_h, float):
                prices = zone.spot_usd_per_h[: self.ticks]
                changed[1:] |= prices[1:] != prices[:-1]
                paid = np.concatenate([[0.0], np.cumsum(prices)])
            self._paid.append(paid)
        self._changes = np.flatnonzero(changed).tolist()
        # One look at a time: an element of bytes is there sooner than one of an array.
        self._up = [np.asarray(zone.up, dtype=bool).tobytes() for zone in self.zones]

    def next_change(self, tick: int) -> int:
        """The first tick after ``tick`` in which a zone flips or a price moves; the end of the traces if none does."""
        at = bisect_right(self._changes, tick)
        return self._changes[at] if at < len(self._changes) else self.ticks

    def up(self, name: str, tick: int) -> bool:
        """Spot of that zone can be had in that tick."""
        return self._up[self._index[name]][tick] == 1

    def region(self, name: str) -> str:
        """The region of a zone."""
        return self.zones[self._index[name]].region

    def places(self, tick: int, region: str | None) -> tuple[Place, ...]:
        """What a policy sees in that tick while the checkpoint lies in ``region``; None = there is none yet."""
        shown = self._shown.get(region)
        if shown is None:
            shown = self._shown[region] = [_Shown(self._place(zone, region), zone) for zone in self.zones]
        return tuple([one.at(up[tick], tick) for one, up in zip(shown, self._up, strict=True)])

    def spot_usd(self, name: str, first: int, end: int) -> float:
        """What spot of that zone costs in ticks first..end-1."""
        number = self._index[name]
        paid = self._paid[number]
        if paid is not None:
            return float(paid[end] - paid[first]) * self.tick_s / 3600.0
        price = self.zones[number].spot_usd_per_h
        assert isinstance(price, float)
        return price * (end - first) * self.tick_s / 3600.0

    def on_demand_usd(self, name: str, ticks: int) -> float:
        """What on-demand of that zone costs for so many ticks."""
        return self.zones[self._index[name]].on_demand_usd_per_h * ticks * self.tick_s / 3600.0

    def move_usd(self, source: str | None, target: str) -> float:
        """What it costs to bring the checkpoint from region to region."""
        if source is None or source == target or not self.checkpoint_gb:
            return 0.0
        return self.checkpoint_gb * self.transfer(source, target)

    def _leave_usd(self, region: str) -> float:
        """Mean cost of bringing the checkpoint from a region to a zone of another."""
        if region not in self._leaving:
            usd = [self.move_usd(region, zone.region) for zone in self.zones if zone.region != region]
            self._leaving[region] = sum(usd) / len(usd) if usd else 0.0
        return self._leaving[region]

    def _place(self, zone: Zone, region: str | None) -> Place:
        """Up, at no price."""
        return Place(
            zone.name, zone.region, None, zone.on_demand_usd_per_h, True,
            move_usd=self.move_usd(region, zone.region), leave_usd=self._leave_usd(zone.region),
        )  # fmt: skip


class _Shown:
    """A zone as policies see it, with the checkpoint in one region: each price once, up and down."""

    def __init__(self, place: Place, zone: Zone) -> None:
        self._place = place
        self._prices = zone.spot_usd_per_h
        self._known: dict[float, tuple[Place, Place]] = {}
        self._only = self._both(self._prices) if isinstance(self._prices, float) else None

    def at(self, up: int, tick: int) -> Place:
        """In that tick; ``up`` is 0 or 1."""
        if self._only is not None:
            return self._only[up]
        assert not isinstance(self._prices, float)
        price = float(self._prices[tick])
        both = self._known.get(price)
        if both is None:
            both = self._known[price] = self._both(price)
        return both[up]

    def _both(self, price: float) -> tuple[Place, Place]:
        place = replace(self._place, spot_usd_per_h=price)
        return replace(place, up=False), place


@dataclass(frozen=True, slots=True)
class Job:
    """One job to simulate.

    Attributes:
        task_s: work, seconds. deadline_s: seconds after the start. changeover_s: what each start costs.
        start_tick: tick of the traces at which it begins.
        seed: chance of its policy.
    """

    task_s: float
    deadline_s: float
    changeover_s: float
    start_tick: int = 0
    seed: int = 0

    def last_tick(self, tick_s: float) -> int:
        """The last tick of the trace that ends before the deadline, plus one."""
        return self.start_tick + math.floor(self.deadline_s / tick_s + 1e-9)
