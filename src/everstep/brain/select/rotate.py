"""``rotate``: shuffle the zones once, then try them in turn (the rule of Spell's zone shuffle)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from everstep.brain.pools import PoolBook
from everstep.brain.select.protocol import Choice, Need, Weighing, by_price
from everstep.model.offers import Offer, Pool


class Rotate:
    """Zones in an order that is shuffled once per job; a zone that failed cools down, then has its turn again.

    Prices are not compared between zones; within a zone the cheapest machine type is taken. On-demand is the last
    resort where it is allowed.
    """

    def choose(
        self,
        need: Need,
        offers: Sequence[Offer],
        *,
        beliefs: PoolBook,
        inflight: Mapping[Pool, int],
        now: float,
        rng: Random,
    ) -> Choice:
        """See ``Selector``."""
        weighing = Weighing(need, beliefs, inflight, now)
        order = sorted({o.zone for o in offers})
        # Once per job, not once per decision: the job's name is the seed.
        Random(f"rotate/{need.job}").shuffle(order)
        spot = weighing.spot(offers)
        if spot:
            best = min(spot, key=lambda o: (order.index(o.zone), *by_price(o)))
            return weighing.choose(best, f"next zone in turn: {best.zone}")
        steady = weighing.steady(offers)
        if steady:
            return weighing.choose(min(steady, key=by_price), "no zone has spot capacity")
        rested = weighing.rested(offers)
        if rested is not None:
            return weighing.choose(rested, f"starting over: {rested.zone} has rested longest")
        return weighing.wait("no zone has capacity; starting over when the first has cooled down")
