"""The picture of ``everstep estimate``: one self-contained page, its charts drawn as SVG."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

from everstep.cli.pricepicture import ticks
from everstep.model.units import format_duration, format_money
from everstep.sim.estimate import Estimate, Range

_WIDTH, _LEFT, _RIGHT, _ROW = 960, 250, 180, 34
_INK, _SPAN, _BOX, _GRID = "#1c2733", "#9db7d5", "#2f6db3", "#d9dfe6"
_HALO = 'stroke="#fff" stroke-width="4" paint-order="stroke"'
"""Readable also where the line of a deadline runs through it."""
_STYLE = "body{font:15px/1.5 system-ui,sans-serif;color:#1c2733;max-width:960px;margin:2em auto;padding:0 1em}"


def page(title: str, notes: Sequence[str], estimates: Sequence[Estimate]) -> str:
    """The page as text.

    Args:
        title: of the task.
        notes: lines above the charts: what was assumed.
        estimates: one row each, in this order.
    """
    head = f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(title)}</title><style>{_STYLE}</style>"
    lines = "".join(f"<li>{escape(note)}</li>" for note in notes)
    cost = _chart(estimates, lambda e: e.cost_usd, lambda e: format_money(e.cost_usd.p50), format_money, None)
    finish = _chart(estimates, lambda e: e.finish_s, _finish_text, format_duration, lambda e: e.deadline_s)
    legend = "<p>Bar: P10 to P90, mark: P50, thin line: all futures. Dashed: the deadline.</p>"
    body = f"<h1>{escape(title)}</h1><ul>{lines}</ul><h2>Cost</h2>{cost}<h2>Finish, from now</h2>{finish}{legend}"
    return f"{head}<body>{body}</body></html>\n"


def label(estimate: Estimate) -> str:
    """Policy and deadline."""
    within = "" if estimate.deadline_s is None else f" within {format_duration(estimate.deadline_s)}"
    return f"{estimate.policy}{within}"


def _finish_text(estimate: Estimate) -> str:
    text = "later" if math.isinf(estimate.finish_s.p50) else format_duration(estimate.finish_s.p50)
    return text if estimate.met is None else f"{text}, {estimate.met:.0%} in time"


def _chart(
    estimates: Sequence[Estimate],
    amount: Callable[[Estimate], Range],
    text: Callable[[Estimate], str],
    unit: Callable[[float], str],
    limit: Callable[[Estimate], float | None] | None,
) -> str:
    limits = [] if limit is None else [value for e in estimates if (value := limit(e)) is not None]
    values = [value for e in estimates for value in amount(e).curve if math.isfinite(value)]
    most = max([*values, *limits, 1e-9]) * 1.05
    height = _ROW * len(estimates) + 30

    def x(value: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * min(value / most, 1.0)

    parts = [f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" font-size="13" fill="{_INK}">']
    # Round figures: of hours, where most is more than one.
    size = 1.0 if limit is None else 3600.0 if most > 3600.0 else 60.0
    for at in (size * tick for tick in ticks(most / size)):
        parts.append(f'<line x1="{x(at):.1f}" x2="{x(at):.1f}" y1="0" y2="{height - 24}" stroke="{_GRID}"/>')
        parts.append(f'<text x="{x(at):.1f}" y="{height - 6}" text-anchor="middle">{escape(unit(at))}</text>')
    for number, one in enumerate(estimates):
        y, span = _ROW * number + _ROW / 2, amount(one)
        low, high = x(span.curve[0]), x(span.curve[-1])
        parts.append(f'<text x="{_LEFT - 10}" y="{y + 4}" text-anchor="end">{escape(label(one))}</text>')
        parts.append(f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{y}" y2="{y}" stroke="{_SPAN}" stroke-width="3"/>')
        wide = max(x(span.p90) - x(span.p10), 2.0)
        parts.append(f'<rect x="{x(span.p10):.1f}" y="{y - 8}" width="{wide:.1f}" height="16" fill="{_SPAN}"/>')
        parts.append(f'<rect x="{x(span.p50) - 2:.1f}" y="{y - 10}" width="4" height="20" fill="{_BOX}"/>')
        end = None if limit is None else limit(one)
        if end is not None:
            dash = f'stroke="{_INK}" stroke-dasharray="4 3"'
            parts.append(f'<line x1="{x(end):.1f}" x2="{x(end):.1f}" y1="{y - 14}" y2="{y + 14}" {dash}/>')
        right = max(high, x(span.p90)) + 8
        parts.append(f'<text x="{right:.1f}" y="{y + 4}" font-size="11" {_HALO}>{escape(text(one))}</text>')
    return "".join([*parts, "</svg>"])
