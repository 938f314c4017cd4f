"""The seam of all models of lifetimes: a model states its cumulative hazard, the rest follows.

H(a): expected losses until age a. Survival S(a) = exp(-H(a)); of what has reached age a, the share that lasts another s
is S(s|a) = exp(-(H(a + s) - H(a))).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Protocol

from everstep.brain.forecast.nonparametric import Steps
from everstep.brain.forecast.records import Lifetime

_H = 3600.0
_RELATIVE_STEP = 1e-5
_PANELS = 512


class Hazard(Protocol):
    """A model of one pool's lifetimes."""

    def cumulative(self, age_s: float) -> float:
        """Expected losses until an age in seconds: 0 at 0, never falling; infinite beyond a certain end."""
        ...


def survival(hazard: Hazard, age_s: float) -> float:
    """Chance to reach an age."""
    return math.exp(-hazard.cumulative(age_s))


def residual_survival(hazard: Hazard, more_s: float, age_s: float) -> float:
    """Chance of what has reached ``age_s`` to last another ``more_s``; 0 beyond a certain end."""
    lived = hazard.cumulative(age_s)
    return 0.0 if math.isinf(lived) else math.exp(lived - hazard.cumulative(age_s + more_s))


def mean_residual_s(hazard: Hazard, age_s: float, horizon_s: float) -> float:
    """E[min(time left, horizon)] of what has reached ``age_s``, in seconds, by Simpson's rule on S(s|a).

    The horizon is part of the question: a hazard that falls with age may have no finite mean. The grid is quadratic in
    the time from now, as hazards are steepest when young.
    """
    if horizon_s <= 0.0:
        return 0.0

    def weighted(x: float) -> float:
        return residual_survival(hazard, horizon_s * x * x, age_s) * 2.0 * horizon_s * x

    return _simpson(weighted, 0.0, 1.0)


def rate_per_h(hazard: Hazard, age_s: float) -> float:
    """Hazard at an age, per hour: the slope of the cumulative hazard there."""
    step_s = max(age_s, 1.0) * _RELATIVE_STEP
    below_s = max(age_s - step_s, 0.0)
    above = hazard.cumulative(age_s + step_s)
    return math.inf if math.isinf(above) else (above - hazard.cumulative(below_s)) / (age_s + step_s - below_s) * _H


def log_likelihood(hazard: Hazard, life: Lifetime) -> float:
    """Log-likelihood of one record, densities per hour.

    Right-censored: log S(lived). Known moment: log h + log S. Between two looks: log(S(lived) - S(ended by)). Minus
    infinity for what the model holds impossible; models made of steps have no density at any exact moment.
    """
    lived = hazard.cumulative(life.lived_h * _H)
    if not life.lost or math.isinf(lived):
        return -lived
    if life.exact:
        # The slope across a step would be a matter of how close to it one looks.
        rate = 0.0 if isinstance(hazard, Steps) else rate_per_h(hazard, life.lived_h * _H)
        return math.log(rate) - lived if rate > 0.0 else -math.inf
    within = hazard.cumulative(life.ended_by_h * _H) - lived
    return math.log(-math.expm1(-within)) - lived if within > 0.0 else -math.inf


def mean_log_likelihood(lives: Iterable[Lifetime], of: Callable[[tuple[str, ...]], Hazard]) -> float:
    """Mean log-likelihood per record; ``of`` gives the model of a pool. NaN without records."""
    known: dict[tuple[str, ...], Hazard] = {}
    total, count = 0.0, 0
    for life in lives:
        if life.pool not in known:
            known[life.pool] = of(life.pool)
        total += log_likelihood(known[life.pool], life)
        count += 1
    return total / count if count else math.nan


def _simpson(f: Callable[[float], float], low: float, high: float) -> float:
    width = (high - low) / (2 * _PANELS)
    inner = (f(low + i * width) * (4.0 if i % 2 else 2.0) for i in range(1, 2 * _PANELS))
    return (f(low) + f(high) + sum(inner)) * width / 3.0
