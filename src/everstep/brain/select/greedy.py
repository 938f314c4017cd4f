"""``greedy``: the cheapest spot machine; on-demand when there is none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random

from everstep.brain.pools import PoolBook
from everstep.brain.select.protocol import Choice, Need, Weighing, by_price
from everstep.model.offers import Offer, Pool
from everstep.model.task import OnNoCapacity, SpotMode


class Greedy:
    """Cheapest first among spot pools that are not cooling down, then on-demand where allowed.

    A free static machine is as cheap as can be and is taken first. When only spot is allowed and every pool is
    cooling down, the one that has rested longest is tried again after a tenth of the cool-down, so that a job in a
    small market is not starved by our caution.
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
        spot = weighing.spot(offers)
        steady = weighing.steady(offers)
        cheapest = min(steady, key=by_price, default=None)
        if spot:
            best = min(spot, key=by_price)
            if cheapest is None or best.price_usd_per_h < cheapest.price_usd_per_h:
                return weighing.choose(best, "the cheapest spot pool that is not cooling down")
        if cheapest is not None:
            why = "the deadline's safety net" if need.must_on_demand else "no cheaper spot pool is to be had"
            return weighing.choose(cheapest, f"{cheapest.market.value}: {why}")
        if need.must_on_demand and need.spot is not SpotMode.FALSE:
            # The safety net catches nothing where on-demand is not to be had: spot is better than standing still.
            loose = replace(need, must_on_demand=False, on_no_capacity=OnNoCapacity.WAIT)
            return self.choose(loose, offers, beliefs=beliefs, inflight=inflight, now=now, rng=rng)
        rested = weighing.rested(offers)
        if rested is not None:
            return weighing.choose(rested, "nothing else is left: the pool that has rested longest")
        return weighing.wait("no capacity in any pool that is allowed")
