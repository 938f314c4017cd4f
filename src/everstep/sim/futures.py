"""Futures of spot, drawn from what we believe: the world of ``everstep estimate``, marked as our own forecast.

It is no world to judge a policy by: what it draws from is what the policies believe, too. Each future first draws the
hazards themselves, since what was seen says little (Gamma posterior of the pool's factor, then of each age's), then
the runs up and down. Pools are drawn independently of each other, although zones of one region go down together in
fact: many zones of one region look better here than they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from everstep.brain.forecast.availability import AGES_H, BUILT_IN, Counts, Observed, Prior, Rates
from everstep.brain.forecast.piecewise import Piecewise

Ups = NDArray[np.bool_]
"""Shape (ticks,): spot can be had in that tick."""


class Futures(Protocol):
    """A source of futures."""

    @property
    def world(self) -> str:
        """What a report calls it."""
        ...

    def draw(self, rng: np.random.Generator, ticks: int, tick_s: float) -> list[Ups]:
        """One future of all pools, from now on."""
        ...


class Sight(NamedTuple):
    """What is known of a pool now.

    Attributes:
        up: spot can be had. age_h: for how long it has been so; None = not known.
        seen: what was seen of it before; None = nothing.
    """

    up: bool = True
    age_h: float | None = None
    seen: Observed | None = None


FIRST_AGE_H = 3.0
"""How long the present run has lasted where nobody knows: about the median of the built-in hazards."""
_BUILT_IN = Prior(BUILT_IN)
_EDGES_H = np.asarray(AGES_H)


@dataclass(frozen=True)
class OwnForecast:
    """Alternating runs by the hazards of ``brain/forecast/availability``.

    Attributes:
        sights: one per pool.
        prior: what is believed before anything was seen.
    """

    sights: Sequence[Sight]
    prior: Prior = _BUILT_IN

    world = "our own forecast"

    def draw(self, rng: np.random.Generator, ticks: int, tick_s: float) -> list[Ups]:
        """See ``Futures``."""
        return [self._pool(rng, sight, ticks, tick_s / 3600.0) for sight in self.sights]

    def _pool(self, rng: np.random.Generator, sight: Sight, ticks: int, tick_h: float) -> Ups:
        rates = drawn(rng, sight.seen, self.prior)
        age_h = FIRST_AGE_H if sight.age_h is None else sight.age_h
        horizon_h = ticks * tick_h
        lengths = _runs(rng, (rates.of(sight.up), rates.of(not sight.up)), age_h, horizon_h)
        # A run that is shorter than half a tick is not seen at all.
        edges = np.minimum(np.rint(np.cumsum(lengths) / tick_h), ticks).astype(np.int64)
        states = np.arange(len(edges)) % 2 == (0 if sight.up else 1)
        return np.repeat(states, np.diff(edges, prepend=0))


def drawn(rng: np.random.Generator, seen: Observed | None, prior: Prior) -> Rates:
    """Hazards drawn from what is believed after ``seen``; their mean is about ``seen.rates(prior)``."""
    ups, downs = (Counts(), Counts()) if seen is None else (seen.up_runs, seen.down_runs)
    return Rates(_posterior(rng, prior.rates.loss, ups, prior), _posterior(rng, prior.rates.back, downs, prior))


def _posterior(rng: np.random.Generator, hazard: Piecewise, counts: Counts, prior: Prior) -> Piecewise:
    w, b = prior.pool_weight, prior.bucket_weight
    per_h, exposure_h = np.asarray(hazard.per_h), np.asarray(counts.exposure_h)
    expected = float(per_h @ exposure_h)
    base = rng.gamma(w + sum(counts.events), 1.0 / (w + expected)) * per_h
    factors = rng.gamma(b + np.asarray(counts.events), 1.0 / (b + base * exposure_h))
    return Piecewise(AGES_H, tuple((base * factors).tolist()))


def _runs(
    rng: np.random.Generator, hazards: tuple[Piecewise, Piecewise], age_h: float, horizon_h: float
) -> NDArray[np.float64]:
    """Run lengths by turns of either hazard, in hours, until the horizon is full; the first began ``age_h`` ago."""
    first = hazards[0].hours_to(age_h, float(rng.exponential()))
    found = [np.asarray([min(first, horizon_h)])]
    filled_h = float(found[0][0])
    both = (hazards[1], hazards[0])
    while filled_h < horizon_h:
        # Two at a time, one of each: the turns stay in step.
        pairs = np.empty((64, 2))
        for side, hazard in enumerate(both):
            pairs[:, side] = _ages(hazard, rng.exponential(size=64))
        batch = np.minimum(pairs.ravel(), horizon_h)
        found.append(batch)
        filled_h += float(batch.sum())
    return np.concatenate(found)


def _ages(hazard: Piecewise, spent: NDArray[np.float64]) -> NDArray[np.float64]:
    """The ages at which so much hazard has been spent, in hours."""
    per_h = np.maximum(np.asarray(hazard.per_h), 1e-9)
    at = np.concatenate([[0.0], np.cumsum(per_h[:-1] * np.diff(_EDGES_H))])
    j = np.searchsorted(at, spent, side="right") - 1
    ages: NDArray[np.float64] = _EDGES_H[j] + (spent - at[j]) / per_h[j]
    return ages
