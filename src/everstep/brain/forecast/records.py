"""How long machines lasted: records with right and interval censoring, and log-likelihoods of them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

SHORTEST_H = 1.0 / 3600.0
"""A loss at no age at all says nothing that a density could answer: one second is the shortest."""


@dataclass(frozen=True, slots=True)
class Lifetime:
    """One machine.

    Owner's stops, ends of jobs and failed boots are right-censored, and so is the end at a maximum life: a wall, not a
    hazard.

    Attributes:
        lived_h: hours that it certainly lasted; at least a second.
        ended_by_h: hours after which it was certainly gone by preemption: equal to ``lived_h`` if the moment is known,
            later if it lies between two looks, infinite if no preemption was seen (right-censored).
        pool: where, from the widest to the narrowest: cloud, region, pool.
        start_s: when it began, UTC seconds; None if not known.
    """

    lived_h: float
    ended_by_h: float = math.inf
    pool: tuple[str, ...] = ()
    start_s: float | None = None

    def __post_init__(self) -> None:
        if not (0.0 <= self.lived_h < math.inf and self.ended_by_h >= self.lived_h):
            raise ValueError(f"need 0 <= lived_h <= ended_by_h, got {self.lived_h!r} and {self.ended_by_h!r}")
        if self.ended_by_h < SHORTEST_H:
            object.__setattr__(self, "ended_by_h", SHORTEST_H)
            object.__setattr__(self, "lived_h", SHORTEST_H)

    @property
    def lost(self) -> bool:
        """Whether a preemption was seen."""
        return self.ended_by_h < math.inf

    @property
    def exact(self) -> bool:
        """Whether the moment of the preemption is known."""
        return self.ended_by_h == self.lived_h


def lasted(hours: float, observed: bool, pool: tuple[str, ...] = (), start_s: float | None = None) -> Lifetime:
    """A life whose end is known: by preemption if ``observed``, else it was stopped, or is still on."""
    return Lifetime(hours, hours if observed else math.inf, pool, start_s)


def counted(lives: Iterable[Lifetime]) -> int:
    """How many preemptions were seen."""
    return sum(life.lost for life in lives)
