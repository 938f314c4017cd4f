"""When a job that runs well should go on elsewhere: back to spot after a drought, or to where it costs less.

A policy proposes, and this module has the last word: the whole of a move is leased beside the machines that work, so
the gang bills twice at most, never three times; and only where the saving on the work left is more than the changeover
costs. The gang goes on training until everything is prepared (``lifecycle/moves.py``).
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeGuard, cast

from everstep.brain.lifecycle.moves import called_off, movers
from everstep.brain.needs import Needs
from everstep.brain.pools import PoolBook
from everstep.brain.select import Choice, Held, Mover, Outlook, Selector
from everstep.model.events import Candidate
from everstep.model.gang import Slot, ZoneRule
from everstep.model.job import GangPhase, InstanceState, JobPhase, JobState
from everstep.model.offers import Offer, Pool

_NOMINAL_WORK_S = 24 * 3600.0
"""Work left that a saving is reckoned on where nobody knows it, market seconds."""


def is_mover(selector: Selector | None) -> TypeGuard[Mover]:
    """Whether the policy also says when to move. Asked of every decision, which is more than ``isinstance`` is fast."""
    return _moves(cast(Hashable, type(selector)))


@functools.cache
def _moves(kind: Hashable) -> bool:
    return issubclass(cast(type, kind), Mover)


class Relief(NamedTuple):
    """A machine to be leased for a slot that has one."""

    slot: Slot
    offer: Offer
    reason: str


@dataclass(frozen=True, slots=True)
class Move:
    """What came of looking at a job that runs.

    Attributes:
        reliefs: what to lease, all or nothing; none = the job stays.
        candidates: what was weighed for them.
        look_at: UTC seconds of the next look; None = when the market moves.
    """

    reliefs: tuple[Relief, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    look_at: float | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """The market of one decision.

    Attributes:
        offers: all of it.
        pools, shared_folders: see ``Snapshot``.
        inflight: launches without an answer, those of this round of decisions included.
        now: UTC seconds.
    """

    offers: Sequence[Offer]
    pools: PoolBook
    shared_folders: Mapping[str, str]
    inflight: Mapping[Pool, int]
    now: float


def not_before(job: JobState, changeover_s: float) -> float | None:
    """From when on the job may be moved, UTC seconds; None while it is not in a state to be moved.

    Every machine works, nobody is on the way or leaving, and what was just begun, or called off, has had its time.
    """
    attempt = job.attempt
    if job.phase is not JobPhase.RUNNING or attempt is None or attempt.phase is not GangPhase.RUNNING:
        return None
    began = attempt.first_step_at if attempt.first_step_at is not None else attempt.spawned_at
    there = {m.token for m in job.instances.values() if m.alive}
    if began is None or there != set(attempt.members) or len(there) != job.task.gang.size:
        return None
    if any(m.doomed or not m.shared_folder for m in (job.instances[t] for t in there)):
        return None  # a disk of a machine's own cannot be in two places
    earliest = began + changeover_s
    if called_off(job):
        earliest = max(earliest, max(m.intended_at for m in movers(job)) + job.task.recovery.cooldown_s)
    return earliest


def consider(job: JobState, needs: Needs, selector: Mover, look: Look) -> Move:
    """Asks the policy about every machine of a job that may be moved (``not_before``).

    Args:
        job: it runs.
        needs: of the job, in this decision.
        selector: its policy.
        look: the market.
    """
    by_slot = {m.slot: m for m in job.instances.values() if m.alive}
    reliefs: list[Relief] = []
    candidates: list[Candidate] = []
    wakes: list[float] = []
    for slot in job.task.gang.slots:
        machine = by_slot[slot]
        choice = _ask(job, needs, selector, look, (machine, [r.offer for r in reliefs]))
        if choice.retry_at is not None:
            wakes.append(choice.retry_at)
        if choice.offer is not None and _pays(machine, choice.offer, needs.outlook):
            reliefs.append(Relief(slot, choice.offer, choice.reason))
            candidates.extend(c for c in choice.candidates if c not in candidates)
    look_at = min(wakes, default=None)
    if not reliefs or not _keeps_together(job, by_slot, reliefs):
        return Move(look_at=look_at)
    return Move(tuple(reliefs), tuple(candidates), look_at)


def _ask(
    job: JobState, needs: Needs, selector: Mover, look: Look, what: tuple[InstanceState, Sequence[Offer]]
) -> Choice:
    machine, picked = what
    group = job.task.gang.groups[machine.slot.group]
    # Checkpoints must be in sight from there.
    near = {zone for zone, folder in look.shared_folders.items() if folder == machine.shared_folder}
    offers = [o for o in look.offers if group.machine.fits(o) and o.zone in near]
    if group.zones is ZoneRule.SAME_ZONE and not picked:
        # The first machine decides for all: its pool must hold them.
        offers = [o for o in offers if o.available is None or o.available >= group.count]
    inflight = dict(look.inflight)
    for offer in picked:
        inflight[offer.pool] = inflight.get(offer.pool, 0) + 1
    attempt = job.attempt
    since = machine.intended_at if attempt is None else attempt.begun_at
    return selector.reconsider(
        needs.of_move(machine.slot, picked),
        Held(machine.offer, since),
        offers,
        beliefs=look.pools,
        inflight=inflight,
        now=look.now,
    )


def _pays(machine: InstanceState, target: Offer, outlook: Outlook) -> bool:
    """The saving on the work left is more than a changeover on both machines and the transfer.

    A dearer machine is a matter of the deadline: there the policy's word counts, where there is a deadline.
    """
    now_usd_per_h, then_usd_per_h = machine.price_usd_per_h, target.price_usd_per_h
    if then_usd_per_h >= now_usd_per_h:
        return outlook.deadline_at is not None
    scale = target.billing.time_scale
    left_s = _NOMINAL_WORK_S if outlook.work_s is None else (outlook.work_s - outlook.done_s) * scale
    changeover_usd = (now_usd_per_h + then_usd_per_h) * outlook.changeover_s * scale / 3600.0
    far = machine.offer.region != target.region or machine.offer.provider != target.provider
    transfer_usd = outlook.saved_gb * machine.offer.egress_usd_per_gb if far else 0.0
    return (now_usd_per_h - then_usd_per_h) * left_s / 3600.0 > changeover_usd + transfer_usd


def _keeps_together(job: JobState, by_slot: Mapping[Slot, InstanceState], reliefs: Sequence[Relief]) -> bool:
    """The gang lies as its task demands, once it has moved."""
    after = {slot: machine.offer for slot, machine in by_slot.items()} | {r.slot: r.offer for r in reliefs}
    for number, group in enumerate(job.task.gang.groups):
        offers = [offer for slot, offer in after.items() if slot.group == number]
        if group.zones is ZoneRule.SAME_ZONE and len({o.zone for o in offers}) > 1:
            return False
        if group.zones is ZoneRule.SAME_REGION and len({o.region for o in offers}) > 1:
            return False
    return True
