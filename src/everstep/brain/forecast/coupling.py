"""How far zones go up and down together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

_UNKNOWN = math.nan


@dataclass(frozen=True, slots=True)
class Track:
    """When a pool was up, as the changes that were seen.

    Attributes:
        changes: (UTC seconds, up from then on), in the order of time; the first is the begin of watching.
        until_s: end of watching.
    """

    changes: Sequence[tuple[float, bool]]
    until_s: float

    def __post_init__(self) -> None:
        times = [at_s for at_s, _ in self.changes] + [self.until_s]
        if not self.changes or any(a > b for a, b in pairwise(times)):
            raise ValueError("a track needs changes in the order of time, ending before it does")


def correlation(a: Track, b: Track) -> float:
    """Correlation of two pools being up, weighted by time, over the time in which both were watched.

    NaN if they were never watched together, or one of them never changed in that time.
    """
    start_s = max(a.changes[0][0], b.changes[0][0])
    until_s = min(a.until_s, b.until_s)
    total = until_s - start_s
    if total <= 0.0:
        return _UNKNOWN
    moments = sorted({at_s for track in (a, b) for at_s, _ in track.changes if start_s < at_s < until_s})
    edges = [start_s, *moments, until_s]
    up_a, up_b = _states(a, edges[:-1]), _states(b, edges[:-1])
    share_a = share_b = both = 0.0
    for x, y, (low, high) in zip(up_a, up_b, pairwise(edges), strict=True):
        weight = (high - low) / total
        share_a += weight * x
        share_b += weight * y
        both += weight * (x and y)
    spread = share_a * (1.0 - share_a) * share_b * (1.0 - share_b)
    return (both - share_a * share_b) / math.sqrt(spread) if spread > 1e-18 else _UNKNOWN


@dataclass(frozen=True, slots=True)
class Coupling:
    """Mean correlation over pairs of pools; NaN where there is no such pair."""

    within_region: float
    across_regions: float


def coupling(tracks: Mapping[tuple[str, ...], Track]) -> Coupling:
    """Over all pairs of pools; two pools share a region if all but the last part of their paths is equal."""
    within: list[float] = []
    across: list[float] = []
    for (one, a), (other, b) in combinations(tracks.items(), 2):
        value = correlation(a, b)
        if not math.isnan(value):
            (within if one[:-1] == other[:-1] else across).append(value)
    return Coupling(_mean(within), _mean(across))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else _UNKNOWN


def _states(track: Track, at_s: Sequence[float]) -> list[bool]:
    """What the track was at each of some ascending moments."""
    states, j = [], 0
    for moment in at_s:
        while j + 1 < len(track.changes) and track.changes[j + 1][0] <= moment:
            j += 1
        states.append(track.changes[j][1])
    return states
