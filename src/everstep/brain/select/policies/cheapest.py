"""``cheapest``: the machine on which the rest of the work costs least; looked at again once a day."""

from __future__ import annotations

from everstep.brain.select.course import INSTANT_S, Course, Memory, Mode, Place, Situation
from everstep.brain.select.policies.answers import at, idle
from everstep.brain.select.rough import affordable, remaining_usd


class Cheapest:
    """Spot and on-demand alike, by price per unit of work.

    It moves only where the saving on the work left is more than the move costs: changeover, transfer. It looks when
    nothing runs, and every ``period_s``. Its memory is when it looks next.
    """

    guarded = True

    def __init__(self, *, period_s: float = 86_400.0) -> None:
        self.period_s = period_s

    def steer(self, situation: Situation, memory: Memory) -> Course:
        """See ``Policy``."""
        standing = situation.standing
        look_at = memory if isinstance(memory, float) else situation.now_s
        if standing.place is not None and situation.now_s < look_at - INSTANT_S:
            return at(
                situation, standing.mode, standing.place, "kept until the next look", wake_at=look_at, memory=look_at
            )
        choices = [(mode, place) for place in situation.places for mode in _to_be_had(place)]
        if not choices:
            return idle(situation, "nothing is to be had")
        mode, place = min(choices, key=lambda choice: _rank(situation, *choice))
        kept = (mode, place.name) == (standing.mode, standing.place)
        reason = "still the cheapest for the work left" if kept else "the cheapest for the work left, the move included"
        look_at = situation.now_s + self.period_s
        return at(situation, mode, place.name, reason, wake_at=look_at, memory=look_at)


def _to_be_had(place: Place) -> list[Mode]:
    modes = [Mode.SPOT] if place.up and affordable(place) else []
    return modes if place.on_demand_usd_per_h is None else [*modes, Mode.ON_DEMAND]


def _rank(situation: Situation, mode: Mode, place: Place) -> tuple[float, str, str]:
    return remaining_usd(situation, place, mode), mode, place.name
