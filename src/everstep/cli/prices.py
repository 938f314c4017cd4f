"""``everstep prices``: what machines cost over time, by zone."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from everstep.cli import wording
from everstep.cli.failures import usage
from everstep.cli.output import Column, Output, OutputOption, listing

if TYPE_CHECKING:
    from everstep.market.prices import PriceSeries

app = typer.Typer(no_args_is_help=True)

MOST_LINES = 24
"""More lines than this nobody can tell apart in one picture."""


@dataclass(frozen=True, slots=True)
class PriceRow:
    """Spot prices of one place over a stretch of time, USD per hour of the whole machine.

    ``spot_usd_per_h`` and ``on_demand_usd_per_h`` are the last known, None = not sold or not told. ``mean`` weighs each
    price by the time that it held. Times are UTC seconds. ``points`` are ``[as of, spot, on-demand]``.
    """

    cloud: str
    region: str
    zone: str
    machine_type: str
    accelerator: str
    accelerator_count: int
    spot_usd_per_h: float | None
    on_demand_usd_per_h: float | None
    lowest_usd_per_h: float | None
    mean_usd_per_h: float | None
    highest_usd_per_h: float | None
    changes: int
    since: float
    as_of: float
    source: str
    points: tuple[tuple[float, float | None, float | None], ...] = ()


Files = Annotated[
    list[str],
    typer.Argument(metavar="FILE|URL...", help="Price histories, catalogs, traces with prices.", show_default=False),
]
TypeOption = Annotated[str, typer.Option("--type", metavar="TYPE", help="Only this machine type.")]
AcceleratorOption = Annotated[str, typer.Option("--accelerator", "--gpu", help="Only machines with this one.")]
RegionOption = Annotated[str, typer.Option("--region", help="Only this region.")]
ZoneOption = Annotated[str, typer.Option("--zone", help="Only this zone.")]
SinceOption = Annotated[str, typer.Option("--since", metavar="TIME", help="From then on, such as 2030-01-31.")]
UntilOption = Annotated[str, typer.Option("--until", metavar="TIME", help="Up to then.")]


@app.command()
def show(
    files: Files,
    *,
    machine_type: TypeOption = "",
    accelerator: AcceleratorOption = "",
    region: RegionOption = "",
    zone: ZoneOption = "",
    since: SinceOption = "",
    until: UntilOption = "",
    points: Annotated[bool, typer.Option("--points", help="Every price, in json and yaml.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """List what machines cost, zone by zone, cheapest first: last price, range, and how old it is.

    Example: `everstep prices show history.json --type p3.2xlarge`
    """
    from everstep.market.freshness import age

    now = time.time()
    found = _chosen(files, (machine_type, accelerator, region, zone), (since, until), now)
    rows = [_row(series, points) for series in found]
    # What is not sold comes last.
    rows.sort(key=lambda row: (row.spot_usd_per_h is None, row.spot_usd_per_h or 0.0, row.zone, row.machine_type))
    listing(rows, (*_COLUMNS, Column("AS OF", lambda row: age(row.as_of, now))), output, empty="no prices")


@app.command()
def plot(
    files: Files,
    *,
    machine_type: TypeOption = "",
    accelerator: AcceleratorOption = "",
    region: RegionOption = "",
    zone: ZoneOption = "",
    since: SinceOption = "",
    until: UntilOption = "",
    out: Annotated[Path, typer.Option("--out", help="The page; a picture of the same name lies beside it.")] = Path(
        "prices.html"
    ),
) -> None:
    """Draw spot prices over time, a line per zone, as one HTML page, and as PNG if matplotlib is there.

    Example: `everstep prices plot history.json --type p3.2xlarge --out v100.html`
    """
    from everstep.cli import pricepicture
    from everstep.sim.reference.rows import check_target

    if out.suffix not in (".html", ".htm"):
        raise usage("everstep prices plot", "--out", f"expected a name that ends in .html, found {str(out)!r}")
    check_target(out)
    now = time.time()
    found = _chosen(files, (machine_type, accelerator, region, zone), (since, until), now)
    if len(found) > MOST_LINES:
        message = f"{len(found)} places are too many for one picture ({MOST_LINES} at most)"
        raise usage("everstep prices plot", "", message, "narrow them with --type, --gpu, --region or --zone")
    out.write_text(pricepicture.page(found, now), encoding="utf-8")
    print(out)
    picture = out.with_suffix(".png")
    if pricepicture.png(found, picture):
        print(picture)
    else:
        print("no PNG: matplotlib is missing; pip install 'everstep[plot]'")


_COLUMNS = (
    Column("ZONE", lambda row: row.zone or row.region),
    Column("TYPE", lambda row: row.machine_type or wording.UNKNOWN),
    Column("ACCELERATOR", lambda row: _accelerator(row)),
    Column("SPOT", lambda row: wording.price(row.spot_usd_per_h), right=True),
    Column("LOWEST", lambda row: wording.price(row.lowest_usd_per_h), right=True),
    Column("MEAN", lambda row: wording.price(row.mean_usd_per_h), right=True),
    Column("HIGHEST", lambda row: wording.price(row.highest_usd_per_h), right=True),
    Column("ON DEMAND", lambda row: wording.price(row.on_demand_usd_per_h), right=True),
    Column("SOURCE", lambda row: Path(row.source).name),
)


def _accelerator(row: PriceRow) -> str:
    if not row.accelerator:
        return wording.UNKNOWN
    return f"{row.accelerator}:{row.accelerator_count}" if row.accelerator_count else row.accelerator


def _chosen(
    files: list[str], wanted: tuple[str, str, str, str], window: tuple[str, str], now: float
) -> list[PriceSeries]:
    """The series of all files that are ``wanted`` (machine type, accelerator, region, zone), cut to the window."""
    from everstep.cli.marketdata import located, reading
    from everstep.market.reading import read_prices

    since, until = (_instant(text, option) for text, option in zip(window, ("--since", "--until"), strict=True))
    if since is not None and until is not None and since > until:
        raise usage("everstep prices", "--until", f"{window[1]} lies before --since {window[0]}")
    series: list[PriceSeries] = []
    for where in files:
        with reading(where):
            series += read_prices(located(where, now))
    machine_type, accelerator, region, zone = (word.lower() for word in wanted)
    fit = [
        one
        for one in series
        if machine_type in ("", one.place.machine_type.lower())
        and accelerator in ("", one.place.accelerator.lower())
        and region in ("", one.place.region.lower())
        and zone in ("", one.place.zone.lower())
    ]
    cut = [part for one in fit if (part := one.between(since, until)) is not None]
    if not cut:
        what = " ".join(word for word in wanted if word) or "this time"
        raise usage("everstep prices", "", f"none of {len(series)} places has prices of {what}", "leave a filter out")
    return cut


def _instant(text: str, option: str) -> float | None:
    from everstep.market.rows import instant

    if not text:
        return None
    try:
        return instant(text)
    except ValueError:
        raise usage("everstep prices", option, f"expected a time such as 2030-01-31T18:00Z, found {text!r}") from None


def _row(series: PriceSeries, points: bool) -> PriceRow:
    place, spread = series.place, series.spread()
    lowest, mean, highest = (None, None, None) if spread is None else spread
    told: list[tuple[float, float | None, float | None]] = []
    if points:
        told = [(float(at), series.spot(at), series.on_demand(at)) for at in series.at]
    return PriceRow(
        cloud=place.cloud,
        region=place.region,
        zone=place.zone,
        machine_type=place.machine_type,
        accelerator=place.accelerator,
        accelerator_count=place.accelerator_count,
        spot_usd_per_h=series.spot(series.as_of),
        on_demand_usd_per_h=series.on_demand(series.as_of),
        lowest_usd_per_h=lowest,
        mean_usd_per_h=mean,
        highest_usd_per_h=highest,
        changes=series.changes(),
        since=float(series.at[0]),
        as_of=series.as_of,
        source=series.source,
        points=tuple(told),
    )
