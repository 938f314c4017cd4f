"""A gang that must lie together, and of which a part is where the rest is not to be had: when that part is given up.

Machines that wait for others cost, and how long a zone stays dry nobody knows; what a move takes is known. So the gang
waits as long as a move takes, and then goes where all of it is to be had at once: it never waits more than twice as
long as it would have, had it known (the break-even rule of ski rental; Karlin, Manasse, Rudolph and Sleator,
"Competitive snoopy caching", Algorithmica 3, 1988).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from everstep.brain.guard import changeover_s
from everstep.brain.needs import mirrored
from everstep.model.gang import Slot, ZoneRule
from everstep.model.job import GangPhase, InstanceState, JobPhase, JobState
from everstep.model.offers import Offer


def may_leave_at(job: JobState, slot: Slot) -> float | None:
    """From when on what is there of a slot's gang may be given up, UTC seconds; None if it must stay.

    It must where nothing binds the slot to it, while an attempt trains, while a launch has no answer, and as long as
    its disks hold what is nowhere else.

    Args:
        job: it lacks a machine.
        slot: for which none is to be had.
    """
    attempt = job.attempt
    if job.task.gang.groups[slot.group].zones is ZoneRule.ANY or job.phase is not JobPhase.ACQUIRING:
        return None
    if job.waiting_since is None or (attempt is not None and attempt.phase is not GangPhase.ENDED):
        return None
    there = those_there(job, slot)
    if not there or any(m.instance is None for m in there):
        return None
    if attempt is not None and any(not m.shared_folder for m in there) and not mirrored(job):
        return None
    return max(job.waiting_since, *(m.intended_at for m in there)) + changeover_s(job)


def those_there(job: JobState, slot: Slot) -> list[InstanceState]:
    """Machines of the slot's group that can be counted on, or that are on their way."""
    return [m for m in job.instances.values() if m.slot.group == slot.group and not m.doomed]


def elsewhere(job: JobState, slot: Slot, offers: Sequence[Offer], shared_folders: Mapping[str, str]) -> list[Offer]:
    """Offers of other places, from where the job's checkpoints can be seen."""
    there = those_there(job, slot)
    by_zone = job.task.gang.groups[slot.group].zones is ZoneRule.SAME_ZONE
    here = {m.offer.zone if by_zone else m.offer.region for m in there}
    found = [o for o in offers if (o.zone if by_zone else o.region) not in here]
    folders = {m.shared_folder for m in there} - {""}
    if job.attempt is None or not folders:
        return found
    return [o for o in found if {shared_folders.get(o.zone, "")} == folders]
