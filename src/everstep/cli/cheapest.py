"""``everstep sim cheapest``: one job over the offers of several clouds, chosen once or again and again."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from everstep.cli.failures import usage
from everstep.cli.output import Column, Output, OutputOption, field, listing
from everstep.cli.registry import nearest

if TYPE_CHECKING:
    from everstep.sim.cross_cloud import Summary

_COMMAND = "everstep sim cheapest"
_COLUMNS = (
    Column("DAYS", lambda row: f"{row.days:g}", right=True),
    Column("MODEL", field("model")),
    Column("STRATEGY", field("strategy")),
    Column("MEAN $", lambda row: f"{row.mean_cost_usd:.2f}", right=True),
    Column("LOWEST $", lambda row: f"{row.min_cost_usd:.2f}", right=True),
    Column("HIGHEST $", lambda row: f"{row.max_cost_usd:.2f}", right=True),
    Column("TOOK DAYS", lambda row: f"{row.elapsed_days:.2f}", right=True),
    Column("MOVES", lambda row: f"{row.switches:.2f}", right=True),
)


def cheapest(
    prices: Annotated[
        str, typer.Option("--prices", metavar="FILE|URL", help="Prices of AWS and Azure: see docs/market-data.md.")
    ],
    throughputs: Annotated[
        Path, typer.Option("--throughputs", metavar="FILE.csv", help="Columns: model, gpu, steps_per_s.")
    ],
    *,
    start: Annotated[str, typer.Option("--start", metavar="TIME", help="When the first job starts.")],
    starts: Annotated[int, typer.Option("--starts", min=1, max=3660, help="Jobs, one day apart.")] = 30,
    days: Annotated[
        list[float] | None, typer.Option("--days", help="Days of work on one V100; may be repeated. Default: 1, 4, 8.")
    ] = None,
    region: Annotated[str, typer.Option("--region", help="The AWS region.")] = "us-east-1",
    model: Annotated[
        list[str] | None, typer.Option("--model", help="Only this model; may be repeated.", show_default=False)
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE.csv", help="Every row, in full digits.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Compare fixed choices with choosing again, over recorded prices of several clouds.

    World: recorded spot prices, by the hour; machines are never taken away. Time stands beside cost, since the cheapest
    is often slower.

    Example: `everstep sim cheapest --prices prices.csv --throughputs rates.csv --start 2020-02-18`
    """
    import time

    from everstep.cli.marketdata import located
    from everstep.cli.sim import bar
    from everstep.market.reading import read_prices
    from everstep.market.throughputs import read_throughputs
    from everstep.sim.cross_cloud import STRATEGIES, hourly, offered, summaries

    lengths = days or [1.0, 4.0, 8.0]
    if min(lengths) <= 0:
        raise usage(_COMMAND, "--days", f"must be above 0, found {min(lengths):g}")
    rates = _rates(read_throughputs(throughputs), throughputs, model or [])
    series = [one for one in read_prices(located(prices, time.time())) if one.spread() is not None]
    begins = _instant(start)
    if not series or begins < min(float(one.at[0]) for one in series):
        raise usage(_COMMAND, "--start", f"{prices} has no spot prices at {start}")
    grid = hourly(series, begins)
    baseline = offered(grid, "baseline", region)
    if not baseline.places:
        raise usage(_COMMAND, "--region", f"{prices} has no p3.2xlarge in {region}")
    if not baseline.sold_at(0.0):
        raise usage(_COMMAND, "--start", f"{prices} has no price of p3.2xlarge in {region} at {start}")
    with bar(len(lengths) * len(rates) * len(STRATEGIES)) as done:
        found = []
        for summary in summaries(grid, region, rates, lengths, [24 * day for day in range(starts)]):
            found.append(summary)
            done(1)
    if out is not None:
        _write(out, region, found)
    listing(found, _COLUMNS, output, empty="no models")


def _rates(read: dict[str, dict[str, float]], path: Path, wanted: list[str]) -> dict[str, dict[str, float]]:
    """Steps per hour of the models that are wanted, by accelerator."""
    for name in wanted:
        if name not in read:
            raise usage(_COMMAND, "--model", f"{path} has no {name!r}", nearest(name, read))
    chosen = {name: read[name] for name in wanted or read}
    for name, of_model in chosen.items():
        if "v100" not in of_model:
            raise usage(_COMMAND, "--throughputs", f"{path} has no v100 for {name!r}: the work is measured on one")
    return {name: {gpu: rate * 3600.0 for gpu, rate in of.items()} for name, of in chosen.items()}


def _instant(text: str) -> float:
    from everstep.market.rows import instant

    try:
        return instant(text)
    except ValueError:
        raise usage(_COMMAND, "--start", f"expected a time such as 2030-01-31T18:00Z, found {text!r}") from None


def _write(path: Path, region: str, found: list[Summary]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        names = ("mean_cost", "min_cost", "max_cost", "elapsed_days", "switches")
        writer.writerow(("region", "days", "model", "strategy", *names))
        for row in found:
            figures = (row.mean_cost_usd, row.min_cost_usd, row.max_cost_usd, row.elapsed_days, row.switches)
            writer.writerow((region, f"{row.days:g}", row.model, row.strategy, *figures))
