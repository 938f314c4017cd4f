"""``everstep sim report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from everstep.cli.output import Output, OutputOption, document


def report(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...", help="JSON of `sim job`, `sim world`, `sim replay`; CSV of `sim grid`, `sim zones`."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE.html", help="The page.")] = Path("report.html"),
    *,
    traces: Annotated[
        Path | None,
        typer.Option("--traces", metavar="DIR", help="Traces of a grid: works out on-demand and the optimum."),
    ] = None,
    spot: Annotated[float, typer.Option("--spot-usd-per-h", min=0, help="As the grid was run.")] = 0.9731,
    on_demand: Annotated[float, typer.Option("--on-demand-usd-per-h", min=0, help="As the grid was run.")] = 3.06,
    egress: Annotated[Path | None, typer.Option("--egress", metavar="FILE.csv", help="As `sim zones` was run.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make one self-contained page: costs against on-demand and the optimum, the spread over starts, the timeline.

    Example: `everstep sim report costs.csv --traces traces --out report.html`
    """
    from everstep.cli.simreport.page import page
    from everstep.cli.simreport.sources import read
    from everstep.sim.reference.rows import check_target

    check_target(out)
    reports = []
    for file in files:
        grid = file.suffix == ".csv" and traces is not None
        marks = _marks(file, traces, (spot, on_demand), egress) if grid and traces is not None else None
        reports.append(read(file, marks))
    out.write_text(page(reports), encoding="utf-8")
    if output is Output.TABLE:
        print(out)
    else:
        document(reports, output)


def _marks(
    file: Path, traces: Path, prices: tuple[float, float], egress: Path | None
) -> dict[tuple[str, ...], tuple[float, float]]:
    """What each run of a grid costs on demand and at best."""
    from dataclasses import replace

    from everstep.cli.sim import bar
    from everstep.cli.simreport.sources import key_of, table
    from everstep.sim.reference import grid as grids
    from everstep.sim.reference import rows as tables
    from everstep.sim.reference.egress import read_egress

    rows = table(file)
    many = "file" not in rows[0]
    tasks = tables.read_zones(file) if many else tables.read_grid(file)
    grids.check(tasks, traces, many_zones=many)
    runs = list({key_of(row): task for row, task in zip(rows, tasks, strict=True)}.items())
    wanted = [
        replace(task, policy=policy, number=2 * number + half)
        for number, (_, task) in enumerate(runs)
        for half, policy in enumerate(("on_demand", "optimal"))
    ]
    transfer = (read_egress(egress) if egress is not None else {}) if many else None
    parts = grids.batches(wanted, traces, prices=prices, egress=transfer)
    with bar(len(wanted)) as told:
        outcomes = grids.run(parts, grids.processes(grids.cores()), told)
    return {key: (outcomes[2 * n].cost_usd, outcomes[2 * n + 1].cost_usd) for n, (key, _) in enumerate(runs)}
