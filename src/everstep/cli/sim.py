"""``everstep sim``: what would this have cost? Policies over recorded traces."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from everstep.cli.cheapest import cheapest
from everstep.cli.output import Column, Output, OutputOption, document, facts, field, listing, table
from everstep.cli.simreplay import replay
from everstep.cli.simreport.command import report
from everstep.cli.simworld import world

if TYPE_CHECKING:
    from everstep.sim.reference.drive import Outcome
    from everstep.sim.reference.grid import Batch
    from everstep.sim.reference.rows import Task

app = typer.Typer()

_REFERENCE = "world: recorded traces, reference semantics (whole ticks, no boot time, no notice)"
_Traces = Annotated[Path, typer.Option("--traces", metavar="DIR", help="Folder that the rows' traces lie in.")]
_Out = Annotated[Path, typer.Option("--out", metavar="FILE.csv", help="The rows with their results.")]
_Workers = Annotated[
    int | None, typer.Option("--workers", min=1, max=1024, help="Processes. Default: one per processor.")
]
_Spot = Annotated[float, typer.Option("--spot-usd-per-h", min=0, help="Where traces state no price of spot.")]
_Steady = Annotated[float, typer.Option("--on-demand-usd-per-h", min=0, help="Where traces state no such price.")]
_Egress = Annotated[
    Path | None, typer.Option("--egress", metavar="FILE.csv", help="Prices of transfer between regions, USD per GB.")
]


@dataclass(frozen=True, slots=True)
class PolicyFigures:
    """One policy over all its rows."""

    policy: str
    rows: int
    mean_usd: float
    mean_finish_h: float | None
    missed: int


COLUMNS = (
    Column("POLICY", field("policy")),
    Column("ROWS", field("rows"), right=True),
    Column("MEAN $", lambda f: f"{f.mean_usd:.2f}", right=True),
    Column("MEAN FINISH H", lambda f: "" if f.mean_finish_h is None else f"{f.mean_finish_h:.2f}", right=True),
    Column("DEADLINES MISSED", field("missed"), right=True),
)


@app.command()
def job(
    trace: Annotated[
        Path, typer.Option("--trace", metavar="PATH", help="Trace of one zone, or a folder of zones on one clock.")
    ],
    task_h: Annotated[float, typer.Option("--task-h", help="Hours of work.")],
    deadline_h: Annotated[float, typer.Option("--deadline-h", help="Hours from the start.")],
    changeover_h: Annotated[float, typer.Option("--changeover-h", help="Hours that each start costs.")] = 0.1,
    policy: Annotated[str, typer.Option("--policy", help="Who decides.")] = "uniform_progress",
    *,
    gang: Annotated[int, typer.Option("--gang", min=1, help="Machines that must be there at once.")] = 1,
    start_tick: Annotated[int, typer.Option("--start-tick", min=0, help="Tick of the trace it begins at.")] = 0,
    checkpoint_gb: Annotated[float, typer.Option("--checkpoint-gb", min=0, help="Moved between regions.")] = 0.0,
    egress: _Egress = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the policy's chance.")] = 0,
    spot: _Spot = 0.9731,
    on_demand: _Steady = 3.06,
    every: Annotated[bool, typer.Option("--all", help="Decisions that changed nothing, too.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Run one job and show each change with its reason and what the alternatives were expected to cost.

    Example: `everstep sim job --trace us-west-2a.json --task-h 48 --deadline-h 60 --policy greedy`
    """
    from everstep.cli import simjob
    from everstep.sim.reference.egress import read_egress

    wanted = simjob.Wanted(
        trace=trace,
        hours=(task_h, deadline_h, changeover_h),
        policy=policy,
        gang=gang,
        start_tick=start_tick,
        checkpoint_gb=checkpoint_gb,
        seed=seed,
        prices=(spot, on_demand),
        egress={} if egress is None else read_egress(egress),
    )
    told = simjob.run(wanted)
    if output is not Output.TABLE:
        document(told, output)
        return
    table(told.decisions if every else simjob.changes(told), simjob.COLUMNS)
    print()
    facts(simjob.summary(told))
    print(_REFERENCE)


@app.command()
def grid(
    rows: Annotated[
        Path,
        typer.Option(
            "--rows",
            metavar="FILE.csv",
            help="Columns: file, gang, task_h, deadline_h, changeover_h, start_tick_in_file, policy.",
        ),
    ],
    traces: _Traces,
    out: _Out,
    workers: _Workers = None,
    *,
    spot: _Spot = 0.9731,
    on_demand: _Steady = 3.06,
    output: OutputOption = Output.TABLE,
) -> None:
    """Run many jobs of one zone each. Prices are the same everywhere, as in the published comparisons.

    Example: `everstep sim grid --rows rows.csv --traces traces --out costs.csv`
    """
    from everstep.sim.reference import grid as grids
    from everstep.sim.reference import rows as tables

    tables.check_target(out)
    tasks = tables.read_grid(rows)
    grids.check(tasks, traces)
    parts = grids.batches(tasks, traces, prices=(spot, on_demand))
    outcomes = _run(parts, len(tasks), workers)
    tables.write(rows, out, [tables.cells(outcome, tables.GRID_RESULTS) for outcome in outcomes])
    _summary(tasks, outcomes, output)


@app.command()
def zones(
    rows: Annotated[
        Path,
        typer.Option(
            "--rows",
            metavar="FILE.csv",
            help="Columns: set, task_h, deadline_h, changeover_h, start_tick_in_file, checkpoint_gb, policy.",
        ),
    ],
    traces: _Traces,
    out: _Out,
    egress: _Egress = None,
    workers: _Workers = None,
    *,
    spot: _Spot = 0.9731,
    on_demand: _Steady = 3.06,
    output: OutputOption = Output.TABLE,
) -> None:
    """Run many jobs over all the zones of a folder at once. A column gang is taken where it is given.

    Example: `everstep sim zones --rows rows.csv --traces traces --egress egress.csv --out costs.csv`
    """
    from everstep.sim.reference import grid as grids
    from everstep.sim.reference import rows as tables
    from everstep.sim.reference.egress import read_egress

    tables.check_target(out)
    tasks = tables.read_zones(rows)
    prices = {} if egress is None else read_egress(egress)
    grids.check(tasks, traces, many_zones=True)
    _tell_missing(grids.unpriced(tasks, traces, prices), grids.TRANSFER_USD_PER_GB)
    parts = grids.batches(tasks, traces, prices=(spot, on_demand), egress=prices)
    outcomes = _run(parts, len(tasks), workers)
    tables.write(rows, out, [tables.cells(outcome, tables.ZONES_RESULTS) for outcome in outcomes])
    _summary(tasks, outcomes, output)


# After the commands above: the help lists them as they are registered, from one job to a page of many.
app.command()(world)
app.command()(replay)
app.command()(cheapest)
app.command()(report)


def _run(parts: list[Batch], total: int, workers: int | None) -> list[Outcome]:
    from everstep.sim.reference import grid as grids

    with bar(total) as told:
        return grids.run(parts, grids.processes(workers or grids.cores()), told)


def _summary(tasks: list[Task], outcomes: list[Outcome], output: Output) -> None:
    groups: dict[str, list[Outcome]] = {}
    for task, outcome in zip(tasks, outcomes, strict=True):
        groups.setdefault(task.policy, []).append(outcome)
    figures = []
    for policy, group in groups.items():
        finished = [outcome.finish_s / 3600.0 for outcome in group if outcome.finish_s is not None]
        figures.append(
            PolicyFigures(
                policy,
                len(group),
                sum(outcome.cost_usd for outcome in group) / len(group),
                sum(finished) / len(finished) if finished else None,
                sum(not outcome.deadline_met for outcome in group),
            )
        )
    listing(figures, COLUMNS, output, empty="no rows")
    if output is Output.TABLE:
        print(_REFERENCE)


def _tell_missing(pairs: list[tuple[str, str]], usd_per_gb: float) -> None:
    if pairs:
        more = f" and {len(pairs) - 1} more" if len(pairs) > 1 else ""
        text = f"no price of transfer from {pairs[0][0]} to {pairs[0][1]}{more}: {usd_per_gb:g} USD/GB is taken"
        print(f"everstep sim zones: {text}", file=sys.stderr)


@contextmanager
def bar(total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        bar = bars.add_task("", total=total)
        yield lambda done: bars.advance(bar, done)
