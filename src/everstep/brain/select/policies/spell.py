"""``spell``: the zones in an order shuffled once, tried in turn; wait and start over. Prices are never compared."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from everstep.brain.select.course import Course, Memory, Mode, Situation
from everstep.brain.select.policies.answers import at, idle
from everstep.brain.select.rough import affordable


class Spell:
    """Goes on from the zone after the last one taken. On-demand's price is the most it pays.

    Its memory is how many zones it has passed.
    """

    guarded = True

    def resume(self, situation: Situation, begun: Sequence[str]) -> Memory:
        """What it has passed, from the places its job began on: for drivers that cannot keep a memory."""
        names = [situation.places[number].name for number in _order(situation)]
        passed = 0
        for name in begun:
            if name in names:
                passed += (names.index(name) - passed) % len(names) + 1
        return passed

    def steer(self, situation: Situation, memory: Memory) -> Course:
        """See ``Policy``."""
        passed = memory if isinstance(memory, int) else 0
        standing = situation.standing
        if standing.mode is Mode.SPOT and standing.place is not None:
            return at(situation, Mode.SPOT, standing.place, "kept until it is lost", memory=passed)
        order = _order(situation)
        for step in range(len(order)):
            place = situation.places[order[(passed + step) % len(order)]]
            if place.up and affordable(place):
                return at(situation, Mode.SPOT, place.name, "the next zone in turn", memory=passed + step + 1)
        return idle(situation, "no zone has spot: start over when one has", memory=passed)


def _order(situation: Situation) -> list[int]:
    order = list(range(len(situation.places)))
    # Once per job, not once per decision: the job's seed is the order.
    Random(situation.seed).shuffle(order)
    return order
