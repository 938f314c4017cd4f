"""Another policy on the capacity that a journal saw: the same jobs at the same times, under the decisions of today."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from everstep.brain.economics.ledger import account
from everstep.brain.guard import deadline_at
from everstep.model.gang import Gang, SlotGroup
from everstep.model.ids import JobId
from everstep.model.job import AttemptState, InstanceState, JobPhase, JobState
from everstep.model.offers import BillingRule
from everstep.sim.accounts import bill
from everstep.sim.past.journals import fold, read_journal
from everstep.sim.past.sightings import FILLED, Rebuilt, rebuild, watched
from everstep.sim.realistic import Entry, World, play
from everstep.sim.trials import Result, result_of
from everstep.sim.world.conditions import Conditions, Workload

RECORDED = "(recorded)"
MERGED = "clouds"
Tariff = Callable[[str, str], float]


@dataclass(frozen=True)
class Past:
    """A journal, made ready for replays.

    Attributes:
        states: jobs that can be replayed: those that succeeded.
        left_out: jobs that cannot, with the reason.
        market: what was seen. conditions: delays as they were measured.
    """

    states: Mapping[JobId, JobState]
    left_out: Mapping[JobId, str]
    market: Rebuilt
    conditions: Conditions
    begins_at: float
    until: float
    shared: bool
    provider: str

    @property
    def scale(self) -> float:
        """Market seconds per second of the clock."""
        return self.conditions.billing.time_scale


@dataclass(frozen=True, slots=True)
class Comparison:
    """All jobs under one policy.

    Attributes:
        mean_finish_h: from submission to the end, market hours; None = nobody finished.
        stuck: why the first one that did not finish did not.
        results: by job; hours of the clock.
    """

    policy: str
    cost_usd: float
    mean_finish_h: float | None
    unfinished: int
    missed: int
    preemptions: int
    results: Mapping[JobId, Result]
    stuck: str = ""


def read_past(path: Path) -> Past:
    """Reads a journal. Raises BadInput."""
    lines, sights = read_journal(path)
    states = fold(lines, str(path))
    begins_at, until = lines[0].at, lines[-1].at
    kept = {job: s for job, s in states.items() if s.phase is JobPhase.SUCCEEDED and _useful_s(s, until) > 0}
    left_out = {job: _why_left_out(s) for job, s in states.items() if job not in kept}
    enough = max(sum(s.task.gang.size for s in kept.values()), 1)
    pools = watched(lines, until, sights)
    names = {pool.provider for pool in pools}
    return Past(
        states=kept,
        left_out=left_out,
        market=rebuild(pools, begins_at, until, enough=enough),
        conditions=_conditions(states.values()),
        begins_at=begins_at,
        until=until,
        shared=any(m.shared_folder for s in states.values() for m in s.instances.values()),
        # Several providers become one cloud; then tasks that name one are not held to it.
        provider=names.pop() if len(names) == 1 else MERGED,
    )


def _why_left_out(state: JobState) -> str:
    return f"it {state.phase.value}" if state.phase.ended else f"it was still {state.phase.value}"


def recorded(past: Past, tariff: Tariff) -> Comparison:
    """What really happened to the jobs."""
    found = {}
    for job, state in past.states.items():
        lines = bill(state, past.until, tariff)
        ledger = account(state, past.until)
        finish_s = _finished_at(state) - state.submitted_at
        due = deadline_at(state)
        found[job] = Result(
            policy=state.task.policy or RECORDED,
            start_tick=0,
            seed=0,
            cost_usd=sum(line.cost_usd for line in lines),
            meter_usd=0.0,
            egress_usd=sum(line.cost_usd for line in lines if line.kind.value == "egress"),
            finish_h=finish_s / 3600.0,
            deadline_met=due is None or state.submitted_at + finish_s <= due,
            phase=state.phase.value,
            why="",
            preemptions=ledger.preemptions,
            recoveries=ledger.recoveries,
            launches=state.launches,
            refused=0,
            moves=0,
            lost_steps=ledger.lost_steps,
            useful_h=ledger.useful_instance_s / 3600.0,
            overhead_h={cause: seconds / 3600.0 for cause, seconds in ledger.overhead.items()},
            spells=(),
        )
    return _compared(RECORDED, found, past)


def replay(past: Past, policy: str, tariff: Tariff, *, seed: int = 0) -> Comparison:
    """The jobs under ``policy``; an empty name keeps each job's own."""
    span_s = past.until - past.begins_at
    world = World(
        lots=past.market.lots,
        begins_at=past.begins_at,
        until=past.until + span_s,
        conditions=past.conditions,
        seed=seed,
        tariff=tariff,
        shared="/shared" if past.shared else None,
        provider=past.provider,
    )
    entries = [_entry(state, policy, merged=past.provider == MERGED) for state in past.states.values()]
    played = play(world, entries)
    results = {
        entry.job: result_of(played, entry.job, entry.task.policy or policy, tariff=tariff, seed=seed)
        for entry in entries
    }
    return _compared(policy or "(each its own)", results, past)


def _entry(state: JobState, policy: str, *, merged: bool) -> Entry:
    work = _work(state)
    hours = work.steps * work.step_s / 3600.0
    task = replace(state.task, policy=policy or state.task.policy)
    # Steps of the replay are seconds: what was measured is how long the useful work took.
    task = replace(task, work=replace(task.work, steps=work.steps, hours=hours, on=""), outputs=())
    if merged:
        task = replace(task, gang=Gang(tuple(_anywhere(group) for group in task.gang.groups)))
    return Entry(state.id, task, work, state.submitted_at)


def _anywhere(group: SlotGroup) -> SlotGroup:
    """Regions and zones stay, providers go."""
    places = tuple(("", region, zone) for _, region, zone in group.machine.places)
    return replace(group, machine=replace(group.machine, places=places))


def _compared(policy: str, results: Mapping[JobId, Result], past: Past) -> Comparison:
    finished = [r.finish_h * past.scale for r in results.values() if r.finish_h is not None]
    stuck = next((f"{job} under {policy}: {r.why}" for job, r in results.items() if r.finish_h is None), "")
    return Comparison(
        policy=policy,
        cost_usd=sum(r.cost_usd for r in results.values()),
        mean_finish_h=statistics.fmean(finished) if finished else None,
        unfinished=len(results) - len(finished),
        missed=sum(not r.deadline_met for r in results.values()),
        preemptions=sum(r.preemptions for r in results.values()),
        results=results,
        stuck=stuck,
    )


# --- What was measured ------------------------------------------------------------------------------------------------


def _useful_s(state: JobState, until: float) -> float:
    """Seconds of the clock in which the gang did work that counts."""
    return account(state, until).useful_instance_s / state.task.gang.size


def _finished_at(state: JobState) -> float:
    last = state.attempt
    return last.ended_at if last is not None and last.ended_at is not None else state.ended_at or state.since


def _median(values: Iterable[float], otherwise: float) -> float:
    found = [value for value in values if value >= 0]
    return statistics.median(found) if found else otherwise


def _conditions(states: Iterable[JobState]) -> Conditions:
    """Delays as the journal shows them; where it shows none, the usual ones."""
    usual = Conditions()
    machines = [m for s in states for m in s.instances.values() if m.started_at is not None]
    boots = (m.joined_at - m.started_at for m in machines if m.joined_at is not None and m.started_at is not None)
    warned = [m for m in machines if m.notice_deadline is not None and m.notice_at is not None]
    taken = [m for m in machines if m.end is not None and m.end.value == "preempted"]
    return replace(
        usual,
        boot_s=_median(boots, usual.boot_s),
        boot_spread=0.0,
        notice_s=_median((_notice_s(m) for m in warned), usual.notice_s),
        notice_chance=sum(m in warned for m in taken) / len(taken) if taken else 1.0,
        billing=machines[0].offer.billing if machines else BillingRule(),
        told=any(m.offer.available is not None for m in machines),
    )


def _notice_s(m: InstanceState) -> float:
    assert m.notice_deadline is not None
    assert m.notice_at is not None
    return m.notice_deadline - m.notice_at


def _usual(state: JobState) -> Workload:
    """Where nothing was measured: the usual delays, on the clock of the machines."""
    scale = max((m.offer.billing.time_scale for m in state.instances.values()), default=1.0)
    usual = Workload(steps=1)
    names = ("setup_s", "start_s", "restore_s", "save_s", "stall_s", "crash_s")
    return replace(usual, **{name: getattr(usual, name) / scale for name in names})


def _work(state: JobState) -> Workload:
    usual = _usual(state)
    attempts: Sequence[AttemptState] = state.attempts
    machines = state.instances.values()
    saves = [save for a in attempts for save in a.saves]
    spawned = (a.spawned_at - a.begun_at for a in attempts if a.spawned_at is not None)
    restores = (a.restore_s for a in attempts if a.restored_at is not None and a.base is not None)
    useful_s = _useful_s(state, state.ended_at or state.since)
    return replace(
        usual,
        steps=max(round(useful_s), 1),
        setup_s=_median((m.setup_s for m in machines if m.ready_at is not None), usual.setup_s),
        start_s=_median(spawned, usual.start_s),
        restore_s=_median(restores, usual.restore_s),
        save_s=_median((save.save_s for save in saves), usual.save_s),
        stall_s=_median((save.stall_s for save in saves), usual.stall_s),
        checkpoint_gb=_median((save.bytes / 1e9 for save in saves), 0.0),
    )


__all__ = ["FILLED", "RECORDED", "Comparison", "Past", "read_past", "recorded", "replay"]
