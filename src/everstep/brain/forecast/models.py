"""Models of lifetimes by name: how each is fitted, and how they are held against each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from everstep.brain.forecast.frailty import fit_frailty
from everstep.brain.forecast.hazard import Hazard, mean_log_likelihood
from everstep.brain.forecast.nonparametric import kaplan_meier, nelson_aalen
from everstep.brain.forecast.parametric import fit_bathtub, fit_exponential, fit_gamma_poisson, fit_weibull
from everstep.brain.forecast.records import Lifetime

DEFAULT = "frailty"


class Fitted(Protocol):
    """A model fitted to records of many pools."""

    def of(self, pool: tuple[str, ...]) -> Hazard:
        """The hazard of one pool; of a pool without records, what is believed of such a pool."""
        ...


@dataclass(frozen=True, slots=True)
class Same:
    """One hazard for all pools."""

    hazard: Hazard

    def of(self, pool: tuple[str, ...]) -> Hazard:
        """The hazard, whatever the pool."""
        del pool
        return self.hazard


MODELS: Mapping[str, Callable[[Sequence[Lifetime]], Fitted]] = {
    "frailty": fit_frailty,
    "exponential": lambda lives: Same(fit_exponential(lives)),
    "gamma-poisson": fit_gamma_poisson,
    "weibull": lambda lives: Same(fit_weibull(lives)),
    "bathtub": lambda lives: Same(fit_bathtub(lives)),
    "kaplan-meier": lambda lives: Same(kaplan_meier(lives)),
    "nelson-aalen": lambda lives: Same(nelson_aalen(lives)),
}
"""The default first."""


def split_by_time(lives: Sequence[Lifetime], earlier: float) -> tuple[list[Lifetime], list[Lifetime]]:
    """Records in the order of their start, cut so that a share ``earlier`` of them comes first.

    Raises:
        ValueError: a record has no start, or one part would be empty.
    """
    starts = [life.start_s for life in lives]
    if any(start is None for start in starts):
        raise ValueError("a record without a start has no place in time")
    order = sorted(range(len(lives)), key=lambda i: starts[i] or 0.0)
    cut = int(earlier * len(lives))
    if not 0 < cut < len(lives):
        raise ValueError(f"{len(lives)} records cannot be cut at a share of {earlier:g}")
    return [lives[i] for i in order[:cut]], [lives[i] for i in order[cut:]]


def fitted(name: str, lives: Sequence[Lifetime], *, half_life_h: float | None = None) -> Fitted:
    """The named model of some records.

    Args:
        name: key of ``MODELS``.
        lives: records.
        half_life_h: hours after which a record counts half; None: never. Only ``frailty`` forgets.
    """
    if name == DEFAULT and half_life_h is not None:
        return fit_frailty(lives, half_life_h=half_life_h)
    return MODELS[name](lives)


def score(
    name: str, earlier: Sequence[Lifetime], later: Sequence[Lifetime], *, half_life_h: float | None = None
) -> float:
    """Mean log-likelihood per later record, densities per hour, of a model fitted to the earlier ones.

    Minus infinity for a model of steps when a moment of loss is known exactly: steps have no density.
    """
    return mean_log_likelihood(later, fitted(name, earlier, half_life_h=half_life_h).of)
