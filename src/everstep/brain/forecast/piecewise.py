"""A hazard that is constant between ages: cumulative hazard, survival and mean residual life in closed form."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

_H = 3600.0


@dataclass(frozen=True, slots=True)
class Piecewise:
    """Hazard ``per_h[j]`` at ages of ``from_h[j]`` up to ``from_h[j + 1]``; the last one holds for ever.

    Attributes:
        from_h: ages in hours at which a piece begins; ascending, the first is 0.
        per_h: events per hour, as many as ``from_h``, none negative.
    """

    from_h: tuple[float, ...]
    per_h: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.from_h) != len(self.per_h) or not self.from_h or self.from_h[0] != 0.0:
            raise ValueError("need one rate per piece, the first piece from age 0")
        if any(not rate >= 0.0 for rate in self.per_h):
            raise ValueError(f"a hazard is not negative, got {self.per_h!r}")

    def cumulative(self, age_s: float) -> float:
        """Expected events until ``age_s`` (the seam of all models of lifetimes)."""
        return self.between(0.0, age_s / _H)

    def rate_per_h(self, age_h: float) -> float:
        """Hazard at an age."""
        return self.per_h[bisect_right(self.from_h, age_h) - 1]

    def between(self, age_h: float, until_h: float) -> float:
        """Expected events between two ages, 0 if they are not in order."""
        return sum(rate * width for rate, width in pieces(self.from_h, self.per_h, age_h, until_h))

    def flip_probability(self, age_h: float, within_h: float) -> float:
        """Chance that what has reached ``age_h`` ends within the next ``within_h`` hours."""
        return -math.expm1(-self.between(age_h, age_h + within_h))

    def hours_to(self, age_h: float, hazard: float) -> float:
        """Hours after ``age_h`` in which ``hazard`` events are expected; infinite if never.

        With ``hazard`` = -log(1 - q) it is the q-quantile of the time left, with an Exp(1) variate a draw of it.
        """
        j = bisect_right(self.from_h, age_h) - 1
        spent_h = 0.0
        for start_h, stop_h, rate in zip(
            (age_h, *self.from_h[j + 1 :]), (*self.from_h[j + 1 :], math.inf), self.per_h[j:], strict=True
        ):
            if rate > 0.0 and hazard <= rate * (stop_h - start_h):
                return spent_h + hazard / rate
            hazard -= rate * (stop_h - start_h) if rate > 0.0 else 0.0
            spent_h += stop_h - start_h
        return math.inf

    def mean_residual_h(self, age_h: float, horizon_h: float) -> float:
        """E[min(time left, horizon)] of what has reached ``age_h``, in hours: the integral of the survival function."""
        return self.residual(age_h, horizon_h)[0]

    def residual(self, age_h: float, horizon_h: float) -> tuple[float, float]:
        """``mean_residual_h``, and the chance that it ends within the horizon."""
        total, alive = 0.0, 1.0
        from_h, last = self.from_h, len(self.from_h) - 1
        piece = bisect_right(from_h, age_h) - 1
        until_h = age_h + horizon_h
        while age_h < until_h:
            end_h = from_h[piece + 1] if piece < last and from_h[piece + 1] < until_h else until_h
            rate, width = self.per_h[piece], end_h - age_h
            dead = -math.expm1(-rate * width)
            total += alive * (dead / rate if rate > 0.0 else width)
            alive -= alive * dead
            age_h = end_h
            piece += 1
        return total, 1.0 - alive


def pieces(from_h: Sequence[float], values: Sequence[float], age_h: float, until_h: float) -> list[tuple[float, float]]:
    """What of each piece lies between two ages: (its value, hours). The last piece has no end."""
    if not until_h > age_h:
        return []
    found = []
    j = bisect_right(from_h, age_h) - 1
    while j + 1 < len(from_h) and from_h[j + 1] < until_h:
        found.append((values[j], from_h[j + 1] - age_h))
        age_h = from_h[j + 1]
        j += 1
    found.append((values[j], until_h - age_h))
    return found
