"""The hazard that paces saves, until a forecast fitted on our own journal takes its place."""

from __future__ import annotations

from collections.abc import Iterable

from everstep.model.job import InstanceState
from everstep.model.offers import Market

# Losses of one spot machine per market hour by its age, from the Apache-2.0 licensed availability traces that SkyNomad
# published (AWS V100 and GCP H100): a new machine is lost far more often than an old one.
_UNTIL_H = (0.25, 1.0, 4.0, 12.0, float("inf"))
_SPOT_PER_H = (1.13, 0.913, 0.301, 0.145, 0.070)
# Machines that nobody reclaims still die: about one failure in three weeks of a node.
_OTHER_PER_H = 0.002


def machine_hazard_per_h(market: Market, age_h: float) -> float:
    """Expected losses per market hour of a machine that is ``age_h`` market hours old."""
    if market is not Market.SPOT:
        return _OTHER_PER_H
    return next(rate for until, rate in zip(_UNTIL_H, _SPOT_PER_H, strict=True) if age_h < until)


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
