"""The baseline: a hazard that is constant between ages, fitted to censored records.

    lambda_j = (0.3 + events_j) / (3 + exposure_j)          exposure in hours

that is, the posterior mean under a Gamma prior of 0.1/h worth three hours. Where a moment of loss is known only to lie
between two looks, its event and its hours are spread over the ages in between as the hazard itself says (EM).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from everstep.brain.forecast.availability import BUILT_IN
from everstep.brain.forecast.piecewise import Piecewise
from everstep.brain.forecast.records import Lifetime

Vector = NDArray[np.float64]

FROM_H = (0.0, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Ages at which the hazard may change: chosen among nine grids on held-out rows of nine sets."""
_PRIOR_PER_H = 0.1
_PRIOR_H = 3.0
_ROUNDS = 200
_CONVERGED = 1e-10


@dataclass(frozen=True, slots=True)
class Ends:
    """Records as arrays, hours.

    Attributes:
        lived_h: certain life, shape (records,).
        ended_by_h: when the loss was known; infinite where right-censored.
    """

    lived_h: Vector
    ended_by_h: Vector

    @classmethod
    def of(cls, lives: Sequence[Lifetime]) -> Ends:
        """The arrays of some records."""
        return cls(
            np.array([life.lived_h for life in lives], dtype=np.float64),
            np.array([life.ended_by_h for life in lives], dtype=np.float64),
        )

    @property
    def lost(self) -> NDArray[np.bool_]:
        """Which ones were lost."""
        return np.isfinite(self.ended_by_h)

    @property
    def spread(self) -> NDArray[np.bool_]:
        """Which ones were lost at an unknown moment."""
        return self.lost & (self.ended_by_h > self.lived_h)


def fit_baseline(lives: Sequence[Lifetime], from_h: tuple[float, ...] = FROM_H) -> Piecewise:
    """The baseline of all records taken as one pool; 0.1/h where nothing was seen."""
    ends = Ends.of(lives)
    hazard = Piecewise(from_h, (_PRIOR_PER_H,) * len(from_h))
    for _ in range(_ROUNDS):
        events, exposure_h = expected_counts(hazard, ends)
        rates = (_PRIOR_PER_H * _PRIOR_H + events.sum(axis=0)) / (_PRIOR_H + exposure_h.sum(axis=0))
        change = float(np.max(np.abs(np.log(rates / np.array(hazard.per_h)))))
        hazard = Piecewise(from_h, tuple(map(float, rates)))
        if change < _CONVERGED or not ends.spread.any():
            break
    return hazard


def expected_counts(hazard: Piecewise, ends: Ends) -> tuple[Vector, Vector]:
    """Events and hours of each record in each piece, shape (records, pieces), given the hazard where it matters."""
    starts = np.array(hazard.from_h)
    stops = np.append(starts[1:], math.inf)
    exposure_h = _overlap(ends.lived_h, starts, stops)
    events = np.zeros_like(exposure_h)
    known = ends.lost & ~ends.spread
    # A loss at exactly the end of a piece ended in the piece that it lived through.
    events[known, np.searchsorted(starts[1:], ends.lived_h[known], side="left")] = 1.0
    spread = ends.spread
    if spread.any():
        more_events, more_h = _between_looks(hazard, ends.lived_h[spread], ends.ended_by_h[spread])
        events[spread] += more_events
        exposure_h[spread] += more_h
    return events, exposure_h


def _overlap(until_h: Vector, starts: Vector, stops: Vector) -> Vector:
    return np.clip(np.minimum(until_h[:, None], stops) - starts, 0.0, None)


def _between_looks(hazard: Piecewise, low_h: Vector, high_h: Vector) -> tuple[Vector, Vector]:
    """Where in (low, high] a loss fell, and the hours lived until then, both as expectations per piece."""
    starts, rates = np.array(hazard.from_h), np.array(hazard.per_h)
    stops = np.append(starts[1:], math.inf)
    begin = np.clip(low_h[:, None], starts, stops)
    end = np.clip(high_h[:, None], starts, stops)
    width = np.where(end > begin, end - begin, 0.0)
    # Cumulative hazard since `low` at the begin of each piece: S(u | low) = exp(-it).
    hazard_in = rates * width
    before = np.cumsum(hazard_in, axis=1) - hazard_in
    at_begin = np.exp(-before)
    dying = at_begin * -np.expm1(-hazard_in)
    lost = dying.sum(axis=1, keepdims=True)
    at_high = 1.0 - lost
    alive_h = np.divide(dying, rates, out=at_begin * width, where=(rates > 0.0) & (hazard_in > 1e-12))
    return dying / lost, np.clip(alive_h - at_high * width, 0.0, None) / lost


def built_in_baseline() -> Piecewise:
    """What is believed before any record was seen: the built-in hazards of loss (`availability.BUILT_IN`)."""
    return BUILT_IN.loss
