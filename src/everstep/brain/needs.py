"""What a missing machine must be, and where the job stands that it is for: the input of selectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from everstep.brain import guard
from everstep.brain.select import TIMED, UNTIMED, Need, Outlook
from everstep.model.causes import InstanceEnd, NoticeKind
from everstep.model.gang import Slot, ZoneRule
from everstep.model.ids import InstanceId
from everstep.model.job import InstanceState, JobState, VolumeState
from everstep.model.offers import Market, Offer

_BYTES_PER_GB = 1e9


def policy_of(job: JobState, heard: Mapping[InstanceId, guard.Told]) -> str:
    """Name of the policy that decides for a job: the task's own, else the default for what is known of it now."""
    if job.task.policy:
        return job.task.policy
    timed = guard.deadline_at(job) is not None and guard.work_left_s(job, heard) is not None
    return TIMED if timed else UNTIMED


@dataclass(frozen=True, slots=True)
class Needs:
    """What the machines of one job must be, in one decision.

    Attributes:
        job: whose.
        outlook: where it stands, without what differs from slot to slot.
        must_on_demand: the deadline's safety net has spoken.
    """

    job: JobState
    outlook: Outlook
    must_on_demand: bool

    @classmethod
    def of(cls, job: JobState, heard: Mapping[InstanceId, guard.Told], now: float) -> Needs:
        """Args: heard: telemetry by machine; now: UTC seconds."""
        return cls(job, _outlook(job, heard), guard.must_on_demand(job, heard, now))

    def of_slot(self, slot: Slot, picked: Sequence[Offer]) -> Need:
        """The machine that a slot lacks; ``picked``: what was chosen for other slots in the same decision."""
        job, task = self.job, self.job.task
        group = task.gang.groups[slot.group]
        return Need(
            job=job.id,
            slot=slot,
            machine=group.machine,
            spot=task.spot,
            max_price_usd_per_h=task.max_price_usd_per_h,
            on_no_capacity=task.recovery.on_no_capacity,
            cooldown_s=task.recovery.cooldown_s,
            must_on_demand=self.must_on_demand,
            zones=_zones(job, slot, group.zones, picked),
            regions=_regions(job, group.zones, picked),
            outlook=self._of_slot(slot),
        )

    def of_move(self, slot: Slot, picked: Sequence[Offer]) -> Need:
        """The machine that relieves one that works: bound to what the rest of the gang moves to, not to where it is."""
        rule = self.job.task.gang.groups[slot.group].zones
        zones = frozenset(o.zone for o in picked) if rule is ZoneRule.SAME_ZONE else frozenset[str]()
        regions = frozenset(o.region for o in picked) if rule is ZoneRule.SAME_REGION else frozenset[str]()
        return replace(self.of_slot(slot, picked), zones=zones, regions=regions)

    def _of_slot(self, slot: Slot) -> Outlook:
        had = sorted((m for m in self.job.instances.values() if m.slot == slot and m.instance), key=_launched)
        spot = tuple(m.offer.pool for m in had if m.offer.market is Market.SPOT)
        if not spot:
            return self.outlook
        return replace(self.outlook, begun=spot, lost=had[-1].offer.pool if _taken(had[-1]) else None)


def _launched(m: InstanceState) -> int:
    return m.launch_no


def _outlook(job: JobState, heard: Mapping[InstanceId, guard.Told]) -> Outlook:
    left_s, done_s = guard.work_left_s(job, heard), 0.0
    step, total = guard.progress(job, heard)
    if left_s is not None and step and total and step < total:
        done_s = left_s * step / (total - step)
    saved_in, saved_gb = _saved(job)
    return Outlook(
        began_at=job.submitted_at,
        deadline_at=guard.deadline_at(job),
        work_s=None if left_s is None else left_s + done_s,
        done_s=done_s,
        changeover_s=guard.changeover_s(job),
        machines=job.task.gang.size,
        saved_in=saved_in,
        saved_gb=saved_gb,
    )


def _taken(m: InstanceState) -> bool:
    """Spot that the vendor took: to leave a machine of one's own accord is no loss."""
    if m.offer.market is not Market.SPOT:
        return False
    return m.notice is NoticeKind.TERMINATE or m.end in (InstanceEnd.PREEMPTED, InstanceEnd.LOST)


def _saved(job: JobState) -> tuple[Offer | None, float]:
    """Where the newest checkpoint lies, and its size in GB."""
    for attempt in reversed(job.attempts):
        if attempt.saves:
            return job.instances[attempt.members[0]].offer, attempt.saves[-1].bytes / _BYTES_PER_GB
    return None, 0.0


def vacant(job: JobState) -> list[Slot]:
    """Slots without a machine that can be counted on, or that is on its way."""
    taken = {m.slot for m in job.instances.values() if not m.doomed}
    return [slot for slot in job.task.gang.slots if slot not in taken]


def disk_of(job: JobState, slot: Slot) -> VolumeState | None:
    """The slot's disk that is there, is being made, or could not be made."""
    disks = [v for v in job.volumes.values() if v.slot == slot and not v.deleting and v.deleted_at is None]
    return disks[-1] if disks else None


def is_untouched(job: JobState, disk: VolumeState) -> bool:
    """Whether nothing of the user's can be on a disk: no machine has it, and none that had it was in an attempt."""
    users = _users(job, disk)
    # Attempts of long ago are forgotten, but the first: whoever joined may have been in one of them.
    return not any(m.alive or (job.attempts and m.joined_at is not None) for m in users)


def is_loose(job: JobState, disk: VolumeState) -> bool:
    """Whether a disk binds its slot to its zone no longer: a machine was tried there and came to nothing."""
    return bool(_users(job, disk)) and is_untouched(job, disk)


def _users(job: JobState, disk: VolumeState) -> list[InstanceState]:
    return [m for m in job.instances.values() if disk.volume is not None and m.volume == disk.volume]


def binding_disk(job: JobState, slot: Slot) -> VolumeState | None:
    """The disk that binds a slot to its zone, if there is one."""
    disk = disk_of(job, slot)
    return None if disk is None or disk.failed_at is not None or is_loose(job, disk) else disk


def can_do_without(job: JobState, disk: VolumeState) -> bool:
    """Whether nothing but steps is lost with a disk (rule 10: restored from shared storage elsewhere).

    No machine has it, checkpoints are in the mirror, and nobody wants other files of it brought home.
    """
    held = any(m.alive for m in _users(job, disk))
    return mirrored(job) and not held


def mirrored(job: JobState) -> bool:
    """Whether everything on the job's disks that is worth something is in shared storage too."""
    saved = any(save.durable for attempt in job.attempts for save in attempt.saves)
    return bool(job.task.checkpoint.mirror) and saved and not job.task.outputs


def _others(job: JobState, picked: Sequence[Offer]) -> list[Offer]:
    """What the rest of the gang runs on, what has been picked just now included."""
    return [m.offer for m in job.instances.values() if not m.doomed] + list(picked)


def _zones(job: JobState, slot: Slot, rule: ZoneRule, picked: Sequence[Offer]) -> frozenset[str]:
    if (disk := binding_disk(job, slot)) is not None:
        return frozenset((disk.zone,))  # a disk attaches in its own zone only
    if rule is not ZoneRule.SAME_ZONE:
        return frozenset()
    return frozenset(o.zone for o in _others(job, picked))


def _regions(job: JobState, rule: ZoneRule, picked: Sequence[Offer]) -> frozenset[str]:
    return frozenset(o.region for o in _others(job, picked)) if rule is ZoneRule.SAME_REGION else frozenset()


def roomy(offers: Sequence[Offer], machines: int) -> list[Offer]:
    """Offers of zones that can hold so many machines of one pool, as far as the provider tells."""
    zones = {o.zone for o in offers if o.available is None or o.available >= machines}
    return [o for o in offers if o.zone in zones]
