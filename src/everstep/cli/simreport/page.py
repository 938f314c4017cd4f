"""A report as one HTML file: no script, no other file."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

from everstep.cli.demo.svg import Drawing
from everstep.cli.simreport.content import Bar, Lane, Report

_WIDTH, _LEFT, _RIGHT = 980.0, 170.0, 90.0
_ROW = 26.0
_COLOURS = {"spot": "#3b82f6", "on_demand": "#f59e0b", "reserved": "#10b981", "static": "#10b981"}
_OTHER = "#9ca3af"
_MOST_LANES, _MOST_DOTS, _FEW_DOTS = 32, 300, 60
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1060px; margin: 2rem auto; padding: 0 1rem; color: #222; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; } td, th { padding: .15rem .9rem .15rem 0; text-align: left; vertical-align: top; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
svg { max-width: 100%; height: auto; }
.key { display: inline-block; width: .8em; height: .8em; margin: 0 .3em 0 1em; } .bad { color: #b91c1c; }
"""


def page(reports: Sequence[Report]) -> str:
    """The page of one report or several."""
    title = reports[0].title if len(reports) == 1 else f"{len(reports)} simulations"
    parts = "\n".join(_section(report, alone=len(reports) == 1) for report in reports)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{escape(title)}</title><style>{_STYLE}</style></head><body>
{parts}
</body></html>
"""


def _section(report: Report, *, alone: bool) -> str:
    head = "h1" if alone else "h2"
    traces = ", ".join(report.traces[:12]) + (f" and {len(report.traces) - 12} more" if len(report.traces) > 12 else "")
    facts = [("world", report.mode), ("traces", traces), ("recorded by", "; ".join(report.sources))]
    rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in facts if text)
    parts = [f"<{head}>{escape(report.title)}</{head}><table>{rows}</table>"]
    parts += [f"<p>{escape(note)}</p>" for note in report.notes]
    if report.bars:
        parts.append(f"<h2>Cost</h2>{_bars(report)}<p>{escape(report.marks)}</p>{_table(report.bars)}")
    if any(len(values) > 1 for values in report.values.values()):
        parts.append(f"<h2>Over the starts</h2>{_spread(report)}<p>{escape(_SPREAD)}</p>")
    if report.lanes:
        parts.append(f"<h2>Timeline</h2>{_legend(report.lanes)}{_timeline(report.lanes)}")
    return "\n".join(parts)


_SPREAD = (
    "Each dot is one start. The box holds the middle half, the bar in it is the median, the line runs from P10 to P90."
)


def _table(bars: Sequence[Bar]) -> str:
    head = "".join(f'<th class="n">{name}</th>' for name in ("runs", "mean $", "lowest", "highest", "finish h"))
    more = "<th>overhead</th>" if any(bar.more for bar in bars) else "<th></th>"
    rows = []
    for bar in bars:
        finish = "never" if bar.finish_h is None else f"{bar.finish_h:.2f}"
        figures = (str(bar.runs), *(f"{usd:.2f}" for usd in (bar.usd, bar.lowest_usd, bar.highest_usd)), finish)
        cells = "".join(f'<td class="n">{cell}</td>' for cell in figures)
        missed = f'<td class="n{" bad" if bar.missed else ""}">{bar.missed}</td>'
        rows.append(f"<tr><td>{escape(bar.policy)}</td>{cells}{missed}<td>{escape(bar.more)}</td></tr>")
    return f'<table><tr><th>policy</th>{head}<th class="n">missed</th>{more}</tr>{"".join(rows)}</table>'


def _bars(report: Report) -> str:
    marks = [(report.on_demand_usd, "on-demand", "#b45309"), (report.optimal_usd, "optimum", "#15803d")]
    most = max([bar.usd for bar in report.bars] + [usd for usd, _, _ in marks if usd is not None] + [1e-9])
    height = _ROW * len(report.bars) + 44
    drawing = Drawing(_WIDTH, height, f"mean cost by policy: {report.title}")
    x = _scale(0.0, most)
    widths = [max(x(bar.usd) - _LEFT, 1.0) for bar in report.bars]
    tops = [26 + number * _ROW for number in range(len(widths))]
    for bar, y, width in zip(report.bars, tops, widths, strict=True):
        drawing.words(_LEFT - 8, y + 15, bar.policy, anchor="end")
        drawing.box(_LEFT, y + 3, width, _ROW - 8, fill="#3b82f6", tip=f"{bar.policy}: ${bar.usd:.2f} over {bar.runs}")
    for place, (usd, name, colour) in enumerate(marks):
        if usd is not None:
            drawing.line([(x(usd), 20), (x(usd), height - 16)], colour=colour, width=2, dash="5 3")
            y = 13 if place == 0 else height - 4
            drawing.words(x(usd), y, f"{name} ${usd:.2f}", anchor="middle", colour=colour)
    for bar, y, width in zip(report.bars, tops, widths, strict=True):
        drawing.words(_LEFT + width + 5, y + 15, f"${bar.usd:.2f}", halo=True)
    return drawing.text()


def _scale(low: float, high: float) -> Callable[[float], float]:
    span = max(high - low, 1e-9)
    return lambda value: _LEFT + (value - low) / span * (_WIDTH - _LEFT - _RIGHT)


def _spread(report: Report) -> str:
    every = [value for values in report.values.values() for value in values]
    low, high = min(every), max(every)
    drawing = Drawing(_WIDTH, 34 * len(report.values) + 40, f"{report.unit} by policy: {report.title}")
    x = _scale(low, high)
    for number, (policy, values) in enumerate(report.values.items()):
        y = 12 + number * 34
        ordered = sorted(values)
        p10, p25, p50, p75, p90 = (_quantile(ordered, q) for q in (0.1, 0.25, 0.5, 0.75, 0.9))
        drawing.words(_LEFT - 8, y + 14, policy, anchor="end")
        drawing.line([(x(p10), y + 10), (x(p90), y + 10)], colour="#1e3a8a")
        tip = f"{policy}: P10 {p10:.4g}, P50 {p50:.4g}, P90 {p90:.4g} over {len(ordered)}"
        drawing.box(x(p25), y + 5, max(x(p75) - x(p25), 1), 10, fill="#93c5fd", tip=tip)
        size = 4 if len(ordered) <= _FEW_DOTS else 2
        for place in range(0, len(ordered), max(len(ordered) // _MOST_DOTS, 1)):
            # Spread a little, so that dots of the same value do not hide each other.
            drawing.box(x(ordered[place]) - size / 2, y + place * 7 % 17, size, size, fill="#1d4ed8")
        drawing.line([(x(p50), y + 2), (x(p50), y + 18)], colour="#1e3a8a", width=3)
    _axis(drawing, x, (low, high), 34 * len(report.values) + 16, report.unit)
    return drawing.text()


def _quantile(ordered: Sequence[float], fraction: float) -> float:
    position = fraction * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def _axis(drawing: Drawing, x: Callable[[float], float], ends: tuple[float, float], y: float, unit: str) -> None:
    low, high = ends
    drawing.line([(x(low), y), (x(high), y)], colour="#9ca3af")
    for value in _ticks(low, high):
        drawing.line([(x(value), y), (x(value), y + 4)], colour="#9ca3af")
        drawing.words(x(value), y + 17, f"{value:.4g}", anchor="middle", size=11)
    drawing.words(_LEFT - 8, y + 17, unit, anchor="end", size=11)


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers between the ends, about five."""
    span = high - low
    if span <= 0:
        return [low]
    power = 10.0 ** math.floor(math.log10(span / 5))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power * 5 >= span * (1 - 1e-9))
    return [n * step for n in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def _timeline(lanes: Sequence[Lane]) -> str:
    shown = lanes[:_MOST_LANES]
    last_h = max((spell.end_h for lane in shown for spell in lane.spells), default=1.0)
    drawing = Drawing(_WIDTH, _ROW * len(shown) + 40, "what ran when, and where")
    x = _scale(0.0, last_h)
    for number, lane in enumerate(shown):
        y = 6 + number * _ROW
        drawing.words(_LEFT - 8, y + 14, lane.label, anchor="end")
        drawing.line([(_LEFT, y + 10), (_WIDTH - _RIGHT, y + 10)], colour="#e5e7eb")
        for spell in lane.spells:
            tip = f"{spell.kind} in {spell.place}, {spell.start_h:.2f} to {spell.end_h:.2f} h"
            tip += f", {spell.end}" if spell.end else ""
            width = max(x(spell.end_h) - x(spell.start_h), 1.0)
            colour = _COLOURS.get(spell.kind, _OTHER)
            drawing.box(x(spell.start_h), y + 1, width, 18, fill=colour, tip=tip, outline="#ffffff")
            if width > 7 * len(spell.place):
                drawing.words(x(spell.start_h) + 4, y + 14, spell.place, colour="#ffffff", size=11)
    _axis(drawing, x, (0.0, last_h), _ROW * len(shown) + 10, "hours")
    more = f"<p>{len(lanes) - len(shown)} more lanes are not shown.</p>" if len(lanes) > len(shown) else ""
    return drawing.text() + more


def _legend(lanes: Sequence[Lane]) -> str:
    kinds = dict.fromkeys(spell.kind for lane in lanes for spell in lane.spells)
    keys = (
        f'<span class="key" style="background:{_COLOURS.get(k, _OTHER)}"></span>{escape(k.replace("_", "-"))}'
        for k in kinds
    )
    return f"<p>{''.join(keys)}</p>"
