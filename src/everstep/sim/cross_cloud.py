"""What one job on one accelerator costs over the offers of several clouds, chosen once or again and again.

The semantics are those of the reference beside the published study of dynamic pricing: an hourly grid; the price of an
offer in an hour is its last one at or before the hour; cost per accelerator = price / accelerators of the machine, on
every cloud; a job is so many days of work at the rate of one reference accelerator; a move costs so much time that is
paid on the new offer and makes no progress; spot machines are never taken away.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from everstep.brain.select.cheapest_course import cheapest
from everstep.market.prices import Place, PriceSeries
from everstep.model.errors import EverstepError

HOUR_S = 3600.0
LONGEST_H = 10 * 365 * 24
"""Ten years: a job that is not done by then never is."""
_SLACK_H = 1e-9
"""Undoes floating point: an hour that was reached by adding sixths has begun."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """A way to choose.

    Attributes:
        name: its name.
        offers: which offers it looks at: ``baseline`` (p3.2xlarge), ``gpu_type`` (and p2.xlarge), ``packed`` (every p2
            and p3), each in one AWS region; ``multi_cloud`` (and all of Azure).
        every_h: it chooses again after every so many hours of work; None = once, at the start.
        move_h: hours paid on the new offer without progress at each move.
        margin: it moves only to an offer that is cheaper by at least this fraction.
    """

    name: str
    offers: str
    every_h: int | None = None
    move_h: float = 0.0
    margin: float = 0.0


STRATEGIES = (
    *(Strategy(name, name) for name in ("baseline", "gpu_type", "packed", "multi_cloud")),
    Strategy("dyn_1h", "multi_cloud", 1),
    Strategy("dyn_6h", "multi_cloud", 6),
    Strategy("dyn_1d", "multi_cloud", 24),
    Strategy("dyn_2d", "multi_cloud", 48),
    Strategy("dyn_1d_10min", "multi_cloud", 24, 1 / 6),
    Strategy("dyn_1d_10min_h5", "multi_cloud", 24, 1 / 6, 0.05),
    Strategy("dyn_1h_10min_h5", "multi_cloud", 1, 1 / 6, 0.05),
    Strategy("dyn_aws_1d_10min_h5", "packed", 24, 1 / 6, 0.05),
)
"""The strategies of the reference, in its order."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One job: what it cost in USD, the hours it took, how often it moved."""

    cost_usd: float
    elapsed_h: float
    moves: int


@dataclass(frozen=True, slots=True)
class Summary:
    """One strategy over many starts: costs in USD, mean days from start to end, mean number of moves."""

    model: str
    days: float
    strategy: str
    mean_cost_usd: float
    min_cost_usd: float
    max_cost_usd: float
    elapsed_days: float
    switches: float


class NeverDone(EverstepError):
    """Nothing is sold that could do the work."""


@dataclass(frozen=True)
class Grid:
    """Prices by the hour.

    Attributes:
        places: n offers, one row each.
        start: UTC seconds of the first hour.
        usd_per_gpu_h: shape (n, hours): USD per hour of one accelerator; nan before an offer's first price. The last
            column holds for ever.
    """

    places: tuple[Place, ...]
    start: float
    usd_per_gpu_h: NDArray[np.float64]

    @cached_property
    def accelerators(self) -> tuple[str, ...]:
        """Accelerator of each offer, in small letters."""
        return tuple(place.accelerator.lower() for place in self.places)

    def sold_at(self, hour: float) -> bool:
        """Whether any offer has a price then."""
        return bool(np.isfinite(self.usd_per_gpu_h[:, self.column(hour)]).any()) if self.places else False

    def cost_usd(self, offer: int, start_h: float, end_h: float) -> float:
        """One accelerator of an offer from ``start_h`` to ``end_h``, hours after the start; each hour at its price."""
        return self._spent(offer, end_h) - self._spent(offer, start_h)

    def _spent(self, offer: int, hour: float) -> float:
        """From the start to ``hour``, as if an offer had been free before its first price."""
        column = self.column(hour)
        return float(self._until[offer, column] + (hour - column) * self.usd_per_gpu_h[offer, column])

    @cached_property
    def _until(self) -> NDArray[np.float64]:
        """Shape (n, hours): what one accelerator costs from the start to the beginning of each hour."""
        prices = np.nan_to_num(self.usd_per_gpu_h)
        return np.cumsum(prices, axis=1) - prices

    def column(self, hour: float) -> int:
        """The column in force ``hour`` hours after the start."""
        last: int = self.usd_per_gpu_h.shape[1] - 1
        return min(math.floor(hour + _SLACK_H), last)

    def narrowed(self, keep: Sequence[bool]) -> Grid:
        """The grid with some of its offers."""
        places = tuple(place for place, kept in zip(self.places, keep, strict=True) if kept)
        return Grid(places, self.start, self.usd_per_gpu_h[np.asarray(keep, dtype=bool)])


def hourly(series: Sequence[PriceSeries], start: float) -> Grid:
    """Spot prices of machines with accelerators, from ``start`` (UTC seconds) to the last row of all.

    The last price of an offer holds although it left the market: the study takes no machine away.
    """
    sold = [one for one in series if one.place.accelerator_count and one.spread() is not None]
    hours = max(math.ceil((max(one.as_of for one in sold) - start) / HOUR_S), 0) + 1 if sold else 0
    at = start + HOUR_S * np.arange(hours)
    table = np.full((len(sold), hours), np.nan)
    for row, one in enumerate(sold):
        priced = ~np.isnan(one.spot_usd_per_h)
        index = np.searchsorted(one.at[priced], at, side="right") - 1
        known = index >= 0
        table[row, known] = one.spot_usd_per_h[priced][index[known]] / one.place.accelerator_count
    return Grid(tuple(one.place for one in sold), start, table)


def offered(grid: Grid, offers: str, region: str) -> Grid:
    """The offers that a strategy looks at; ``region`` is the AWS region."""
    families = {"baseline": ("p3.2xlarge",), "gpu_type": ("p3.2xlarge", "p2.xlarge")}.get(offers, ("p2.", "p3."))
    azure = offers == "multi_cloud"
    return grid.narrowed([
        (place.cloud == "aws" and place.region == region and place.machine_type.startswith(families))
        or (azure and place.cloud == "azure")
        for place in grid.places
    ])  # fmt: skip


def run(grid: Grid, strategy: Strategy, rates: Mapping[str, float], work: float, hour: int) -> Outcome:
    """One job that starts in hour ``hour`` of the grid.

    Args:
        grid: what the strategy looks at.
        strategy: how it chooses.
        rates: units of work per hour on one accelerator, by its name in small letters; others cannot do the work.
        work: units of work.
        hour: start, hours after the start of the grid.

    Raises:
        NeverDone: nothing is sold that could do the work.
    """
    rate = np.array([rates.get(name, math.nan) for name in grid.accelerators])
    value = np.nan_to_num(grid.usd_per_gpu_h / rate[:, np.newaxis], nan=np.inf)
    now_h, left, cost_usd, moves = float(hour), work, 0.0, 0
    on: int | None = None
    while now_h - hour < LONGEST_H:
        chosen = cheapest(value[:, grid.column(now_h)], on, strategy.margin)
        if chosen is None:
            break
        if on is not None and chosen != on:
            moves += 1
            cost_usd += strategy.move_h * grid.usd_per_gpu_h[chosen, grid.column(now_h)]
            now_h += strategy.move_h
        on = chosen
        # The next choice is so many hours of work away: a move puts it off.
        stretch_h = min(left / rate[on], math.inf if strategy.every_h is None else strategy.every_h)
        cost_usd += grid.cost_usd(on, now_h, now_h + stretch_h)
        now_h += stretch_h
        left -= stretch_h * rate[on]
        if left <= 1e-9 * work:
            return Outcome(float(cost_usd), float(now_h - hour), moves)
    raise NeverDone("nothing is sold that could do the work")


def summaries(
    grid: Grid, region: str, rates: Mapping[str, Mapping[str, float]], days: Iterable[float], starts: Sequence[int]
) -> Iterator[Summary]:
    """Every strategy, model and length of job, one after the other.

    Args:
        grid: prices of all clouds.
        region: the AWS region.
        rates: by model, units of work per hour by accelerator; a job of a model is measured at its rate on a V100.
        days: lengths of the job, in days on one V100.
        starts: hours of the grid at which a job starts.

    Raises:
        NeverDone: nothing is sold that could do the work.
    """
    narrowed = {name: offered(grid, name, region) for name in {strategy.offers for strategy in STRATEGIES}}
    for length in days:
        for model, of_model in rates.items():
            work = length * 24.0 * of_model["v100"]
            for strategy in STRATEGIES:
                outcomes = [run(narrowed[strategy.offers], strategy, of_model, work, start) for start in starts]
                costs = [outcome.cost_usd for outcome in outcomes]
                elapsed_days = fmean(outcome.elapsed_h for outcome in outcomes) / 24.0
                moves = fmean(outcome.moves for outcome in outcomes)
                row = (fmean(costs), min(costs), max(costs), elapsed_days, moves)
                yield Summary(model, length, strategy.name, *row)
