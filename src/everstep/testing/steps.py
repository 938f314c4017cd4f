"""Values that change in steps: what a trace says of prices and capacity."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

Steps = Sequence[tuple[float, float]]
"""``(UTC second, value)``, in order: the value holds from then on, the first one also before."""


def value_at(steps: Steps, now: float) -> float:
    """The value in force."""
    index = bisect_right([at for at, _ in steps], now) - 1
    return steps[max(index, 0)][1]


def changes(steps: Steps, start: float, end: float) -> list[tuple[float, float]]:
    """What held at ``start``, with the instant it began, and every change up to ``end``."""
    instants = [at for at, _ in steps]
    first = max(bisect_right(instants, start) - 1, 0)
    return [(at, value) for at, value in steps[first:] if at <= end]
