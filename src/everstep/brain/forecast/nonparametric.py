"""Kaplan-Meier and Nelson-Aalen: what the records say, without a model.

E. L. Kaplan and P. Meier, "Nonparametric estimation from incomplete observations", JASA 53, 1958; O. Aalen,
"Nonparametric inference for a family of counting processes", Annals of Statistics 6, 1978.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from everstep.brain.forecast.records import Lifetime

_H = 3600.0


@dataclass(frozen=True, slots=True)
class Steps:
    """A cumulative hazard that jumps at ages and is flat between them.

    Attributes:
        at_h: ages in hours at which it jumps, ascending.
        cumulative_at: its value from that age on.
    """

    at_h: tuple[float, ...]
    cumulative_at: tuple[float, ...]

    def cumulative(self, age_s: float) -> float:
        """The value after the latest jump at or before an age."""
        j = bisect_right(self.at_h, age_s / _H)
        return self.cumulative_at[j - 1] if j else 0.0


def kaplan_meier(lives: Iterable[Lifetime]) -> Steps:
    """-log of the product-limit estimate of the survival function; infinite once everything at risk was lost."""
    return _steps(lives, lambda lost, at_risk: -math.log1p(-lost / at_risk) if lost < at_risk else math.inf)


def nelson_aalen(lives: Iterable[Lifetime]) -> Steps:
    """Sum of lost / at risk; tied losses are taken at once."""
    return _steps(lives, lambda lost, at_risk: lost / at_risk)


def _steps(lives: Iterable[Lifetime], jump: Callable[[int, int], float]) -> Steps:
    """Records between two looks count at the middle. What was censored at the age of a loss was still at risk."""
    ends = sorted((0.5 * (life.lived_h + life.ended_by_h) if life.lost else life.lived_h, life.lost) for life in lives)
    at_h, values = [], []
    total, i = 0.0, 0
    while i < len(ends):
        age_h, at_risk, lost = ends[i][0], len(ends) - i, 0
        while i < len(ends) and ends[i][0] == age_h:
            lost += ends[i][1]
            i += 1
        if lost:
            total += jump(lost, at_risk)
            at_h.append(age_h)
            values.append(total)
    return Steps(tuple(at_h), tuple(values))
