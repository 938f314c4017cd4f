"""``on_demand``: never spot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from everstep.brain.pools import PoolBook
from everstep.brain.select.protocol import Choice, Need, Weighing, by_price
from everstep.model.offers import Offer, Pool


class OnDemand:
    """The cheapest machine that is not spot."""

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
        steady = weighing.steady(offers)
        if steady:
            return weighing.choose(min(steady, key=by_price), "the cheapest machine that is not spot")
        return weighing.wait("no on-demand machine that fits is to be had")
