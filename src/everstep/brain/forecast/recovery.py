"""How long a failed pool stays away, and the chance that a pool is up at a later time."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from everstep.brain.forecast.availability import Rates
from everstep.brain.forecast.piecewise import Piecewise

Vector = NDArray[np.float64]


def back_after_h(rates: Rates, down_h: float, chance: float = 0.5) -> float:
    """Hours until a pool that has been down for ``down_h`` is up again with this chance; infinite if never.

    Raises:
        ValueError: ``chance`` does not lie in [0, 1).
    """
    if not 0.0 <= chance < 1.0:
        raise ValueError(f"need 0 <= chance < 1, got {chance!r}")
    return rates.back.hours_to(down_h, -math.log1p(-chance))


def up_probability(rates: Rates, up: bool, age_h: float, after_h: float, step_h: float = 1.0 / 12.0) -> float:
    """Chance that a pool is up ``after_h`` from now, whatever it does in between.

    Args:
        rates: hazards of both directions.
        up: what it is now.
        age_h: for how long it has been so.
        after_h: hours ahead.
        step_h: how fine time is cut; at most one flip is counted per step.

    Returns:
        The chance; the work grows with the square of ``after_h / step_h``.
    """
    steps = max(math.ceil(after_h / step_h), 1)
    dt = after_h / steps
    if dt <= 0.0:
        return float(up)
    first = _flips(rates.of(up), age_h, dt, steps)
    loss, back = _flips(rates.loss, 0.0, dt, steps), _flips(rates.back, 0.0, dt, steps)
    # `still`: the run of now goes on. ups[i], downs[i]: a later run that has lasted i steps.
    still = 1.0
    ups, downs = np.zeros(steps + 1), np.zeros(steps + 1)
    for k in range(steps):
        lost, returned = ups[:steps] * loss, downs[:steps] * back
        ended = still * first[k]
        still -= ended
        ups[1:], downs[1:] = ups[:steps] - lost, downs[:steps] - returned
        ups[0] = returned.sum() + (0.0 if up else ended)
        downs[0] = lost.sum() + (ended if up else 0.0)
    return float(ups.sum() + (still if up else 0.0))


def _flips(hazard: Piecewise, age_h: float, dt: float, steps: int) -> Vector:
    """Chance to end in each step of a run that begins at ``age_h``."""
    return np.array([hazard.flip_probability(age_h + i * dt, dt) for i in range(steps)])
