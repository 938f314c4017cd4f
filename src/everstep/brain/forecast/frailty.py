"""The default model: a baseline hazard that falls with age, times a factor per pool.

    S(s|a) = exp(-phi_z (H0(a + s) - H0(a)))          phi_z = (3 + k_z) / (3 + H_z)

k_z: losses of pool z, H_z: the baseline hazard that its machines lived through. phi_z is the posterior mean of a Gamma
frailty. With a path of pools (cloud, region, pool) each factor starts from that of the next wider place:
phi = (3 + k) / (3 / phi_wider + H), so a pool that nobody knows is judged as its region, an unknown region as its
cloud. Decay multiplies k and H.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from everstep.brain.forecast.baseline import Ends, built_in_baseline, expected_counts, fit_baseline
from everstep.brain.forecast.piecewise import Piecewise
from everstep.brain.forecast.records import Lifetime

_H = 3600.0
_WEIGHT = 3.0

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Seen:
    """What one place saw: losses, and the baseline hazard that its machines lived through."""

    losses: float = 0.0
    expected: float = 0.0

    def faded(self, by: float) -> Seen:
        """Both times a factor."""
        return Seen(self.losses * by, self.expected * by)

    def plus(self, losses: float, expected: float) -> Seen:
        """With more of both."""
        return Seen(self.losses + losses, self.expected + expected)


@dataclass(frozen=True, slots=True)
class Frailty:
    """The fitted model. Frozen; `noted` gives the one that has seen one record more.

    Attributes:
        baseline: hazard of a pool with factor 1.
        seen: by place; a place is the beginning of a pool's path. Records of no pool tell the baseline alone.
        half_life_h: hours after which a record counts half; None: never fades.
        as_of_s: instant that ``seen`` is faded to, UTC seconds.
    """

    baseline: Piecewise = field(default_factory=built_in_baseline)
    seen: Mapping[Path, Seen] = field(default_factory=dict)
    half_life_h: float | None = None
    as_of_s: float | None = None

    def factor(self, pool: Path) -> float:
        """phi of a pool, backed off to wider places."""
        phi = 1.0
        for place in _places(pool):
            here = self.seen.get(place, Seen())
            phi = (_WEIGHT + here.losses) / (_WEIGHT / phi + here.expected)
        return phi

    def of(self, pool: Path) -> Piecewise:
        """The hazard of a pool."""
        phi = self.factor(pool)
        return Piecewise(self.baseline.from_h, tuple(phi * rate for rate in self.baseline.per_h))

    def noted(self, life: Lifetime, at_s: float | None = None) -> Frailty:
        """The model after one record more, which ended at ``at_s``; the baseline stays.

        Takes time in proportion to the pools known if records fade, else to the length of the path.
        """
        losses, expected_h = expected_counts(self.baseline, Ends.of([life]))
        expected = float((expected_h * np.array(self.baseline.per_h)).sum())
        seen, as_of_s = dict(self.seen), self.as_of_s
        if self.half_life_h is not None and at_s is not None:
            if as_of_s is not None and at_s > as_of_s:
                by = 0.5 ** ((at_s - as_of_s) / _H / self.half_life_h)
                seen = {place: here.faded(by) for place, here in seen.items()}
            as_of_s = at_s if as_of_s is None else max(at_s, as_of_s)
        for place in _places(life.pool):
            seen[place] = seen.get(place, Seen()).plus(float(losses.sum()), expected)
        return Frailty(self.baseline, seen, self.half_life_h, as_of_s)


def fit_frailty(
    lives: Sequence[Lifetime],
    *,
    half_life_h: float | None = None,
    as_of_s: float | None = None,
    baseline: Piecewise | None = None,
) -> Frailty:
    """The model of some records.

    Args:
        lives: records; with a half-life, those without a start do not fade.
        half_life_h: hours after which a record counts half in the factors (never in the baseline).
        as_of_s: instant to fade to, UTC seconds; default: the latest end.
        baseline: default: fitted on the records, or the built-in one if there are none.
    """
    if baseline is None:
        baseline = fit_baseline(lives) if lives else built_in_baseline()
    losses, exposure_h = expected_counts(baseline, Ends.of(lives))
    k, h = losses.sum(axis=1), (exposure_h * np.array(baseline.per_h)).sum(axis=1)
    ended_s = [_ended_s(life) for life in lives]
    if as_of_s is None:
        as_of_s = max((at_s for at_s in ended_s if at_s is not None), default=None)
    seen: defaultdict[Path, Seen] = defaultdict(Seen)
    for life, at_s, losses_here, expected in zip(lives, ended_s, k, h, strict=True):
        by = 1.0
        if half_life_h is not None and at_s is not None and as_of_s is not None:
            by = 0.5 ** (max(as_of_s - at_s, 0.0) / _H / half_life_h)
        for place in _places(life.pool):
            seen[place] = seen[place].plus(by * float(losses_here), by * float(expected))
    return Frailty(baseline, dict(seen), half_life_h, as_of_s)


def _ended_s(life: Lifetime) -> float | None:
    return None if life.start_s is None else life.start_s + life.lived_h * _H


def _places(pool: Path) -> list[Path]:
    """From the widest to the pool itself."""
    return [pool[:n] for n in range(1, len(pool) + 1)]
