"""The bill of a job: typed lines from the journal, and what the money bought (rule 12)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from everstep.model.causes import Cause, InstanceEnd
from everstep.model.ids import LaunchToken
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
        recoveries: attempts whose ranks took up the work again after a loss; not those after a pause, a move, or
            another wish of the owner.
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
    return (
        *(_compute(state, m, now) for m in machines),
        *(_boot_disk(state, m, now) for m in machines if m.offer.boot_disk_usd_per_h),
        *(_disk(state, v, now) for v in disks),
    )


def cost_usd(state: JobState, now: float) -> float:
    """What the job has cost up to ``now``, USD."""
    return sum(line.cost_usd for line in lines(state, now))


def price_usd_per_s(state: JobState) -> float:
    """What a second of the clock costs at present, USD: every machine and disk that is still there."""
    machines = (
        (m.price_usd_per_h + m.offer.boot_disk_usd_per_h) * m.offer.billing.time_scale
        for m in state.instances.values()
        if m.alive and m.started_at is not None
    )
    disks = (
        v.size_gib * v.price_usd_per_gib_h * _disk_scale(state, v)
        for v in state.volumes.values()
        if v.created_at is not None and v.deleted_at is None
    )
    return (sum(machines) + sum(disks)) / 3600.0


def _disk_scale(state: JobState, v: VolumeState) -> float:
    """Market seconds per second of the clock where the disk is: as on the machines of its provider."""
    return next((m.offer.billing.time_scale for m in state.instances.values() if m.offer.provider == v.provider), 1.0)


def _disk_minimum_s(state: JobState, v: VolumeState) -> float:
    return next((m.offer.disk_minimum_s for m in state.instances.values() if m.offer.provider == v.provider), 0.0)


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


def _boot_disk(state: JobState, m: InstanceState, now: float) -> LedgerLine:
    """The disk that came with a machine and went with it."""
    assert m.started_at is not None
    until = m.ended_at if m.ended_at is not None else max(now, m.started_at)
    market_s = (until - m.started_at) * m.offer.billing.time_scale
    hours = max(market_s, m.offer.disk_minimum_s) / 3600.0
    return LedgerLine(
        kind=LineKind.DISK,
        job=state.id,
        resource=f"{m.instance}/boot",
        provider=m.offer.provider,
        zone=m.offer.zone,
        machine_type="",
        market=Market.ON_DEMAND,
        start=m.started_at,
        end=m.ended_at,
        quantity=hours,
        price_usd=m.offer.boot_disk_usd_per_h,
        cost_usd=hours * m.offer.boot_disk_usd_per_h,
        price_source=m.offer.provider,
        price_as_of=m.offer.price_as_of,
        instance=m.instance,
    )


def _disk(state: JobState, v: VolumeState, now: float) -> LedgerLine:
    assert v.created_at is not None
    until = v.deleted_at if v.deleted_at is not None else max(now, v.created_at)
    market_s = max(max(until - v.created_at, 0.0) * _disk_scale(state, v), _disk_minimum_s(state, v))
    quantity = v.size_gib * market_s / 3600.0
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
    shares = [_Share(_life(m, now)) for m in state.instances.values()]
    by_token = dict(zip(state.instances, shares, strict=True))
    _before_work(state, by_token)
    lost_steps = _work(state, by_token, now)
    _kept(state, shares, now)
    list_price = sum(
        share.useful_s / 3600.0 * m.offer.billing.time_scale * m.offer.on_demand_usd_per_h
        for share, m in zip(shares, state.instances.values(), strict=True)
    )
    overhead = {o.value: sum(share.overhead.get(o, 0.0) for share in shares) for o in Overhead}
    overhead[Overhead.IDLE.value] = sum(share.left_s for share in shares)
    saved = list_price - cost
    return Account(
        lines=bill,
        cost_usd=cost,
        on_demand_cost_usd=list_price,
        saved_usd=saved,
        saved_fraction=saved / list_price if list_price > 0 else 0.0,
        billed_instance_s=sum(share.life[1] - share.life[0] for share in shares),
        useful_instance_s=sum(share.useful_s for share in shares),
        lost_steps=lost_steps,
        preemptions=sum(1 for m in state.instances.values() if _was_taken(m)),
        recoveries=_recoveries(state.attempts),
        attempts=len(state.attempts),
        overhead=overhead,
        disks_still_billing=tuple(
            v.name for v in state.volumes.values() if v.created_at is not None and v.deleted_at is None
        ),
    )


@dataclass(slots=True)
class _Share:
    """The billed life of one machine, handed out to its uses; what nobody claims is idle.

    The clocks of provider, server and ranks differ a little: a use is cut to the machine's life and to what is left of
    it, so that the parts always add up to the whole.
    """

    life: tuple[float, float]
    useful_s: float = 0.0
    overhead: dict[Overhead, float] = field(default_factory=dict)

    @property
    def left_s(self) -> float:
        """Seconds that no use has claimed."""
        return max(self.life[1] - self.life[0] - self.useful_s - sum(self.overhead.values()), 0.0)

    def within(self, start: float, end: float) -> float:
        """Seconds of an interval that lie in the machine's life and are still unclaimed."""
        return min(max(min(end, self.life[1]) - max(start, self.life[0]), 0.0), self.left_s)

    def spend(self, use: Overhead, seconds: float) -> None:
        """Claims seconds for a use."""
        self.overhead[use] = self.overhead.get(use, 0.0) + min(seconds, self.left_s)


def _recoveries(attempts: Iterable[AttemptState]) -> int:
    count, worked, lost = 0, False, False
    for attempt in attempts:
        if attempt.spawned_at is not None:
            count += worked and lost
            worked, lost = True, False
        lost = lost or _ended_by_loss(attempt)
    return count


def _ended_by_loss(attempt: AttemptState) -> bool:
    """Of a machine or a rank. Until the cause is settled: whether anything failed; the next attempt begins at once."""
    if attempt.cause is Cause.UNKNOWN:
        return attempt.failed
    return attempt.cause not in (Cause.SUCCESS, Cause.OWNER)


def _was_taken(m: InstanceState) -> bool:
    return m.end in (*_RECLAIMED, InstanceEnd.LOST) or (m.notice is not None and m.notice.value == "terminate")


def _life(m: InstanceState, now: float) -> tuple[float, float]:
    if m.started_at is None:
        return 0.0, 0.0
    return m.started_at, max(m.ended_at if m.ended_at is not None else now, m.started_at)


def _before_work(state: JobState, shares: Mapping[LaunchToken, _Share]) -> None:
    """Boot and set-up; a machine that never got that far booted, or prepared, all its life."""
    for token, share in shares.items():
        m = state.instances[token]
        joined = share.life[1] if m.joined_at is None else m.joined_at
        share.spend(Overhead.BOOT, share.within(share.life[0], joined))
        ready = share.life[1] if m.ready_at is None else m.ready_at
        share.spend(Overhead.SETUP, share.within(joined, ready))


def _work(state: JobState, shares: Mapping[LaunchToken, _Share], now: float) -> int:
    """Restore, save, useful and lost work of all attempts; returns the steps lost."""
    lost_steps = 0
    for index, attempt in enumerate(state.attempts):
        over = attempt.ended_at if attempt.ended_at is not None else now
        blind = attempt.first_step_at is None and attempt.step is None and _counts_unseen(attempt)
        # A script that tells no steps: its ranks count as working from their start to their end.
        began = attempt.spawned_at if blind else attempt.first_step_at
        steps, gone = _steps_lost(attempt, state.attempts[index + 1 :])
        lost_steps += gone
        ratio = min(gone / steps, 1.0) if steps else 0.0
        for token in attempt.members:
            share = shares[token]
            if attempt.spawned_at is not None:
                restored = began if began is not None else over
                share.spend(Overhead.RESTORE, share.within(attempt.spawned_at, restored))
            last = over if blind else attempt.last_step_at or (now if attempt.phase is not GangPhase.ENDED else None)
            if began is None or last is None:
                continue
            span_s = share.within(began, last)
            saving_s = min(attempt.stall_s, span_s)
            lost_s = (span_s - saving_s) * ratio
            share.spend(Overhead.SAVE, saving_s)
            share.spend(Overhead.LOST_WORK, lost_s)
            share.useful_s += span_s - saving_s - lost_s
    return lost_steps


def _counts_unseen(attempt: AttemptState) -> bool:
    """Whether work whose steps nobody saw is taken to count: the attempt got through, goes on, or saved something."""
    return attempt.cause is Cause.SUCCESS or attempt.phase is not GangPhase.ENDED or attempt.progressed


def _kept(state: JobState, shares: Iterable[_Share], now: float) -> None:
    if state.kept_from is None:
        return
    for share in shares:
        share.spend(Overhead.KEPT, share.within(state.kept_from, now if state.kept_to is None else state.kept_to))


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
