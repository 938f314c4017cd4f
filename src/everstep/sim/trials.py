"""Trials: one job under the code that runs live, over recorded traces, for several policies and starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from everstep.brain.economics.ledger import account
from everstep.brain.select import SELECTORS, Selector
from everstep.control.kernel import Line
from everstep.market.availability import Series, read_folder, read_series, shared_clock
from everstep.model.errors import BadInput, Problem
from everstep.model.events import LaunchFailed
from everstep.model.gang import Gang, SlotGroup, ZoneRule
from everstep.model.ids import JobId
from everstep.model.job import InstanceState, JobPhase, JobState
from everstep.model.ledger import LineKind
from everstep.model.offers import MachineRequirement
from everstep.model.task import CheckpointSpec, Objective, SpotMode, Task, Work
from everstep.sim.accounts import bill
from everstep.sim.realistic import Entry, Played, World, play
from everstep.sim.reference.grid import simulate
from everstep.sim.reference.market import Job, Market, Zone
from everstep.sim.world.conditions import Conditions, Workload
from everstep.sim.world.supply import Fallback, Lot, lot_of

JOB = JobId("j-trial")
_EPOCH = 1_000_000_000.0
"""Where a trace does not say when it was recorded."""


@dataclass(frozen=True)
class Trial:
    """What is tried: one job on the zones of some traces.

    Attributes:
        series: zones on one clock.
        task_h, deadline_h: work at speed 1 and time allowed, hours; ``deadline_h`` None = no deadline.
        gang: machines. zones: where they may lie relative to each other.
        every_s: seconds between saves; None = by hazard and cost.
        work: its ``steps`` and ``step_s`` are made from ``task_h``.
        tariff: USD per GB from region to region.
    """

    series: tuple[Series, ...]
    task_h: float
    deadline_h: float | None = None
    gang: int = 1
    zones: ZoneRule = ZoneRule.SAME_ZONE
    spot: SpotMode = SpotMode.AUTO
    budget_usd: float | None = None
    every_s: float | None = None
    work: Workload = field(default_factory=lambda: Workload(steps=1))
    conditions: Conditions = field(default_factory=Conditions)
    fallback: Fallback = field(default_factory=Fallback)
    tariff: Callable[[str, str], float] = field(default_factory=lambda: TransferPrices({}, 0.0))

    @property
    def ticks(self) -> int:
        """Ticks that all zones have."""
        return min(one.ticks for one in self.series)

    @property
    def gap_s(self) -> float:
        """Seconds per tick."""
        return self.series[0].gap_s

    def last_start(self) -> int:
        """The last tick at which the job may begin so that its deadline lies within the traces."""
        needed_h = self.task_h if self.deadline_h is None else self.deadline_h
        return self.ticks - int(-(-needed_h * 3600.0 // self.gap_s))

    def task(self, policy: str) -> Task:
        """The job as a task."""
        group = SlotGroup("worker", MachineRequirement(), self.gang, zones=self.zones)
        return Task(
            name="trial",
            run="train",
            gang=Gang((group,)),
            spot=self.spot,
            policy=policy,
            checkpoint=CheckpointSpec(every_s=self.every_s),
            work=Work(steps=self.workload().steps, hours=self.task_h),
            objective=Objective(
                deadline_s=None if self.deadline_h is None else self.deadline_h * 3600.0, budget_usd=self.budget_usd
            ),
        )

    def workload(self) -> Workload:
        """The work with its steps: as many of ``step_s`` as take ``task_h`` hours."""
        return replace(self.work, steps=max(round(self.task_h * 3600.0 / self.work.step_s), 1))

    def lots(self, begins_at: float, start_tick: int) -> tuple[Lot, ...]:
        """What the zones sell, with ``start_tick`` in force at ``begins_at``."""
        return tuple(
            lot_of(one, begins_at=begins_at, start_tick=start_tick, fallback=self.fallback) for one in self.series
        )


@dataclass(frozen=True, slots=True)
class Spell:
    """A machine's life, hours since the job came in. ``end``: why it ended, empty if it did not."""

    start_h: float
    end_h: float
    slot: str
    zone: str
    market: str
    end: str


@dataclass(frozen=True, slots=True)
class Result:
    """What one policy made of one start.

    Attributes:
        cost_usd: the whole bill, from the journal; meter_usd: what the vendor charged.
        finish_h: hours from submission to the end; None = it did not finish within the traces.
        overhead_h: machine-hours by cause; useful_h: those in which steps ran that count.
        moves: launches in another zone than the machine before.
    """

    policy: str
    start_tick: int
    seed: int
    cost_usd: float
    meter_usd: float
    egress_usd: float
    finish_h: float | None
    deadline_met: bool
    phase: str
    why: str
    preemptions: int
    recoveries: int
    launches: int
    refused: int
    moves: int
    lost_steps: int
    useful_h: float
    overhead_h: dict[str, float]
    spells: tuple[Spell, ...]


def read(path: Path) -> tuple[Series, ...]:
    """The zones of a trace or of a folder of traces; raises Malformed, BadInput for two of the same zone and type."""
    series = read_folder(path) if path.is_dir() else (read_series(path),)
    shared_clock(series)
    seen: dict[tuple[str, str], str] = {}
    for one in series:
        first = seen.setdefault((one.zone, one.machine_type), one.file)
        if first != one.file:
            text = f"the same zone and machine type as {first}"
            raise BadInput(Problem(one.file, "metadata.zone", text, "give each trace its own"))
    return series


def selector_names() -> list[str]:
    """Policies that can run live, in the order of ``SELECTORS``."""
    return list(SELECTORS)


def run(
    trial: Trial,
    policy: str,
    *,
    start_tick: int = 0,
    seed: int = 0,
    selectors: Mapping[str, Selector] | None = None,
) -> tuple[Result, Played]:
    """One run of the trial, from its first tick ``start_tick`` to the end of the traces at the latest."""
    begins_at = (trial.series[0].start or _EPOCH) + start_tick * trial.gap_s
    until = begins_at + (trial.ticks - start_tick) * trial.gap_s
    world = World(trial.lots(begins_at, start_tick), begins_at, until, trial.conditions, seed=seed, tariff=trial.tariff)
    played = play(world, [Entry(JOB, trial.task(policy), trial.workload(), begins_at)], selectors=selectors)
    return result_of(played, JOB, policy, tariff=trial.tariff, start_tick=start_tick, seed=seed), played


@dataclass(frozen=True, slots=True)
class TransferPrices:
    """USD per GB from region to region; ``otherwise`` where the table has no price."""

    table: Mapping[tuple[str, str], float]
    otherwise: float

    def __call__(self, source: str, target: str) -> float:
        """The price; nothing within a region."""
        return 0.0 if source == target else self.table.get((source, target), self.otherwise)


def several(trial: Trial, runs: Sequence[tuple[str, int]], *, seed: int = 0, workers: int = 1) -> Iterator[Result]:
    """Runs of (policy, start), in order: at one start all policies have the same weather.

    Args:
        trial: must be picklable for more than one worker.
        runs: policy and first tick of each.
        seed: together with the start it makes the weather.
        workers: processes.
    """
    if workers <= 1 or len(runs) <= 1:
        yield from (_one(trial, policy, tick, seed) for policy, tick in runs)
        return
    with ProcessPoolExecutor(min(workers, len(runs))) as pool:
        yield from pool.map(partial(_pair, trial, seed), runs)


def _pair(trial: Trial, seed: int, run: tuple[str, int]) -> Result:
    return _one(trial, *run, seed)


def _one(trial: Trial, policy: str, tick: int, seed: int) -> Result:
    return run(trial, policy, start_tick=tick, seed=seed + tick)[0]


@dataclass(frozen=True, slots=True)
class Marks:
    """What costs are held against: means over the starts, USD. ``text`` says how they were reckoned."""

    on_demand_usd: float
    optimal_usd: float
    text: str


def marks(trial: Trial, starts: Sequence[int], steady: Mapping[int, float], *, seed: int = 0) -> Marks:
    """On-demand in the same world, and the clairvoyant optimum.

    Args:
        trial: the job.
        starts: ticks.
        steady: cost on demand by start, where it is known already.
        seed: as of the runs.
    """
    known = [
        steady[tick] if tick in steady else run(trial, "on_demand", start_tick=tick, seed=seed + tick)[0].cost_usd
        for tick in starts
    ]
    market, start_s = _reference(trial), _start_s(trial)
    best = []
    for tick in starts:
        left_s = (trial.ticks - tick) * trial.gap_s
        deadline_s = left_s if trial.deadline_h is None else trial.deadline_h * 3600.0
        job = Job(trial.task_h * 3600.0, deadline_s, start_s, start_tick=tick)
        best.append(simulate(market, job, "optimal").cost_usd * trial.gang)
    text = (
        "Dashed: the same job on demand, in the same world; and the clairvoyant optimum of the reference semantics "
        f"(whole ticks, {start_s:.0f} s for each start, no saves), which no policy can know."
    )
    return Marks(sum(known) / len(known), sum(best) / len(best), text)


def _start_s(trial: Trial) -> float:
    """From a launch to the first step, in whole ticks: the exact optimum is 200 times as fast with those."""
    c, w = trial.conditions, trial.work
    return round((c.answer_s + c.boot_s + w.setup_s + w.start_s + w.restore_s) / trial.gap_s) * trial.gap_s


def _reference(trial: Trial) -> Market:
    """The same zones in the reference semantics."""
    prices = trial.fallback

    def zone(one: Series) -> Zone:
        steady = prices.on_demand_usd_per_h if one.on_demand_usd_per_h is None else one.on_demand_usd_per_h
        flat = prices.spot_usd_per_h if one.spot_usd_per_h is None else one.spot_usd_per_h
        spot = min(flat, steady) if one.prices is None else np.minimum(one.prices, steady)
        return Zone(one.zone, one.region, one.up(trial.gang), spot, steady)

    return Market(
        [zone(one) for one in trial.series],
        trial.gap_s,
        transfer=trial.tariff,
        checkpoint_gb=trial.work.checkpoint_gb / trial.gang,
    )


def result_of(
    played: Played,
    job: JobId,
    policy: str,
    *,
    tariff: Callable[[str, str], float],
    start_tick: int = 0,
    seed: int = 0,
) -> Result:
    """What became of one job, from its journal."""
    state = played.states[job]
    lines = bill(state, played.ended_at, tariff)
    found = account(state, played.ended_at)
    done = state.phase is JobPhase.SUCCEEDED and state.ended_at is not None
    finish_s = _worked_until(state) - state.submitted_at if done else None
    deadline_s = state.task.objective.deadline_s
    return Result(
        policy=policy,
        start_tick=start_tick,
        seed=seed,
        cost_usd=sum(line.cost_usd for line in lines),
        meter_usd=sum(c["cost_usd"] for c in _charges(played, job)),
        egress_usd=sum(line.cost_usd for line in lines if line.kind is LineKind.EGRESS),
        finish_h=None if finish_s is None else finish_s / 3600.0,
        deadline_met=finish_s is not None and (deadline_s is None or finish_s <= deadline_s),
        phase=state.phase.value,
        why=state.why or state.wait,
        preemptions=found.preemptions,
        recoveries=found.recoveries,
        launches=state.launches,
        refused=_refused(played.journal, job),
        moves=_moves(state),
        lost_steps=found.lost_steps,
        useful_h=found.useful_instance_s / 3600.0,
        overhead_h={cause: seconds / 3600.0 for cause, seconds in found.overhead.items()},
        spells=_spells(state, played.ended_at),
    )


def _worked_until(state: JobState) -> float:
    """When the work was done; machines are given back a moment later."""
    attempt = state.attempt
    return state.ended_at or 0.0 if attempt is None or attempt.ended_at is None else attempt.ended_at


def _charges(played: Played, job: JobId) -> list[dict[str, float]]:
    deployment = next((m.request.deployment for m in played.cloud.machines.values()), None)
    return [] if deployment is None else [c for c in played.cloud.charges(deployment) if c["job"] == job]


def _refused(journal: Sequence[Line], job: JobId) -> int:
    return sum(1 for line in journal if line.job == job and isinstance(line.event, LaunchFailed))


def _leased(state: JobState) -> list[InstanceState]:
    return sorted((m for m in state.instances.values() if m.started_at is not None), key=lambda m: m.launch_no)


def _moves(state: JobState) -> int:
    zones: dict[str, str] = {}
    moves = 0
    for m in _leased(state):
        moves += zones.get(str(m.slot), m.offer.zone) != m.offer.zone
        zones[str(m.slot)] = m.offer.zone
    return moves


def _spells(state: JobState, now: float) -> tuple[Spell, ...]:
    def hours(at: float) -> float:
        return (at - state.submitted_at) / 3600.0

    return tuple(
        Spell(
            start_h=hours(m.started_at or 0.0),
            end_h=hours(now if m.ended_at is None else m.ended_at),
            slot=str(m.slot),
            zone=m.offer.zone,
            market=m.offer.market.value,
            end="" if m.end is None else m.end.value,
        )
        for m in _leased(state)
    )
