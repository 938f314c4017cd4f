"""The two entry points of the brain.

``advance`` moves one job's state machine by one event. ``plan`` looks at jobs, offers and what was heard, and decides
what to lease, end and conclude. Both are pure: the live loop and the simulator run exactly these.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from everstep.brain import guard, moving, stranded
from everstep.brain.conclude import conclude
from everstep.brain.economics.ledger import cost_usd
from everstep.brain.lifecycle import Briefing, same_orders, transition
from everstep.brain.needs import (
    Needs,
    binding_disk,
    can_do_without,
    disk_of,
    is_loose,
    is_untouched,
    policy_of,
    roomy,
    vacant,
)
from everstep.brain.release import dead_volumes, leavers, next_look
from everstep.brain.select import Choice, Selector
from everstep.brain.snapshot import Heard, Settings, Snapshot
from everstep.brain.texts import line_of, nothing_fits
from everstep.model.effects import Decision, DeleteVolume, Effect, EnsureVolume, Launch, Note, SendOrders, Terminate
from everstep.model.events import (
    Candidate,
    Decided,
    Event,
    GaveUp,
    LaunchIntended,
    TerminateIntended,
    VolumeDeleteIntended,
    VolumeIntended,
)
from everstep.model.gang import Slot, ZoneRule
from everstep.model.ids import JobId, VolumeId, launch_token
from everstep.model.job import Goal, JobPhase, JobState, VolumeState
from everstep.model.offers import Offer, Pool
from everstep.model.task import OnNoCapacity

_DISK_PAUSE_S = 10.0


def advance(state: JobState, event: Event, now: float) -> tuple[JobState, tuple[Effect, ...]]:
    """One job's state machine.

    Args:
        state: before.
        event: anything but ``JobSubmitted``.
        now: UTC seconds of the event.

    Returns:
        The state after it and the machines whose orders changed.

    Raises:
        UnlistedTransition: the tables do not list this event for the present phase.
    """
    after = transition(state, event, now)
    if after is state or same_orders(state, after):
        return after, ()
    return after, tuple(_changed_orders(state, after))


def _changed_orders(before: JobState, after: JobState) -> Iterator[SendOrders]:
    old_orders = Briefing(before)
    new_orders = Briefing(after, old_orders)
    for token, machine in after.instances.items():
        if machine.instance is None or not machine.alive or machine.joined_at is None:
            continue
        old = before.instances.get(token)
        if old is None or old.joined_at is None or old_orders.orders(old) != new_orders.orders(machine):
            yield SendOrders(after.id, machine.instance)


def plan(snapshot: Snapshot, now: float, rng: Random) -> tuple[Decision, ...]:
    """Decides for every job of the snapshot, in order; later jobs see what earlier ones took.

    Args:
        snapshot: what is known.
        now: UTC seconds.
        rng: the only source of chance. Each decision is made with a generator seeded from it; the seed is recorded.

    Returns:
        One decision per job.
    """
    digest = snapshot.digest or offers_digest(snapshot.offers)
    planned: dict[Pool, int] = {}
    decisions = []
    for job in snapshot.jobs:
        seed = rng.getrandbits(32)
        decisions.append(_Planner(snapshot, job, now, seed, digest, planned).decide())
    return tuple(decisions)


def offers_digest(offers: Sequence[Offer]) -> str:
    """12 hex digits that name a state of the market (prices and availability)."""
    text = "\n".join(f"{o.key} {o.available}" for o in offers)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclass(slots=True)
class _Planner:
    """One decision about one job."""

    snapshot: Snapshot
    job: JobState
    now: float
    seed: int
    digest: str
    planned: dict[Pool, int]
    """Launches decided in this call and not recorded yet; shared by all jobs of the call."""
    effects: list[Effect] = field(default_factory=list)
    candidates: list[Candidate] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    wakes: list[float] = field(default_factory=list)
    wait: str = ""
    needs: Needs | None = None

    def decide(self) -> Decision:
        self._conclude()
        if not any(isinstance(e, Note) for e in self.effects):
            # A conclusion changes the state: what follows from it is decided on the next look, at once.
            self._end_machines()
            self._delete_disks()
            if self._wants_machines():
                self._fill_slots()
                self._consider_move()
            self._explain()
        else:
            self.wakes.append(self.now)
        return self._decision()

    # What can be concluded ------------------------------------------------------------------------------------------

    def _conclude(self) -> None:
        found = conclude(self.job, self.snapshot, self.now)
        for event, reason in found.facts:
            self._note(event, reason)
        self.wakes.extend(found.wakes)

    # What is to go --------------------------------------------------------------------------------------------------

    def _end_machines(self) -> None:
        timeout_s = self.snapshot.settings.outputs_timeout_s
        for event in leavers(self.job, self.now, outputs_timeout_s=timeout_s):
            self.effects.append(Terminate(self.job.id, event))
            self.reasons.append(f"end {event.instance}: {event.reason}")
            machine = self.job.by_instance(event.instance)
            if machine is not None and not machine.doomed:
                self.wakes.append(self.now)  # its place has fallen vacant: that is decided once the intent is recorded
        later = next_look(self.job, self.now, outputs_timeout_s=timeout_s)
        if later is not None:
            self.wakes.append(later)

    def _delete_disks(self) -> None:
        for event in dead_volumes(self.job):
            self._delete_disk(event.volume, f"the job is {self.job.phase.value}")

    def _delete_disk(self, volume: VolumeId, why: str) -> None:
        self.effects.append(DeleteVolume(self.job.id, VolumeDeleteIntended(volume)))
        self.reasons.append(f"delete disk {volume}: {why}")

    # What is missing ------------------------------------------------------------------------------------------------

    def _wants_machines(self) -> bool:
        job = self.job
        open_phase = job.phase in (JobPhase.ACQUIRING, JobPhase.CHECKING, JobPhase.RUNNING, JobPhase.STOPPING)
        return open_phase and job.goal is Goal.RUN and not job.quarantined

    def _fill_slots(self) -> None:
        """A gang is leased whole or not at all: machines that wait for others cost, and keep them from other jobs."""
        picks: list[tuple[Slot, Offer, str]] = []
        dry: list[tuple[Slot, Choice]] = []
        # Who is bound by a disk chooses first: the others may have to come to him.
        for slot in sorted(vacant(self.job), key=lambda slot: binding_disk(self.job, slot) is None):
            choice = self._choose(slot, [offer for _, offer, _ in picks])
            self.candidates.extend(c for c in choice.candidates if c not in self.candidates)
            if choice.offer is None:
                dry.append((slot, choice))
                continue
            picks.append((slot, choice.offer, choice.reason))
        if dry:
            self._cannot_fill(dry, found=len(picks))
            return
        # A disk takes time to make or to come free: who has one does not start, and cost, until all have.
        if not all([self._has_disk(slot, offer) for slot, offer, _ in picks]):
            return
        # Credit for one machine does for the gang, and nobody asks that pool again before the minute has caught up: who
        # waited for credit for all of it would wait for ever beside jobs that need one machine each.
        for _, offer, _ in picks:
            credit_at = self._credit_at(offer.pool)
            if credit_at > self.now:
                self._waiting(f"pool {offer.pool} has no launch credit", credit_at)
                return
        for number, (slot, offer, reason) in enumerate(picks, self.job.launches + 1):
            self._launch(slot, offer, number)
            self.reasons.append(f"slot {slot}: {offer.pool} at ${offer.price_usd_per_h:.4f}/h: {reason}")

    def _consider_move(self) -> None:
        """A gang that runs may go on elsewhere: the whole of a move is leased or nothing of it."""
        selector = self._selector()
        if self.effects or self.wait or not moving.is_mover(selector):
            return
        earliest = moving.not_before(self.job, guard.changeover_s(self.job))
        if earliest is None:
            return
        if self.now < earliest:
            self.wakes.append(earliest)
            return
        s = self.snapshot
        look = moving.Look(s.offers, s.pools, s.shared_folders, self._inflight(()), self.now)
        move = moving.consider(self.job, self._needs(), selector, look)
        if move.look_at is not None:
            self.wakes.append(max(move.look_at, self.now + s.settings.patience_s))
        credit_at = max((self._credit_at(relief.offer.pool) for relief in move.reliefs), default=self.now)
        if credit_at > self.now:
            self.wakes.append(credit_at)
            return
        self.candidates.extend(move.candidates)
        if not all([self._has_disk(relief.slot, relief.offer) for relief in move.reliefs]):
            return
        first = self.job.launches + 1
        for number, (slot, offer, reason) in enumerate(move.reliefs, first):
            self._launch(slot, offer, number, move=first)
            self.reasons.append(f"slot {slot} moves to {offer.pool} at ${offer.price_usd_per_h:.4f}/h: {reason}")

    def _credit_at(self, pool: Pool) -> float:
        per_minute = max(self.snapshot.settings.launches_per_minute, 1)
        return self.snapshot.pools.credit_at(pool, self.now, per_minute, self.planned.get(pool, 0))

    def _explain(self) -> None:
        """Rule 13: a job that stands still says why."""
        job = self.job
        if self.wait or job.phase is not JobPhase.ACQUIRING:
            return
        if job.quarantined:
            self.wait = f"quarantined: {job.quarantined}"
        elif job.attempt is not None and job.attempt.failed and job.attempt.settled_at is None and not vacant(job):
            self.wait = f"finding out why attempt {job.attempt.no} ended"

    def _choose(self, slot: Slot, picked: Sequence[Offer], *, elsewhere: Sequence[Offer] | None = None) -> Choice:
        """Args: picked: for other slots, in this decision; elsewhere: among these, wherever the gang is now."""
        job = self.job
        group = job.task.gang.groups[slot.group]
        moves = elsewhere is not None
        need = self._needs().of_move(slot, picked) if moves else self._needs().of_slot(slot, picked)
        offers = [o for o in (self.snapshot.offers if elsewhere is None else elsewhere) if group.machine.fits(o)]
        if group.zones is ZoneRule.SAME_ZONE and not need.zones:
            offers = roomy(offers, group.count if moves else len(vacant(job))) or offers
        inflight = self._inflight(picked)
        selector = self._selector()
        if selector is None:
            return Choice(None, (), f"there is no policy named '{self._policy()}'")
        if not offers:
            return Choice(None, (), nothing_fits(self.snapshot.offers))

        def ask(some: Sequence[Offer]) -> Choice:
            rng = Random(f"{self.seed}/{slot}")
            return selector.choose(need, some, beliefs=self.snapshot.pools, inflight=inflight, now=self.now, rng=rng)

        return self._with_credit(ask(offers), offers, ask)

    def _with_credit(self, first: Choice, offers: Sequence[Offer], ask: Callable[[Sequence[Offer]], Choice]) -> Choice:
        """What to take where the first choice is a pool that may not be asked in this minute.

        Another pool that may be asked, as if the first had no capacity; but nobody goes from spot to a dearer market
        for want of a minute.
        """
        wanted = first.offer
        if wanted is None or self._credit_at(wanted.pool) <= self.now:
            return first
        second = ask([o for o in offers if self._credit_at(o.pool) <= self.now])
        if second.offer is None:
            return first
        if second.offer.market is not wanted.market and second.offer.price_usd_per_h > wanted.price_usd_per_h:
            return first
        weighed = {c.what for c in second.candidates}
        spent = [replace(c, verdict="no launch credit", score=None) for c in first.candidates if c.what not in weighed]
        return replace(second, candidates=(*second.candidates, *spent))

    def _policy(self) -> str:
        return policy_of(self.job, self.snapshot.heard)

    def _selector(self) -> Selector | None:
        return self.snapshot.selectors.get(self._policy())

    def _needs(self) -> Needs:
        if self.needs is None:
            self.needs = Needs.of(self.job, self.snapshot.heard, self.now)
        return self.needs

    def _inflight(self, picked: Sequence[Offer]) -> dict[Pool, int]:
        inflight = dict(self.snapshot.inflight)
        for pool, count in (*self.planned.items(), *((o.pool, 1) for o in picked)):
            inflight[pool] = inflight.get(pool, 0) + count
        return inflight

    def _has_disk(self, slot: Slot, offer: Offer) -> bool:
        """Whether a machine can start there for the slot; a disk that it lacks is ordered, or waited for."""
        disk = disk_of(self.job, slot)
        if self.snapshot.shared_folders.get(offer.zone, ""):
            if disk is not None and disk.volume is not None and is_loose(self.job, disk):
                self._delete_disk(disk.volume, f"unused, and slot {slot} goes to {offer.zone}")
            return True
        # Nothing is shared in that zone: the slot's disk must outlive its machines (rule 10).
        if disk is None:
            self._make_disk(slot, offer)
        elif disk.failed_at is not None:
            again_at = disk.failed_at + _DISK_PAUSE_S
            if self.now >= again_at:
                self._make_disk(slot, offer)
            else:
                self._waiting(f"the disk of slot {slot} could not be made", again_at)
        elif disk.volume is None:
            self._waiting(f"the disk of slot {slot} is being made", None)
        elif disk.zone != offer.zone and is_loose(self.job, disk):
            self._delete_disk(disk.volume, f"unused, and slot {slot} goes to {offer.zone}")
            self._make_disk(slot, offer)
        elif any(m.volume == disk.volume and m.alive for m in self.job.instances.values()):
            self._waiting(f"the disk of slot {slot} is still attached to the machine that leaves", self.now + 1.0)
        else:
            return True
        return False

    def _launch(self, slot: Slot, offer: Offer, launch_no: int, move: int = 0) -> None:
        """See ``_has_disk``, which is to be asked first."""
        job = self.job
        shared = self.snapshot.shared_folders.get(offer.zone, "")
        disk = None if shared else disk_of(job, slot)
        token = launch_token(self.snapshot.deployment, job.id, launch_no, offer.key)
        event = LaunchIntended(
            token=token,
            launch_no=launch_no,
            slot=slot,
            offer=offer,
            max_price_usd_per_h=offer.on_demand_usd_per_h
            if job.task.max_price_usd_per_h is None
            else min(job.task.max_price_usd_per_h, offer.on_demand_usd_per_h),
            shared_folder=shared,
            volume=None if disk is None else disk.volume,
            move=move,
        )
        self.effects.append(Launch(job.id, event))
        self.planned[offer.pool] = self.planned.get(offer.pool, 0) + 1

    def _make_disk(self, slot: Slot, offer: Offer) -> None:
        wanted = self.job.task.gang.groups[slot.group].machine.disk_gib
        # A disk that was deleted stays in the bill: its successor has a name of its own.
        older = sum(1 for v in self.job.volumes.values() if v.slot == slot and v.volume is not None)
        name = f"{self.job.id}-{slot}" + (f"-{older + 1}" if older else "")
        event = VolumeIntended(slot, name, offer.zone, offer.provider, wanted or 10.0)
        self.effects.append(EnsureVolume(self.job.id, event))
        self.reasons.append(f"slot {slot}: a disk in {offer.zone} that outlives its machines")
        self.wait = f"the disk of slot {slot} is being made"

    def _cannot_fill(self, dry: Sequence[tuple[Slot, Choice]], *, found: int) -> None:
        """Waits for what is missing, or gives up."""
        slot, choice = dry[0]
        if self.job.task.recovery.on_no_capacity is OnNoCapacity.FAIL and not self._someone_comes():
            text = f"slot {slot}: {choice.reason} (recovery.on_no_capacity is fail)"
            self._note(GaveUp(text), text)
            self.wakes.append(self.now)
            return
        if self._leave(slot):
            return
        # Who must lie together is kept there by the disks of those as well for whom there would be room.
        together = self.job.task.gang.groups[slot.group].zones is not ZoneRule.ANY
        for empty in vacant(self.job) if together else [slot for slot, _ in dry]:
            disk = disk_of(self.job, empty)
            # It must not tie the job to a zone that is dry: nothing is on it yet, or nothing that is not elsewhere too.
            why = "" if disk is None or disk.volume is None else self._why_without(empty, disk)
            if why and disk is not None and disk.volume is not None:
                self._delete_disk(disk.volume, why)
        looked = len(choice.candidates)
        why = choice.reason
        if looked:
            why += f" ({looked} pool{'' if looked == 1 else 's'} looked at)"
        if found:
            why += f"; {found} of the {found + len(dry)} machines that are missing could be had, all are wanted at once"
        self._waiting(why, min((c.retry_at for _, c in dry if c.retry_at is not None), default=None))

    def _leave(self, slot: Slot) -> bool:
        """Gives up the place of a gang that must lie together, for one where all of it is to be had."""
        at = stranded.may_leave_at(self.job, slot)
        if at is None or self.now < at:
            self.wakes.extend(() if at is None else (at,))
            return False
        offers = stranded.elsewhere(self.job, slot, self.snapshot.offers, self.snapshot.shared_folders)
        picks: list[Offer] = []
        for each in (s for s in self.job.task.gang.slots if s.group == slot.group):
            offer = self._choose(each, picks, elsewhere=offers).offer
            if offer is None:
                return False
            picks.append(offer)
        for machine in stranded.those_there(self.job, slot):
            assert machine.instance is not None
            reason = f"the gang goes to {picks[0].zone}: no capacity for slot {slot} where {machine.instance} is"
            self.effects.append(Terminate(self.job.id, TerminateIntended(machine.instance, reason)))
            self.reasons.append(f"end {machine.instance}: {reason}")
        self.wakes.append(self.now)  # its places have fallen vacant: that is decided once the intent is recorded
        return True

    def _why_without(self, slot: Slot, disk: VolumeState) -> str:
        if is_untouched(self.job, disk):
            return "unused, in a zone without capacity"
        rule = self.job.task.gang.groups[slot.group].zones
        if not can_do_without(self.job, disk) or (rule is not ZoneRule.ANY and self._someone_comes()):
            return ""
        offer = self._choose(slot, (), elsewhere=self.snapshot.offers).offer
        if offer is None:
            return ""
        return f"no capacity in {disk.zone}, but in {offer.zone}, where the mirror is read"

    def _someone_comes(self) -> bool:
        return any(m.alive and not m.doomed for m in self.job.instances.values())

    def _waiting(self, why: str, until: float | None) -> None:
        """Rule 13: every wait has a visible reason and a next try."""
        self.wait = why
        at = self.now + self.snapshot.settings.patience_s
        self.wakes.append(at if until is None else max(min(until, at), self.now + 0.05))

    # The record -----------------------------------------------------------------------------------------------------

    def _note(self, event: Event, reason: str) -> None:
        self.effects.append(Note(self.job.id, event))
        self.reasons.append(reason)

    def _decision(self) -> Decision:
        wake_at = min((w for w in self.wakes if w >= self.now), default=None)
        inputs: dict[str, str] = {}
        if self.effects or self.wait != self.job.wait:
            inputs = {
                "offers": self.digest,
                "seed": str(self.seed),
                "decision": str(self.job.decisions + 1),
                "policy": self._policy(),
                "cost_usd": f"{cost_usd(self.job, self.now):.4f}",
                "progress": guard.progress_text(self.job, self.snapshot.heard),
            }
        record = Decided(
            effects=tuple(line_of(e) for e in self.effects),
            reasons=tuple(self.reasons),
            candidates=tuple(self.candidates),
            inputs=inputs,
            wait=self.wait,
            wake_at=wake_at,
        )
        return Decision(self.job.id, tuple(self.effects), record, wake_at)


def worth_recording(state: JobState, decision: Decision) -> bool:
    """Decisions without effects that change nothing visible stay out of the journal."""
    return bool(decision.effects) or decision.record.wait != state.wait


__all__ = ["Heard", "JobId", "Settings", "Snapshot", "advance", "offers_digest", "plan", "worth_recording"]
