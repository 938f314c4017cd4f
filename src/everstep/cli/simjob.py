"""One simulated job, told decision by decision: what ``everstep sim job`` prints."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from everstep.brain.select.course import Course, Situation
from everstep.cli import failures
from everstep.cli.output import Column, field
from everstep.model.units import format_duration, format_money
from everstep.sim.reference import entrants
from everstep.sim.reference import grid as grids
from everstep.sim.reference.drive import Outcome
from everstep.sim.reference.market import Job
from everstep.sim.reference.rows import Task, window

_COMMAND = "everstep sim job"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the command line asks for. ``hours``: work, deadline, changeover; ``prices``: spot, on-demand in USD/h."""

    trace: Path
    hours: tuple[float, float, float]
    policy: str
    gang: int
    start_tick: int
    checkpoint_gb: float
    seed: int
    prices: tuple[float, float]
    egress: Mapping[tuple[str, str], float]


@dataclass(frozen=True, slots=True)
class Weighed:
    """One alternative; ``expected_usd`` is None where it was not to be had."""

    mode: str
    place: str | None
    expected_usd: float | None


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision, after the safety net."""

    at_h: float
    mode: str
    place: str | None
    reason: str
    done_h: float
    alternatives: tuple[Weighed, ...]
    basis: str


@dataclass(frozen=True, slots=True)
class Told:
    """The run, with every decision."""

    policy: str
    cost_usd: float
    on_demand_usd: float
    optimal_usd: float
    finish_h: float | None
    deadline_met: bool
    spot_exits: int
    moves: int
    egress_usd: float
    decisions: tuple[Decision, ...]
    trace: str = ""


COLUMNS = (
    Column("AFTER", lambda d: format_duration(d.at_h * 3600)),
    Column("DONE", lambda d: format_duration(d.done_h * 3600)),
    Column("RUN ON", field("mode")),
    Column("WHERE", field("place")),
    Column("EXPECTED $", lambda d: _expected(d, chosen=True), right=True),
    Column("BEST OTHER", lambda d: _expected(d, chosen=False)),
    Column("WHY", field("reason")),
)


def run(wanted: Wanted) -> Told:
    """Simulates the job. Raises BadInput where what was asked for cannot be simulated."""
    folder, many = wanted.trace.parent, wanted.trace.is_dir()
    task = _task(wanted)
    batch = grids.Batch(folder, (task,), wanted.prices, wanted.egress if many else None)
    market = grids.market_of(task, batch)
    window(task, market.ticks, market.tick_s, str(wanted.trace))
    decisions: list[Decision] = []

    def watch(tick: int, situation: Situation, course: Course) -> None:
        decisions.append(_decision(situation, course))

    outcome = grids.simulate(market, task.job, task.policy, watcher=watch)
    steady, best = (grids.simulate(market, task.job, name) for name in ("on_demand", "optimal"))
    told = _told(task.policy, outcome, (steady.cost_usd, best.cost_usd), decisions)
    return replace(told, trace=str(wanted.trace))


def _task(wanted: Wanted) -> Task:
    task_h, deadline_h, changeover_h = wanted.hours
    for option, value, least in (("--task-h", task_h, 1e-9), ("--changeover-h", changeover_h, 0.0)):
        if not (math.isfinite(value) and value >= least):
            raise failures.usage(_COMMAND, option, f"expected hours, {'above' if least else 'at least'} 0")
    if not (math.isfinite(deadline_h) and deadline_h >= task_h):
        raise failures.usage(_COMMAND, "--deadline-h", f"shorter than the work of {task_h:g} h")
    if changeover_h > deadline_h:
        raise failures.usage(_COMMAND, "--changeover-h", f"longer than the deadline of {deadline_h:g} h")
    try:
        policy = entrants.named(wanted.policy)
    except KeyError:
        text = f"there is no policy {wanted.policy!r}"
        raise failures.usage(_COMMAND, "--policy", text, f"known: {', '.join(entrants.names())}") from None
    job = Job(task_h * 3600, deadline_h * 3600, changeover_h * 3600, start_tick=wanted.start_tick, seed=wanted.seed)
    return Task(0, _COMMAND, wanted.trace.name, wanted.gang, job, policy, wanted.checkpoint_gb)


def _decision(situation: Situation, course: Course) -> Decision:
    weighed = tuple(
        Weighed(a.mode.value, a.place, a.expected_usd if math.isfinite(a.expected_usd) else None)
        for a in course.alternatives
    )
    return Decision(
        at_h=(situation.now_s - situation.began_s) / 3600.0,
        mode=course.mode.value,
        place=course.place,
        reason=course.reason,
        done_h=situation.done_s / 3600.0,
        alternatives=weighed,
        basis=course.basis,
    )


def _told(policy: str, outcome: Outcome, marks: tuple[float, float], decisions: list[Decision]) -> Told:
    return Told(
        policy=policy,
        cost_usd=round(outcome.cost_usd, 4),
        on_demand_usd=round(marks[0], 4),
        optimal_usd=round(marks[1], 4),
        finish_h=None if outcome.finish_s is None else outcome.finish_s / 3600.0,
        deadline_met=outcome.deadline_met,
        spot_exits=outcome.spot_exits,
        moves=outcome.moves,
        egress_usd=round(outcome.egress_usd, 4),
        decisions=tuple(decisions),
    )


def changes(told: Told) -> list[Decision]:
    """The decisions after which something else ran than before them, or ran elsewhere."""
    action = [(decision.mode, decision.place) for decision in told.decisions]
    return [decision for n, decision in enumerate(told.decisions) if n == 0 or action[n] != action[n - 1]]


def summary(told: Told) -> list[tuple[str, str]]:
    """Name and value lines below the table."""
    ended = "never: the trace ended first" if told.finish_h is None else format_duration(told.finish_h * 3600)
    return [
        ("policy", told.policy),
        ("cost", format_money(told.cost_usd)),
        ("on-demand", format_money(told.on_demand_usd)),
        ("optimum", format_money(told.optimal_usd)),
        ("finished", f"{ended}, deadline {'met' if told.deadline_met else 'missed'}"),
        ("spot exits", str(told.spot_exits)),
        ("moves", f"{told.moves}, transfer {format_money(told.egress_usd)}" if told.moves else ""),
        ("decisions", str(len(told.decisions))),
        ("expected $", told.decisions[0].basis if told.decisions else ""),
    ]


def _expected(decision: Decision, *, chosen: bool) -> str:
    action = decision.mode, decision.place
    known = [w for w in decision.alternatives if w.expected_usd is not None]
    fitting = [w for w in known if ((w.mode, w.place) == action) is chosen]
    if not fitting:
        return ""
    best = min(fitting, key=lambda w: w.expected_usd or 0.0)
    price = f"{best.expected_usd or 0.0:.2f}"
    return price if chosen else f"{best.mode} {best.place or ''}".strip() + f" {price}"
