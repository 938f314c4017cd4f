"""The hazard that paces saves, until a forecast fitted on our own journal takes its place."""

from __future__ import annotations

from collections.abc import Iterable

from everstep.brain.forecast.availability import BUILT_IN
from everstep.model.job import InstanceState
from everstep.model.offers import Market

# Machines that nobody reclaims still die: about one failure in three weeks of a node.
_OTHER_PER_H = 0.002


def machine_hazard_per_h(market: Market, age_h: float) -> float:
    """Expected losses per market hour of a machine that is ``age_h`` market hours old."""
    if market is not Market.SPOT:
        return _OTHER_PER_H
    # A new machine is lost far more often than an old one.
    return BUILT_IN.loss.rate_per_h(age_h)


def gang_hazard_per_h(machines: Iterable[InstanceState], now: float) -> float:
    """Expected losses per hour of the *clock* of a gang that stops when any of its machines is lost.

    Args:
        machines: the members.
        now: UTC seconds.
    """
    total = 0.0
    for m in machines:
        scale = m.offer.billing.time_scale
        age_h = max(now - (m.started_at if m.started_at is not None else now), 0.0) / 3600.0 * scale
        total += machine_hazard_per_h(m.offer.market, age_h) * scale
    return total
