"""Spot prices over time as a picture: SVG inside one HTML page, and PNG."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path

from everstep.cli.demo.svg import Drawing
from everstep.market.freshness import age, stale
from everstep.market.prices import PriceSeries
from everstep.model.units import format_price

WIDTH, HEIGHT = 1080.0, 420.0
LEFT, RIGHT, TOP, BOTTOM = 70.0, 20.0, 20.0, 40.0
COLOURS = ("#1d4ed8", "#b91c1c", "#15803d", "#a16207", "#7e22ce", "#0e7490", "#be185d", "#4d7c0f", "#c2410c", "#475569")
DASHES = ("", "6 3", "2 2")
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1120px; margin: 2rem auto; padding: 0 1rem; color: #222; }
h1 { font-size: 1.4rem; } table { border-collapse: collapse; }
td, th { padding: .15rem .9rem .15rem 0; text-align: left; vertical-align: top; }
td, th { white-space: nowrap; } td.s { white-space: normal; overflow-wrap: anywhere; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; } .old { color: #b91c1c; }
i { display: inline-block; width: 1.6rem; border-top: 3px solid; vertical-align: middle; }
svg { max-width: 100%; height: auto; }
"""


def page(series: Sequence[PriceSeries], now: float) -> str:
    """One HTML page that needs nothing else: the picture, and a row per place with source and age.

    Args:
        series: at least one.
        now: UTC seconds, for the ages.
    """
    # One file with many places: its name is said once.
    sources = list(dict.fromkeys(one.source for one in series))
    alone = sources[0] if len(sources) == 1 else ""
    rows = "".join(_row(one, index, now, alone=bool(alone)) for index, one in enumerate(series))
    figures = "".join(f'<th class="n">{name}</th>' for name in ("last", "lowest", "mean", "highest"))
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>everstep prices</title><style>{_STYLE}</style></head><body>
<h1>Spot prices, USD per hour of one machine</h1>
{drawing(series)}
<table><tr><th></th><th>zone and type</th>{figures}<th>age</th>{"" if alone else "<th>source</th>"}</tr>{rows}</table>
{f"<p>Source: {escape(alone)}</p>" if alone else ""}
<p>A price holds until the next one. Means weigh each price by the time that it held. Times are UTC.</p>
</body></html>
"""


def drawing(series: Sequence[PriceSeries]) -> str:
    """The picture alone, as SVG: one step line per place, broken where nothing was sold."""
    start, end = min(float(one.at[0]) for one in series), max(one.as_of for one in series)
    # Prices of one instant are short lines.
    end = end if end > start else start + 86_400.0
    top = max((spread[2] for one in series if (spread := one.spread()) is not None), default=1.0) * 1.05 or 1.0
    picture = Drawing(WIDTH, HEIGHT, "Spot prices over time")

    def place(at: float, price: float) -> tuple[float, float]:
        x = LEFT + (at - start) / (end - start) * (WIDTH - LEFT - RIGHT)
        return x, HEIGHT - BOTTOM - price / top * (HEIGHT - TOP - BOTTOM)

    for price in ticks(top):
        (x, y), (right, _) = place(start, price), place(end, price)
        picture.line([(x, y), (right, y)], colour="#e5e7eb")
        picture.words(x - 6, y + 4, f"${price:g}", anchor="end", colour="#555555")
    shape = "%Y-%m-%d" if end - start > 3 * 86_400 else "%m-%d %H:%M"
    for part in range(5):
        at = start + part / 4 * (end - start)
        anchor = {0: "start", 4: "end"}.get(part, "middle")
        picture.words(place(at, 0)[0], HEIGHT - BOTTOM + 18, _date(at, shape), anchor=anchor, colour="#555555")
    for index, one in enumerate(series):
        for steps in stretches(one, end):
            points = [place(at, price) for at, price in steps]
            picture.line(points, colour=_colour(index), width=1.5, dash=_dash(index))
    return picture.text()


def stretches(series: PriceSeries, end: float) -> Iterator[list[tuple[float, float]]]:
    """Corners (UTC seconds, USD per hour) of the step line, apart where nothing was sold; the last holds to ``end``."""
    steps: list[tuple[float, float]] = []
    for at, price in zip(series.at.tolist(), series.spot_usd_per_h.tolist(), strict=True):
        if steps:
            steps.append((at, steps[-1][1]))
        if math.isnan(price):
            if steps:
                yield steps
            steps = []
        elif not steps or steps[-1][1] != price:
            steps.append((at, price))
    if steps:
        yield [*steps, (end, steps[-1][1])]


def ticks(top: float) -> list[float]:
    """Round prices from 0 to ``top``, four to nine of them."""
    rough = top / 5
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= rough)
    return [round(step * count, 10) for count in range(int(top / step) + 1)]


def png(series: Sequence[PriceSeries], path: Path) -> bool:
    """The same lines as PNG; False if matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(11, 5), layout="constrained")
    axes = figure.subplots()
    end = max(one.as_of for one in series)
    for index, one in enumerate(series):
        label: str | None = str(one.place)
        for steps in stretches(one, end):
            days = [at / 86_400.0 for at, _ in steps]
            style = (0, tuple(map(int, _dash(index).split()))) if _dash(index) else "-"
            axes.plot(days, [price for _, price in steps], color=_colour(index), linestyle=style, label=label, lw=1.2)
            label = None
    # Days since 1970 are matplotlib's own dates.
    axes.xaxis_date(UTC)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("spot, USD per hour")
    if axes.lines:
        axes.legend(fontsize="small", ncols=1 + len(series) // 12)
    figure.autofmt_xdate()
    figure.savefig(path, dpi=120)
    return True


def _row(one: PriceSeries, index: int, now: float, *, alone: bool) -> str:
    spread = one.spread()
    prices = (one.spot(one.as_of), *(spread or (None, None, None)))
    cells = "".join(f'<td class="n">{"-" if price is None else format_price(price)}</td>' for price in prices)
    old = ' class="old"' if stale(one.as_of, now) else ""
    style = "dashed" if _dash(index) else "solid"
    # What was never sold as spot has no line.
    key = f'<i style="border-top: 3px {style} {_colour(index)}"></i>' if spread else ""
    source = "" if alone else f'<td class="s">{escape(one.source)}</td>'
    return f"<tr><td>{key}</td><td>{escape(str(one.place))}</td>{cells}<td{old}>{age(one.as_of, now)}</td>{source}</tr>"


def _colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def _dash(index: int) -> str:
    return DASHES[index // len(COLOURS) % len(DASHES)]


def _date(at: float, shape: str) -> str:
    return datetime.fromtimestamp(at, UTC).strftime(shape)
