"""What a policy remembers of each place's spot: for how long it was seen up, how often it went down."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from everstep.brain.select.course import Situation, View


@dataclass(frozen=True, slots=True)
class PlaceRecord:
    """One place.

    Attributes:
        up: spot was up when last seen.
        lived_h: hours seen up, decayed.
        drops: times it went down, decayed.
    """

    up: bool = False
    lived_h: float = 0.0
    drops: float = 0.0


@dataclass(frozen=True, slots=True)
class Record:
    """All places of a situation, in its order; ``at_s`` is when it was written."""

    at_s: float
    places: tuple[PlaceRecord, ...]

    @classmethod
    def after(cls, seen: Situation | View, before: Record | None, *, half_life_h: float = math.inf) -> Record:
        """The record with what is seen now.

        A place that was up when last seen is taken to have been up until now: policies are called at every flip.
        """
        if before is None:
            return cls(seen.now_s, tuple(PlaceRecord(bool(place.up)) for place in seen.places))
        passed_h = (seen.now_s - before.at_s) / 3600.0
        kept = 0.5 ** (passed_h / half_life_h)
        return cls(
            seen.now_s,
            tuple(
                _seen(old, bool(place.up), passed_h, kept)
                for old, place in zip(before.places, seen.places, strict=True)
            ),
        )

    @classmethod
    def of(cls, views: Iterable[View], *, half_life_h: float = math.inf) -> Record | None:
        """The record of a past; None of an empty one."""
        record: Record | None = None
        for view in views:
            record = cls.after(view, record, half_life_h=half_life_h)
        return record

    def lifetime_h(self, number: int, *, prior_h: float) -> float:
        """Expected hours until the place goes down: (prior + lived) / (1 + drops)."""
        place = self.places[number]
        return (prior_h + place.lived_h) / (1.0 + place.drops)


def _seen(old: PlaceRecord, up: bool, passed_h: float, kept: float) -> PlaceRecord:
    if kept == 1.0 and not old.up:
        return old if up == old.up else replace(old, up=up)
    return PlaceRecord(
        up,
        old.lived_h * kept + (_decayed_h(passed_h, kept) if old.up else 0.0),
        old.drops * kept + (old.up and not up),
    )


def _decayed_h(passed_h: float, kept: float) -> float:
    """Hours lived evenly over the time that passed, each decayed since it was lived."""
    if kept == 1.0 or passed_h == 0.0:
        return passed_h
    return passed_h * (kept - 1.0) / math.log(kept)
