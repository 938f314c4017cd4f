"""``incl``: spot by default; after preemptions, spot or on-demand by the recent record of the places.

Spot that is lost all the time costs more per useful hour than on-demand. Counts of time up and of drops decay with a
half-life; by them a useful hour of spot costs p L / (L - d), L being the expected lifetime and d the changeover. While
that is above on-demand everywhere, the job stays on on-demand, until the record has decayed enough: the endless loop of
preemptions ends.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from everstep.brain.select.course import Course, Memory, Mode, Situation, View
from everstep.brain.select.policies.answers import at, idle, on_demand
from everstep.brain.select.record import Record
from everstep.brain.select.rough import affordable, cheapest_on_demand


class Incl:
    """See the module. Without spot that is worth it, on-demand: it never waits. Its memory is the record."""

    guarded = True

    def __init__(self, *, prior_h: float = 2.0, half_life_h: float = 6.0) -> None:
        self.prior_h, self.half_life_h = prior_h, half_life_h

    def recall(self, views: Iterable[View]) -> Memory:
        """See ``Learner``."""
        return Record.of(views, half_life_h=self.half_life_h)

    def steer(self, situation: Situation, memory: Memory) -> Course:
        """See ``Policy``."""
        before = memory if isinstance(memory, Record) else None
        record = Record.after(situation, before, half_life_h=self.half_life_h)
        standing = situation.standing
        if standing.mode is Mode.SPOT and standing.place is not None:
            return at(situation, Mode.SPOT, standing.place, "spot is kept until it is lost", memory=record)
        steady = cheapest_on_demand(situation)
        cap = math.inf if steady is None or steady.on_demand_usd_per_h is None else steady.on_demand_usd_per_h
        worth = []
        wake_at = math.inf
        for number, place in enumerate(situation.places):
            if not place.up or not affordable(place):
                continue
            useful = self._usd_per_useful_h(situation, record, number)
            if useful <= cap:
                worth.append((useful, place.name))
            else:
                wake_at = min(wake_at, self._worth_at(situation, record, number, cap))
        if worth:
            useful, name = min(worth)
            reason = f"a useful hour of spot costs ${useful:.2f} by the record"
            return at(situation, Mode.SPOT, name, reason, memory=record)
        reason = "no spot is up" if wake_at == math.inf else "spot is lost too often of late to be worth it"
        course = on_demand(situation, reason, wake_at=wake_at, memory=record)
        return course or idle(situation, reason, wake_at=wake_at, memory=record)

    def _usd_per_useful_h(self, situation: Situation, record: Record, number: int) -> float:
        life_h = record.lifetime_h(number, prior_h=self.prior_h)
        changeover_h = situation.changeover_s / 3600.0
        price = situation.places[number].spot_usd_per_h
        if price is None or life_h <= changeover_h:
            return math.inf
        # Places that are equal must stay equal, however often their records were written.
        return round(price * life_h / (life_h - changeover_h), 9)

    def _worth_at(self, situation: Situation, record: Record, number: int, cap: float) -> float:
        """When the spot of a place that stays up will be worth it, by a record that decays; infinite if never.

        With f the part of the record that is left and B = half-life / ln 2, the lifetime is
        (prior + lived f + B (1 - f)) / (1 + drops f); it must reach d cap / (cap - price).
        """
        price = situation.places[number].spot_usd_per_h
        if price is None or price >= cap:
            return math.inf
        wanted_h = situation.changeover_s / 3600.0 / (1.0 - price / cap)
        place, whole_h = record.places[number], self.half_life_h / math.log(2.0)
        below = wanted_h * place.drops - place.lived_h + whole_h
        left = (self.prior_h + whole_h - wanted_h) / below if below > 0 else 0.0
        if left <= 0:
            return math.inf
        return situation.now_s - self.half_life_h * 3600.0 * math.log2(min(left, 1.0))
