"""Whether a gang can ever be on its machines at once: said before it is submitted, not after hours of waiting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from everstep.model.gang import SlotGroup, ZoneRule
from everstep.model.job import JobState
from everstep.model.offers import Market, Offer, Pool
from everstep.model.task import SpotMode, Task


def too_small(task: Task, offers: Sequence[Offer], jobs: Iterable[JobState]) -> str:
    """One line if all that is there, what our own jobs hold included, is less than the gang needs; else empty.

    Args:
        task: what is to be run.
        offers: the whole market, sold-out pools included.
        jobs: all live jobs of the deployment.
    """
    held = Counter(i.offer.pool for job in jobs for i in job.instances.values() if i.alive)
    for group in task.gang.groups:
        fitting = [o for o in offers if group.machine.fits(o) and _may_be_used(task, o)]
        room = _room(group, fitting, held)
        if fitting and room is not None and room < group.count:
            several = len({o.provider for o in fitting}) > 1
            where = "the clouds here have" if several else "this cloud has"
            now = " now" if any(o.market is Market.SPOT for o in fitting) else ""
            return f"needs {group.count} machines at once; {where} room for {room}{now}"
    return ""


def _room(group: SlotGroup, fitting: Sequence[Offer], held: Counter[Pool]) -> int | None:
    """Machines that fit in the place that has most of them; None = nobody says."""
    if any(o.available is None for o in fitting):
        return None
    places: Counter[str] = Counter()
    for offer in fitting:
        place = {ZoneRule.SAME_ZONE: offer.zone, ZoneRule.SAME_REGION: offer.region}.get(group.zones, "")
        places[f"{offer.provider}/{place}" if place else ""] += (offer.available or 0) + held[offer.pool]
    return max(places.values(), default=0)


def _may_be_used(task: Task, offer: Offer) -> bool:
    return task.spot is not SpotMode.FALSE or offer.market is not Market.SPOT
