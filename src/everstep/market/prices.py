"""Prices over time: what every reader of price histories gives."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Place:
    """What a price is for: one machine type at one place.

    Attributes:
        cloud: ``aws``, ``gcp``, ``azure``...
        region: the vendor's name.
        zone: as the source names it (AWS catalogs use ids, ``use1-az2``); empty where the price is that of the region.
        machine_type: the vendor's name; empty for a bare accelerator (GCP sells host and accelerator apart).
        accelerator: canonical name, as far as the source says.
        accelerator_count: how many of them.
    """

    cloud: str
    region: str
    zone: str
    machine_type: str
    accelerator: str = ""
    accelerator_count: int = 0

    def __str__(self) -> str:
        """``us-east-1a p3.2xlarge``."""
        what = self.machine_type or f"{self.accelerator}:{self.accelerator_count}"
        return f"{self.zone or self.region} {what}"


@dataclass(frozen=True, slots=True, eq=False)
class PriceSeries:
    """Prices of one place. A price holds from its row until the next.

    Attributes:
        place: what they are for.
        source: where they come from.
        at: shape (n,), float64, ascending: UTC seconds as of which each price was seen.
        spot_usd_per_h: shape (n,), float64, of the whole machine; nan = not sold as spot from then on.
        on_demand_usd_per_h: shape (n,), float64; nan = not sold, or not told.
    """

    place: Place
    source: str
    at: NDArray[np.float64]
    spot_usd_per_h: NDArray[np.float64]
    on_demand_usd_per_h: NDArray[np.float64]

    def spot(self, when: float) -> float | None:
        """Spot price in force at ``when`` (UTC seconds); None before the first row and while it is not sold."""
        return self._value(self.spot_usd_per_h, when)

    def on_demand(self, when: float) -> float | None:
        """On-demand price in force at ``when`` (UTC seconds); None where it is not known."""
        return self._value(self.on_demand_usd_per_h, when)

    def _value(self, values: NDArray[np.float64], when: float) -> float | None:
        row = int(np.searchsorted(self.at, when, side="right")) - 1
        return None if row < 0 or math.isnan(values[row]) else float(values[row])

    def between(self, since: float | None, until: float | None) -> PriceSeries | None:
        """The part from ``since`` to ``until`` (UTC seconds; None = open), begun with the price in force at ``since``.

        None if nothing was known yet by ``until``.
        """
        first = 0 if since is None else max(int(np.searchsorted(self.at, since, side="right")) - 1, 0)
        end = len(self.at) if until is None else int(np.searchsorted(self.at, until, side="right"))
        if first >= end:
            return None
        at = self.at[first:end] if since is None else np.maximum(self.at[first:end], since)
        return PriceSeries(
            self.place, self.source, at, self.spot_usd_per_h[first:end], self.on_demand_usd_per_h[first:end]
        )

    def spread(self) -> tuple[float, float, float] | None:
        """Lowest, mean and highest spot price, USD per hour; None if it was never sold.

        The mean weighs each price by the time that it held, up to the last row; that of one instant is its mean.
        """
        sold = ~np.isnan(self.spot_usd_per_h)
        if not sold.any():
            return None
        prices = self.spot_usd_per_h[sold]
        held_s = np.diff(self.at, append=self.at[-1])[sold]
        mean = float(np.average(prices, weights=held_s)) if held_s.sum() > 0 else float(prices.mean())
        return float(prices.min()), mean, float(prices.max())

    def changes(self) -> int:
        """How often the spot price changed, or came or went."""
        known = np.nan_to_num(self.spot_usd_per_h, nan=-1.0)
        return int(np.count_nonzero(np.diff(known)))

    @property
    def as_of(self) -> float:
        """UTC seconds of the last row."""
        return float(self.at[-1])


@dataclass(slots=True)
class Gathering:
    """Rows of a file on their way to series.

    Attributes:
        source: where they come from.
    """

    source: str
    _rows: dict[Place, list[tuple[float, float, float]]] = field(default_factory=dict)

    def add(self, place: Place, at: float, spot: float = math.nan, on_demand: float = math.nan) -> None:
        """One row: prices in USD per hour, nan for none."""
        self._rows.setdefault(place, []).append((at, spot, on_demand))

    def series(self) -> tuple[PriceSeries, ...]:
        """One series per place, by name. Rows of the same instant keep their order: the last of them holds."""
        return tuple(self._one(place) for place in sorted(self._rows, key=_order))

    def _one(self, place: Place) -> PriceSeries:
        table = np.array(self._rows[place], dtype=np.float64)
        table = table[np.argsort(table[:, 0], kind="stable")]
        return PriceSeries(place, self.source, table[:, 0], table[:, 1], table[:, 2])


def _order(place: Place) -> tuple[str, ...]:
    return (
        place.cloud,
        place.region,
        place.zone,
        place.machine_type,
        place.accelerator,
        f"{place.accelerator_count:06d}",
    )
