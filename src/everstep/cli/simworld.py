"""``everstep sim world``: one job under the code that runs live, over recorded traces, for several policies."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from everstep.cli import failures
from everstep.cli.output import Column, Output, OutputOption, document, field, table
from everstep.cli.registry import nearest

if TYPE_CHECKING:
    from everstep.sim.realistic import Played
    from everstep.sim.trials import Result, Trial

_COMMAND = "everstep sim world"
MODE = "realistic: boot, notice, saves, launch failures, under the decisions that run live"
_COLUMNS = (
    Column("POLICY", field("policy")),
    Column("STARTS", field("starts"), right=True),
    Column("MEAN $", lambda f: f"{f.cost_usd:.2f}", right=True),
    Column("FINISH H", lambda f: "" if f.finish_h is None else f"{f.finish_h:.2f}", right=True),
    Column("MISSED", field("missed"), right=True),
    Column("LOSSES", lambda f: f"{f.preemptions:.1f}", right=True),
    Column("MOVES", lambda f: f"{f.moves:.1f}", right=True),
    Column("EGRESS $", lambda f: f"{f.egress_usd:.2f}", right=True),
    Column("USEFUL H", lambda f: f"{f.useful_h:.2f}", right=True),
    Column("OVERHEAD H", lambda f: ", ".join(f"{k} {v:.2f}" for k, v in f.overhead_h.items() if v >= 0.005)),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Figures:
    """Means of one policy over its starts."""

    policy: str
    starts: int
    cost_usd: float
    finish_h: float | None
    missed: int
    preemptions: float
    moves: float
    egress_usd: float
    useful_h: float
    overhead_h: dict[str, float]


def world(
    trace: Annotated[
        Path, typer.Option("--trace", metavar="PATH", help="Trace of one zone, or a folder of zones on one clock.")
    ],
    task_h: Annotated[float, typer.Option("--task-h", help="Hours of work.")],
    deadline_h: Annotated[float | None, typer.Option("--deadline-h", help="Hours from the start.")] = None,
    policy: Annotated[
        list[str] | None, typer.Option("--policy", help="Who decides; may be repeated. Default: greedy, on_demand.")
    ] = None,
    *,
    gang: Annotated[int, typer.Option("--gang", min=1, help="Machines.")] = 1,
    any_zone: Annotated[bool, typer.Option("--any-zone", help="The gang may lie in several zones.")] = False,
    spot_only: Annotated[bool, typer.Option("--spot-only", help="Spot only, but for the deadline's net.")] = False,
    start_tick: Annotated[int, typer.Option("--start-tick", min=0, help="Tick of the trace it begins at.")] = 0,
    starts: Annotated[int, typer.Option("--starts", min=1, help="So many starts, spread over the trace.")] = 1,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of boot times, failures and who is taken.")] = 0,
    egress: Annotated[
        Path | None, typer.Option("--egress", metavar="FILE.csv", help="Prices of transfer, USD per GB.")
    ] = None,
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="What the world is like: see below.")
    ] = None,
    journal: Annotated[
        Path | None, typer.Option("--journal", metavar="FILE.jsonl", help="Keeps the journal of the first run.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, max=1024, help="Processes. Default: one per processor.")
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Run one job in a simulated cloud; the decisions are those that run live. Several policies stand side by side.

    `--set` takes boot_s, notice_s, notice_chance, launch_failure, boot_failure, loss_per_h, max_life_s, told, setup_s,
    start_s, restore_s, save_s, stall_s, every_s, checkpoint_gb, budget_usd, spot_usd_per_h, on_demand_usd_per_h, ...

    Example: `everstep sim world --trace traces --task-h 24 --deadline-h 32 --policy greedy --policy on_demand`
    """
    from everstep.sim import trials
    from everstep.sim.reference import grid as grids
    from everstep.sim.reference.rows import check_target

    if journal is not None:
        check_target(journal)
    _check_times(task_h, deadline_h)
    wanted = list(dict.fromkeys(policy or ["greedy", "on_demand"]))
    _check_policies(wanted, trials.selector_names())
    trial = _trial(trace, (task_h, deadline_h, gang), egress, sets or [], any_zone=any_zone, spot_only=spot_only)
    ticks = _starts(trial, start_tick, starts)
    runs = [(name, tick) for tick in ticks for name in wanted]
    results = _run(trial, runs, seed, workers or grids.cores(), journal)
    if output is not Output.TABLE:
        steady = {r.start_tick: r.cost_usd for r in results if r.policy == "on_demand"}
        marks = trials.marks(trial, ticks, steady, seed=seed)
        document({**_document(trial, trace, results), "marks": dataclasses.asdict(marks)}, output)
        return
    table(figures(results), _COLUMNS)
    print(f"world: {MODE}; traces: {trace}")


def _check_times(task_h: float, deadline_h: float | None) -> None:
    if not math.isfinite(task_h) or task_h <= 0:
        raise failures.usage(_COMMAND, "--task-h", "expected hours, above 0")
    if deadline_h is not None and not math.isfinite(deadline_h):
        raise failures.usage(_COMMAND, "--deadline-h", "expected hours", "leave it out for none")
    if deadline_h is not None and deadline_h < task_h:
        raise failures.usage(_COMMAND, "--deadline-h", f"shorter than the work of {task_h:g} h")


def _check_policies(wanted: Sequence[str], known: Sequence[str]) -> None:
    for name in wanted:
        if name not in known:
            fix = nearest(name, known) or f"known: {', '.join(known)}"
            raise failures.usage(_COMMAND, "--policy", f"there is no policy {name!r}", fix)


def _starts(trial: Trial, first: int, count: int) -> list[int]:
    last = trial.last_start()
    if first > last:
        text = f"the traces have {trial.ticks} ticks, so the job may begin at tick {last} at the latest"
        raise failures.usage(_COMMAND, "--start-tick", text if last >= 0 else "the traces are shorter than the job")
    span = last - first
    return list(dict.fromkeys(first + span * n // max(count - 1, 1) for n in range(count)))


def _run(trial: Trial, runs: list[tuple[str, int]], seed: int, workers: int, journal: Path | None) -> list[Result]:
    from everstep.cli.sim import bar
    from everstep.sim import trials

    results: list[Result] = []
    with bar(len(runs)) as told:
        if journal is not None:
            policy, tick = runs[0]
            result, played = trials.run(trial, policy, start_tick=tick, seed=seed + tick)
            _keep(played, journal)
            results.append(result)
            told(1)
        for result in trials.several(trial, runs[len(results) :], seed=seed, workers=workers):
            results.append(result)
            told(1)
    return results


def _keep(played: Played, path: Path) -> None:
    """The journal as JSON lines, as ``sim replay`` reads it."""
    from everstep.model.events import encode

    with path.open("w", encoding="utf-8") as file:
        for line in played.journal:
            kind, schema, body = encode(line.event)
            row = {"at": line.at, "job": line.job, "kind": kind, "schema": schema, "body": body}
            file.write(json.dumps(row, separators=(",", ":")) + "\n")


def figures(results: Sequence[Result]) -> list[Figures]:
    """Means by policy, in the order of their first run."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(result.policy, []).append(result)
    return [_figures(policy, group) for policy, group in groups.items()]


def _figures(policy: str, group: Sequence[Result]) -> Figures:
    count = len(group)
    finished = [r.finish_h for r in group if r.finish_h is not None]
    return Figures(
        policy=policy,
        starts=count,
        cost_usd=sum(r.cost_usd for r in group) / count,
        finish_h=sum(finished) / len(finished) if finished else None,
        missed=sum(not r.deadline_met for r in group),
        preemptions=sum(r.preemptions for r in group) / count,
        moves=sum(r.moves for r in group) / count,
        egress_usd=sum(r.egress_usd for r in group) / count,
        useful_h=sum(r.useful_h for r in group) / count,
        overhead_h={cause: sum(r.overhead_h[cause] for r in group) / count for cause in group[0].overhead_h},
    )


def _document(trial: Trial, trace: Path, results: Sequence[Result]) -> dict[str, Any]:
    return {
        "report": "sim world",
        "mode": MODE,
        "traces": [one.file for one in trial.series],
        "sources": sorted({one.source for one in trial.series if one.source}),
        "task_h": trial.task_h,
        "deadline_h": trial.deadline_h,
        "gang": trial.gang,
        "conditions": dataclasses.asdict(trial.conditions),
        "work": dataclasses.asdict(trial.workload()),
        "figures": [dataclasses.asdict(one) for one in figures(results)],
        "results": [dataclasses.asdict(one) for one in results],
    }


# --- What the world is like -------------------------------------------------------------------------------------------


def _trial(
    trace: Path,
    job: tuple[float, float | None, int],
    egress: Path | None,
    sets: Sequence[str],
    *,
    any_zone: bool,
    spot_only: bool,
) -> Trial:
    from everstep.model.gang import ZoneRule
    from everstep.model.task import SpotMode
    from everstep.sim import trials
    from everstep.sim.reference.egress import read_egress
    from everstep.sim.reference.grid import TRANSFER_USD_PER_GB
    from everstep.sim.world.conditions import Conditions, Workload
    from everstep.sim.world.supply import Fallback

    prices = {} if egress is None else read_egress(egress)
    parts: list[Any] = [Conditions(), Workload(steps=1), Fallback()]
    own: dict[str, float | None] = {"every_s": None, "budget_usd": None}
    for text in sets:
        _set(parts, own, text)
    task_h, deadline_h, gang = job
    series = trials.read(trace)
    most = max(one.capacity for one in series)
    if gang > most:
        raise failures.usage(_COMMAND, "--gang", f"{gang} machines at once, but the traces were asked for {most}")
    return trials.Trial(
        series,
        task_h,
        deadline_h,
        gang,
        zones=ZoneRule.ANY if any_zone else ZoneRule.SAME_ZONE,
        spot=SpotMode.TRUE if spot_only else SpotMode.AUTO,
        every_s=own["every_s"],
        budget_usd=own["budget_usd"],
        conditions=parts[0],
        work=parts[1],
        fallback=parts[2],
        tariff=trials.TransferPrices(prices, TRANSFER_USD_PER_GB),
    )


def _set(parts: list[Any], own: dict[str, float | None], text: str) -> None:
    """Takes one ``KEY=VALUE`` in."""
    key, equals, value = text.partition("=")
    if not equals:
        raise failures.usage(_COMMAND, "--set", f"expected KEY=VALUE, found {text!r}")
    if key in own:
        own[key] = _value(key, value, float)
        return
    for place, part in enumerate(parts):
        known = {f.name: getattr(part, f.name) for f in dataclasses.fields(part) if f.name not in _NOT_SET}
        if key in known:
            kind = type(known[key]) if known[key] is not None else int if key == "quota" else float
            parts[place] = dataclasses.replace(part, **{key: _value(key, value, kind)})
            return
    every = [f.name for part in parts for f in dataclasses.fields(part) if f.name not in _NOT_SET]
    fix = nearest(key, [*every, *own]) or f"known: {', '.join(sorted([*every, *own]))}"
    raise failures.usage(_COMMAND, "--set", f"there is nothing called {key!r}", fix)


_NOT_SET = {"billing", "speeds", "steps"}
_CHANCES = {"notice_chance", "launch_failure", "boot_failure"}
_ABOVE_0 = {"step_s", "transfer_gb_per_s", "calls_per_s", "burst", "max_life_s", "quota"}
_LEAST, _MOST = 1e-9, 1e12


def _value(key: str, text: str, kind: type) -> Any:
    if kind is bool:
        if text not in ("true", "false"):
            raise failures.usage(_COMMAND, "--set", f"{key}: expected true or false, found {text!r}")
        return text == "true"
    try:
        value = kind(text)
    except ValueError:
        value = math.nan
    least = _LEAST if key in _ABOVE_0 else 0.0
    if not least <= value <= (1.0 if key in _CHANCES else _MOST):
        raise failures.usage(_COMMAND, "--set", f"{key}: expected {_wanted(key, kind)}, found {text!r}")
    return value


def _wanted(key: str, kind: type) -> str:
    if key in _CHANCES:
        return "a chance, 0 to 1"
    bound = "above 0" if key in _ABOVE_0 else "not below 0"
    return f"a {'whole ' if kind is int else ''}number, {bound} and {_MOST:g} at most"
