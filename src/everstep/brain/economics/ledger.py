"""The bill of a job: typed lines from the journal, and what the money bought (rule 12)."""

from __future__ import annotations

from dataclasses import dataclass, field

from everstep.model.causes import InstanceEnd
from everstep.model.job import AttemptState, GangPhase, InstanceState, JobState, VolumeState
from everstep.model.ledger import LedgerLine, LineKind, Overhead
from everstep.model.offers import Market

_RECLAIMED = (InstanceEnd.PREEMPTED, InstanceEnd.MAX_LIFE)


@dataclass(frozen=True, slots=True)
class Account:
    """A job's bill and what it bought.

    Attributes:
        lines: the charges.
        cost_usd: their sum.
        on_demand_cost_usd: what the same useful work costs on one undisturbed on-demand gang of the same machines:
            useful instance-hours at the list price, no boot, no loss.
        saved_usd, saved_fraction: the difference; negative when spot was dearer.
        billed_instance_s: seconds of the clock between the provider's start and end, summed over machines.
        useful_instance_s: the part in which steps ran that count in the end.
        lost_steps: steps that had to be done again.
        overhead: instance-seconds of the clock by cause; with ``useful_instance_s`` they add up to
            ``billed_instance_s``.
        disks_still_billing: names of volumes that are kept.
    """

    lines: tuple[LedgerLine, ...]
    cost_usd: float
    on_demand_cost_usd: float
    saved_usd: float
    saved_fraction: float
    billed_instance_s: float
    useful_instance_s: float
    lost_steps: int
    preemptions: int
    recoveries: int
    attempts: int
    overhead: dict[str, float] = field(default_factory=dict)
    disks_still_billing: tuple[str, ...] = ()


def lines(state: JobState, now: float) -> tuple[LedgerLine, ...]:
    """Every charge of a job up to ``now`` (UTC seconds), machines first, in order of their start."""
    machines = [m for m in state.instances.values() if m.started_at is not None]
    machines.sort(key=lambda m: (m.started_at or 0.0, m.launch_no))
    disks = [v for v in state.volumes.values() if v.created_at is not None]
    return (*(_compute(state, m, now) for m in machines), *(_disk(state, v, now) for v in disks))


def cost_usd(state: JobState, now: float) -> float:
    """What the job has cost up to ``now``, USD."""
    return sum(line.cost_usd for line in lines(state, now))


def price_usd_per_s(state: JobState) -> float:
    """What a second of the clock costs at present, USD: every machine and disk that is still there."""
    machines = (
        m.price_usd_per_h * m.offer.billing.time_scale for m in state.instances.values() if m.alive and m.started_at
    )
    return sum(machines) / 3600.0


def _compute(state: JobState, m: InstanceState, now: float) -> LedgerLine:
    assert m.started_at is not None
    until = m.ended_at if m.ended_at is not None else max(now, m.started_at)
    reclaimed = m.end in _RECLAIMED
    rule = m.offer.billing
    hours = rule.billed_s(until - m.started_at, reclaimed=reclaimed) / 3600.0
    return LedgerLine(
        kind=LineKind.COMPUTE,
        job=state.id,
        resource=str(m.instance),
        provider=m.offer.provider,
        zone=m.offer.zone,
        machine_type=m.offer.machine.name,
        market=m.offer.market,
        start=m.started_at,
        end=m.ended_at,
        quantity=hours,
        price_usd=m.price_usd_per_h,
        cost_usd=hours * m.price_usd_per_h,
        price_source=m.offer.price_source,
        price_as_of=m.offer.price_as_of,
        reclaimed=reclaimed,
        instance=m.instance,
    )


def _disk(state: JobState, v: VolumeState, now: float) -> LedgerLine:
    assert v.created_at is not None
    until = v.deleted_at if v.deleted_at is not None else max(now, v.created_at)
    scale = next((m.offer.billing.time_scale for m in state.instances.values() if m.slot == v.slot), 1.0)
    quantity = v.size_gib * (until - v.created_at) / 3600.0 * scale
    return LedgerLine(
        kind=LineKind.DISK,
        job=state.id,
        resource=str(v.volume),
        provider=v.provider,
        zone=v.zone,
        machine_type="",
        market=Market.ON_DEMAND,
        start=v.created_at,
        end=v.deleted_at,
        quantity=quantity,
        price_usd=v.price_usd_per_gib_h,
        cost_usd=quantity * v.price_usd_per_gib_h,
        price_source=v.provider,
        price_as_of=v.created_at,
    )


def account(state: JobState, now: float) -> Account:
    """The bill of a job up to ``now`` and what it bought."""
    bill = lines(state, now)
    cost = sum(line.cost_usd for line in bill)
    billed = sum(_life_s(m, now) for m in state.instances.values())
    useful, list_price, overhead, lost_steps = _useful(state, now)
    overhead = {**overhead, **_before_work(state, now)}
    known = useful + sum(overhead.values())
    overhead[Overhead.IDLE.value] = max(billed - known, 0.0)
    saved = list_price - cost
    return Account(
        lines=bill,
        cost_usd=cost,
        on_demand_cost_usd=list_price,
        saved_usd=saved,
        saved_fraction=saved / list_price if list_price > 0 else 0.0,
        billed_instance_s=billed,
        useful_instance_s=useful,
        lost_steps=lost_steps,
        preemptions=sum(1 for m in state.instances.values() if _was_taken(m)),
        recoveries=max(sum(1 for a in state.attempts if a.spawned_at is not None) - 1, 0),
        attempts=state.attempt_no,
        overhead=overhead,
        disks_still_billing=tuple(
            v.name for v in state.volumes.values() if v.created_at is not None and v.deleted_at is None
        ),
    )


def _was_taken(m: InstanceState) -> bool:
    return m.end in (*_RECLAIMED, InstanceEnd.LOST) or (m.notice is not None and m.notice.value == "terminate")


def _life_s(m: InstanceState, now: float) -> float:
    if m.started_at is None:
        return 0.0
    return max((m.ended_at if m.ended_at is not None else now) - m.started_at, 0.0)


def _before_work(state: JobState, now: float) -> dict[str, float]:
    """Instance-seconds of booting and of set-up."""
    boot = setup = 0.0
    for m in state.instances.values():
        if m.started_at is None:
            continue
        end = m.ended_at if m.ended_at is not None else now
        boot += max(min(m.joined_at if m.joined_at is not None else end, end) - m.started_at, 0.0)
        if m.joined_at is not None:
            setup += max(min(m.ready_at if m.ready_at is not None else end, end) - m.joined_at, 0.0)
    return {Overhead.BOOT.value: boot, Overhead.SETUP.value: setup}


def _useful(state: JobState, now: float) -> tuple[float, float, dict[str, float], int]:
    """(useful instance-seconds, their list price in USD, overhead, lost steps) over all attempts."""
    useful = list_price = 0.0
    restore = save = lost_work = 0.0
    lost_steps = 0
    for index, attempt in enumerate(state.attempts):
        nodes = len(attempt.members)
        began = attempt.first_step_at
        if attempt.spawned_at is not None:
            restore += max((began or attempt.ended_at or now) - attempt.spawned_at, 0.0) * nodes
        last = attempt.last_step_at or (now if attempt.phase is not GangPhase.ENDED else None)
        if began is None or last is None:
            continue
        span_s = max(last - began - attempt.stall_s, 0.0)
        steps, gone = _steps_lost(attempt, state.attempts[index + 1 :])
        gone_s = span_s * min(gone / steps, 1.0) if steps else 0.0
        lost_steps += gone
        save += attempt.stall_s * nodes
        lost_work += gone_s * nodes
        useful += (span_s - gone_s) * nodes
        for token in attempt.members:
            offer = state.instances[token].offer
            list_price += (span_s - gone_s) / 3600.0 * offer.billing.time_scale * offer.on_demand_usd_per_h
    return (
        useful,
        list_price,
        {Overhead.RESTORE.value: restore, Overhead.SAVE.value: save, Overhead.LOST_WORK.value: lost_work},
        lost_steps,
    )


def _steps_lost(attempt: AttemptState, later: tuple[AttemptState, ...]) -> tuple[int, int]:
    """(steps the attempt did, steps of them that the next attempt that got going had to do again)."""
    steps = attempt.steps_done or max((attempt.step or 0) - _step_of(attempt.base), 0)
    heir = next((a for a in later if a.restored_at is not None), None)
    if heir is None or attempt.step is None:
        return max(steps, 0), 0
    if heir.base is None:
        return max(steps, 1), max(steps, attempt.step)
    # A base older than this attempt means that nothing of it was kept.
    gone = attempt.step - _step_of(heir.base) if heir.base.startswith(f"{attempt.no}:") else steps
    return max(steps, gone, 1), max(gone, 0)


def _step_of(base: str | None) -> int:
    return int(base.split(":")[1]) if base else 0
