"""When will a pool be lost, when will it be back: hazards by the age of the current run, in both directions.

A *run* is a time in which the pool (for a gang: all of its N) was up, or was down, without a break. Its hazard of
ending depends on its age, in five buckets. `Observed` counts the ends of runs and the hours lived through in each
bucket; it is frozen and updated in constant time. `Observed.rates` turns the counts into hazards:

    phi  = (w + events) / (w + H)        H: what the prior expected of the hours observed; w = 1.5
    m_j  = phi * prior_j
    rate = m_j (b + events_j) / (b + m_j * exposure_j)         b = 10

that is, Gamma frailty of the pool first, then of each bucket.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import NamedTuple

from everstep.brain.forecast.piecewise import Piecewise

AGES_H = (0.0, 0.25, 1.0, 4.0, 12.0)
"""Age in hours at which each bucket begins; the last has no end."""
_ENDS_H = AGES_H[1:]
_LAST = len(_ENDS_H)
_H = 3600.0
_ZERO = (0.0,) * len(AGES_H)


class Counts(NamedTuple):
    """Runs of one direction, by age bucket.

    Attributes:
        events: runs that ended at such an age (faded: not whole numbers).
        exposure_h: hours that runs spent at such an age.
    """

    events: tuple[float, ...] = _ZERO
    exposure_h: tuple[float, ...] = _ZERO


@dataclass(frozen=True, slots=True)
class Rates:
    """Hazards of both directions.

    Attributes:
        loss: up to down, by the age of the time up.
        back: down to up, by the age of the time down.
    """

    loss: Piecewise
    back: Piecewise

    def of(self, up: bool) -> Piecewise:
        """The hazard of leaving a state."""
        return self.loss if up else self.back


BUILT_IN = Rates(
    loss=Piecewise(AGES_H, (1.13, 0.913, 0.301, 0.145, 0.070)),
    back=Piecewise(AGES_H, (1.10, 1.10, 0.385, 0.235, 0.083)),
)
"""What is believed before anything was seen: a fit of the Apache-2.0 licensed availability traces of AWS V100 and GCP
H100 that SkyNomad published."""


@dataclass(frozen=True, slots=True)
class Prior:
    """Where estimates start and how hard they are to move.

    To back off from a pool to its region, give the region's own rates as ``rates``.

    Attributes:
        rates: hazards before anything was seen.
        pool_weight: how many events the pool's factor is worth before anything was seen.
        bucket_weight: the same of each bucket's factor.
    """

    rates: Rates = BUILT_IN
    pool_weight: float = 1.5
    bucket_weight: float = 10.0


_DEFAULT = Prior()


class Observed(NamedTuple):
    """What was seen of one pool, as counts. Begin with ``Observed.begin``, then feed ``watched`` or ``probed``.

    Attributes:
        at_s: instant of the latest observation, UTC seconds.
        up: what it was then.
        since_s: when the current run began, as far as known.
        up_runs: counts of the times up.
        down_runs: counts of the times down.
        half_life_h: hours after which an observation counts half; None: never fades.
    """

    at_s: float
    up: bool
    since_s: float
    up_runs: Counts = Counts()
    down_runs: Counts = Counts()
    half_life_h: float | None = None

    @classmethod
    def begin(cls, at_s: float, up: bool, *, age_s: float = 0.0, half_life_h: float | None = None) -> Observed:
        """The first observation. ``age_s``: how long it is known to have been so already."""
        if age_s < 0.0 or (half_life_h is not None and not half_life_h > 0.0):
            raise ValueError(f"need age_s >= 0 and half_life_h > 0, got {age_s!r} and {half_life_h!r}")
        return cls(at_s, up, at_s - age_s, half_life_h=half_life_h)

    def age_h(self, at_s: float) -> float:
        """Hours that the current run has lasted at an instant, if it still lasts."""
        return max(at_s - self.since_s, 0.0) / _H

    def watched(self, at_s: float, up: bool) -> Observed:
        """After a time in which every change would have been seen: if ``up`` is new, it changed at ``at_s``.

        Observing less often changes nothing, as long as every flip is observed.

        Raises:
            ValueError: ``at_s`` lies before the latest observation.
        """
        lived = self._lived(at_s)
        return lived if up == self.up else lived._flipped()

    def probed(self, at_s: float, up: bool) -> Observed:
        """After a time in which nobody looked: a change is put in its middle.

        Raises:
            ValueError: ``at_s`` lies before the latest observation.
        """
        if up == self.up:
            return self._lived(at_s)
        return self._lived(0.5 * (self.at_s + at_s))._flipped()._lived(at_s)

    def rates(self, prior: Prior = _DEFAULT) -> Rates:
        """Hazards given the prior and the counts."""
        return Rates(
            loss=_posterior(prior.rates.loss, self.up_runs, prior),
            back=_posterior(prior.rates.back, self.down_runs, prior),
        )

    def _lived(self, at_s: float) -> Observed:
        """The current run lasts until ``at_s``."""
        lived_h = (at_s - self.at_s) / _H
        if lived_h <= 0.0:
            if lived_h < 0.0:
                raise ValueError(f"an observation at {at_s!r} after one at {self.at_s!r}: they must come in order")
            return self
        fade = 0.0 if self.half_life_h is None else math.log(2.0) / self.half_life_h
        ups, downs = (
            (_faded(self.up_runs, fade * lived_h), _faded(self.down_runs, fade * lived_h))
            if fade
            else (
                self.up_runs,
                self.down_runs,
            )
        )
        age_h = (self.at_s - self.since_s) / _H
        if self.up:
            ups = Counts(ups.events, _exposed(ups.exposure_h, age_h, age_h + lived_h, fade))
        else:
            downs = Counts(downs.events, _exposed(downs.exposure_h, age_h, age_h + lived_h, fade))
        return Observed(at_s, self.up, self.since_s, ups, downs, self.half_life_h)

    def _flipped(self) -> Observed:
        """The current run ends now."""
        runs = self.up_runs if self.up else self.down_runs
        # A run that ends at exactly 15 min ended in the bucket that it lived through.
        ended = Counts(_plus(runs.events, bisect_left(_ENDS_H, (self.at_s - self.since_s) / _H), 1.0), runs.exposure_h)
        ups, downs = (ended, self.down_runs) if self.up else (self.up_runs, ended)
        return Observed(self.at_s, not self.up, self.at_s, ups, downs, self.half_life_h)


def pooled(*counts: Counts) -> Counts:
    """The sum: what a region has seen, from its pools."""
    if not counts:
        return Counts()
    return Counts(
        tuple(map(sum, zip(*(c.events for c in counts), strict=True))),
        tuple(map(sum, zip(*(c.exposure_h for c in counts), strict=True))),
    )


def pooled_rates(pools: list[Observed] | tuple[Observed, ...], prior: Prior = _DEFAULT) -> Rates:
    """Hazards of several pools taken as one, to stand as the prior of each; ``prior`` if there are none."""
    return Rates(
        loss=_posterior(prior.rates.loss, pooled(*(p.up_runs for p in pools)), prior),
        back=_posterior(prior.rates.back, pooled(*(p.down_runs for p in pools)), prior),
    )


def _posterior(prior: Piecewise, counts: Counts, weights: Prior) -> Piecewise:
    w, b = weights.pool_weight, weights.bucket_weight
    expected = sum(rate * hours for rate, hours in zip(prior.per_h, counts.exposure_h, strict=True))
    phi = (w + sum(counts.events)) / (w + expected)
    per_h = []
    for rate, events, hours in zip(prior.per_h, counts.events, counts.exposure_h, strict=True):
        m = phi * rate
        per_h.append(m * (b + events) / (b + m * hours))
    return Piecewise(AGES_H, tuple(per_h))


def _faded(counts: Counts, by: float) -> Counts:
    f = math.exp(-by)
    return Counts(tuple([f * e for e in counts.events]), tuple([f * x for x in counts.exposure_h]))


def _exposed(exposure_h: tuple[float, ...], age_h: float, until_h: float, fade: float) -> tuple[float, ...]:
    """Hours between two ages added to their buckets; each hour faded by its distance to ``until_h``."""
    j = bisect_right(_ENDS_H, age_h)
    while j < _LAST and _ENDS_H[j] < until_h:
        exposure_h = _plus(exposure_h, j, _weight(_ENDS_H[j] - age_h, until_h - _ENDS_H[j], fade))
        age_h = _ENDS_H[j]
        j += 1
    return _plus(exposure_h, j, _weight(until_h - age_h, 0.0, fade))


def _weight(hours: float, ago_h: float, fade: float) -> float:
    """The integral of exp(-fade * time ago) over ``hours`` that ended ``ago_h`` ago."""
    return hours if fade == 0.0 else math.exp(-fade * ago_h) * -math.expm1(-fade * hours) / fade


def _plus(values: tuple[float, ...], j: int, amount: float) -> tuple[float, ...]:
    return (*values[:j], values[j] + amount, *values[j + 1 :])
