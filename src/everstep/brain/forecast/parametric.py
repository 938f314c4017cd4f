"""Models with a formula: exponential, Weibull, bathtub, by maximum likelihood; Gamma-Poisson by empirical Bayes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import minimize
from scipy.special import gammaln

from everstep.brain.forecast.baseline import Ends, Vector
from everstep.brain.forecast.records import Lifetime

_H = 3600.0
_WALL_H = 24.0
_PULL = 0.25
"""Curvature of the pull on the logarithm of each parameter; that of one record is about 1."""
_FEW = 0.5
"""Losses added where there are none at all: a hazard of zero would hold every loss impossible."""


@dataclass(frozen=True, slots=True)
class Exponential:
    """The same hazard at every age."""

    per_h: float

    def cumulative(self, age_s: float) -> float:
        """H(a) = rate * a."""
        return self.per_h * age_s / _H


@dataclass(frozen=True, slots=True)
class Weibull:
    """H(a) = (a / scale)^shape: a shape below 1 is a hazard that falls with age."""

    shape: float
    scale_h: float

    def cumulative(self, age_s: float) -> float:
        """H(a); infinite where that is beyond all numbers: lives that were all alike give a very large shape."""
        try:
            return float((age_s / _H / self.scale_h) ** self.shape)
        except OverflowError:
            return math.inf


@dataclass(frozen=True, slots=True)
class Bathtub:
    """h(a) = early exp(-a / early_h) + steady + late exp((min(a, 24 h) - 24 h) / late_h): falls, is flat, rises.

    The rise ends where the maximum life of preemptible machines was: beyond it an exponential would soon hold anything
    impossible.
    """

    early_per_h: float
    early_h: float
    steady_per_h: float
    late_per_h: float
    late_h: float

    def cumulative(self, age_s: float) -> float:
        """The integral of h."""
        return float(_bathtub_cumulative(self.parameters(), np.array([age_s / _H]))[0])

    def parameters(self) -> Vector:
        """As an array, in the order of the fields."""
        return np.array([self.early_per_h, self.early_h, self.steady_per_h, self.late_per_h, self.late_h])


@dataclass(frozen=True, slots=True)
class Lomax:
    """A constant hazard that is itself uncertain, Gamma(shape, hours): S(a) = (1 + a / hours)^-shape."""

    shape: float
    hours: float

    def cumulative(self, age_s: float) -> float:
        """H(a) = shape log(1 + a / hours)."""
        return self.shape * math.log1p(age_s / _H / self.hours)


@dataclass(frozen=True, slots=True)
class GammaPoisson:
    """Each pool loses at a constant rate of its own; the rates of pools follow a Gamma distribution.

    Attributes:
        shape, hours: of the distribution: mean shape / hours.
        seen: (losses, hours lived) by pool.
    """

    shape: float
    hours: float
    seen: Mapping[tuple[str, ...], tuple[float, float]] = field(default_factory=dict)

    def of(self, pool: tuple[str, ...]) -> Lomax:
        """The posterior predictive of a pool."""
        losses, hours = self.seen.get(pool, (0.0, 0.0))
        return Lomax(self.shape + losses, self.hours + hours)


def fit_exponential(lives: Sequence[Lifetime]) -> Exponential:
    """Maximum likelihood; losses per hour lived where every moment is known."""
    ends = Ends.of(lives)
    start = _rate(ends)
    if not ends.spread.any():
        return Exponential(start)
    (per_h,) = _fit(ends, [start], lambda p, age: p[0] * age, lambda p, age: np.full_like(age, p[0]))
    return Exponential(per_h)


def fit_weibull(lives: Sequence[Lifetime]) -> Weibull:
    """Maximum likelihood, weakly pulled towards its start: one record alone would take the shape to infinity."""
    ends = Ends.of(lives)
    shape, scale_h = _fit(
        ends,
        [0.8, 1.0 / _rate(ends)],
        lambda p, age: (age / p[1]) ** p[0],
        lambda p, age: p[0] / p[1] * (age / p[1]) ** (p[0] - 1.0),
        pull=_PULL,
    )
    return Weibull(shape, scale_h)


def fit_bathtub(lives: Sequence[Lifetime]) -> Bathtub:
    """Maximum likelihood, from two starts: the likelihood has more than one hill.

    Weakly pulled towards its start, since few records leave some of five parameters free to run to zero or infinity.
    """
    ends = Ends.of(lives)
    rate = _rate(ends)
    starts = ([5.0 * rate, 0.5, 0.5 * rate, 0.1 * rate, 2.0], [2.0 * rate, 3.0, 0.3 * rate, 0.5 * rate, 6.0])
    fits = [_fit(ends, start, _bathtub_cumulative, _bathtub_rate, pull=_PULL) for start in starts]
    best = max(fits, key=lambda p: _log_likelihood(ends, np.array(p), _bathtub_cumulative, _bathtub_rate))
    return Bathtub(*best)


def fit_gamma_poisson(lives: Sequence[Lifetime]) -> GammaPoisson:
    """Shape and hours by maximum marginal likelihood over pools; losses between two looks count at the middle."""
    seen: defaultdict[tuple[str, ...], tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    for life in lives:
        before = seen[life.pool]
        lived_h = 0.5 * (life.lived_h + life.ended_by_h) if life.lost else life.lived_h
        seen[life.pool] = (before[0] + life.lost, before[1] + lived_h)
    k = np.array([losses for losses, _ in seen.values()], dtype=np.float64)
    hours = np.array([lived for _, lived in seen.values()], dtype=np.float64)
    rate = _rate(Ends.of(lives))

    def loss(p: Vector) -> float:
        a = math.exp(p[0])
        b = a / math.exp(p[1])
        terms = gammaln(a + k) - gammaln(a) + a * math.log(b) - (a + k) * np.log(b + hours)
        # Weakly towards a shape of 1: with pools that are all alike the likelihood has no maximum.
        return float(0.5 * (p[0] / 3.0) ** 2 - np.sum(terms))

    found = minimize(loss, [0.0, math.log(rate)], method="Nelder-Mead").x
    shape = math.exp(found[0])
    return GammaPoisson(shape, shape / math.exp(found[1]), dict(seen))


Curve = Callable[[Vector, Vector], Vector]


def _fit(ends: Ends, start: Sequence[float], cumulative: Curve, rate: Curve, *, pull: float = 0.0) -> tuple[float, ...]:
    """Parameters, all positive, that maximise the likelihood; the search runs on their logarithms."""
    first = np.log(start)

    def loss(logs: Vector) -> float:
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            value = -_log_likelihood(ends, np.exp(logs), cumulative, rate)
        value += 0.5 * pull * float(np.sum((logs - first) ** 2))
        return value if math.isfinite(value) else 1e12

    options = {"maxiter": 4000, "maxfev": 4000, "xatol": 1e-6, "fatol": 1e-8}
    found = minimize(loss, first, method="Nelder-Mead", options=options)
    return tuple(float(value) for value in np.exp(found.x))


def _log_likelihood(ends: Ends, parameters: Vector, cumulative: Curve, rate: Curve) -> float:
    lived = cumulative(parameters, ends.lived_h)
    total = -float(np.sum(lived))
    known, spread = ends.lost & ~ends.spread, ends.spread
    if known.any():
        total += float(np.log(rate(parameters, ends.lived_h[known])).sum())
    if spread.any():
        within = cumulative(parameters, ends.ended_by_h[spread]) - lived[spread]
        total += float(np.log(-np.expm1(-within)).sum())
    return total


def _bathtub_rate(p: Vector, age_h: Vector) -> Vector:
    return np.asarray(
        p[0] * np.exp(-age_h / p[1]) + p[2] + p[3] * np.exp((np.minimum(age_h, _WALL_H) - _WALL_H) / p[4])
    )


def _bathtub_cumulative(p: Vector, age_h: Vector) -> Vector:
    early = p[0] * p[1] * -np.expm1(-age_h / p[1])
    rising_h, level_h = np.minimum(age_h, _WALL_H), np.maximum(age_h - _WALL_H, 0.0)
    late = p[3] * (p[4] * (np.exp((rising_h - _WALL_H) / p[4]) - np.exp(-_WALL_H / p[4])) + level_h)
    return np.asarray(early + p[2] * age_h + late)


def _rate(ends: Ends) -> float:
    hours = np.where(ends.spread, 0.5 * (ends.lived_h + np.where(ends.spread, ends.ended_by_h, 0.0)), ends.lived_h)
    return max(float(ends.lost.sum()), _FEW) / max(float(hours.sum()), 1.0 / _H)
