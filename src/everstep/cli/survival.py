"""The picture of ``everstep forecast plot``: survival curves over age."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from everstep.cli.demo.svg import Drawing
from everstep.model.errors import BadInput, Problem

if TYPE_CHECKING:
    from everstep.brain.forecast.hazard import Hazard

_POINTS = 480
_WIDTH, _HEIGHT = 860.0, 460.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 60.0, 20.0, 40.0, 50.0
_NAME_HEIGHT = 18.0
_COLOURS = ("#222222", "#2563eb", "#c2410c", "#15803d", "#7c3aed", "#b91c1c", "#0e7490", "#a16207")


@dataclass(frozen=True, slots=True)
class Curve:
    """Attributes: points: (age in hours, share that lasts at least so long), from age 0 to the end of the picture."""

    name: str
    points: tuple[tuple[float, float], ...]


def curve(name: str, hazard: Hazard, until_h: float) -> Curve:
    """The survival function of a hazard, at equal distances."""
    from everstep.brain.forecast.hazard import survival

    ages = [until_h * i / _POINTS for i in range(_POINTS + 1)]
    return Curve(name, tuple((age, survival(hazard, age * 3600.0)) for age in ages))


def draw(curves: Sequence[Curve], title: str, out: Path) -> None:
    """Write the picture: one HTML file that needs nothing else, or a PNG.

    Raises:
        BadInput: the file cannot be written, or a PNG is asked for without the extra `plot`.
    """
    try:
        if out.suffix == ".png":
            _png(curves, title, out)
        else:
            out.write_text(page(curves, title), encoding="utf-8")
    except OSError as error:
        text = f"cannot be written: {(error.strerror or str(error)).lower()}"
        raise BadInput(Problem(str(out), "", text, "check the path")) from None


def page(curves: Sequence[Curve], title: str) -> str:
    """The HTML page."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>\n'
        "<style>body { font: 15px/1.5 system-ui, sans-serif; max-width: 900px; margin: 2rem auto; padding: 0 1rem; }"
        " svg { max-width: 100%; height: auto; }</style></head>\n"
        f"<body><h1>{escape(title)}</h1>\n{_svg(curves, title)}</body></html>\n"
    )


def _svg(curves: Sequence[Curve], title: str) -> str:
    until_h = curves[0].points[-1][0]
    drawing = Drawing(_WIDTH, _HEIGHT, title)

    def at(age_h: float, share: float) -> tuple[float, float]:
        x = _LEFT + (_WIDTH - _LEFT - _RIGHT) * age_h / until_h
        return x, _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * share

    for i in range(5):
        share, age_h = i / 4, until_h * i / 4
        drawing.line([at(0.0, share), at(until_h, share)], colour="#dddddd")
        drawing.words(_LEFT - 8, at(0.0, share)[1] + 4, f"{share:.0%}", anchor="end")
        drawing.words(at(age_h, 0.0)[0], _HEIGHT - _BOTTOM + 18, f"{age_h:g} h", anchor="middle")
    drawing.words(_WIDTH / 2, _HEIGHT - 10, "age", anchor="middle")
    drawing.words(_LEFT, _TOP - 22, "still there")
    top = _names_from(curves, until_h)
    for i, one in enumerate(curves):
        colour = _COLOURS[i % len(_COLOURS)]
        drawing.line([at(age_h, share) for age_h, share in one.points], colour=colour, width=2.5 if i == 0 else 1.5)
        drawing.words(_WIDTH - _RIGHT - 4, top + _NAME_HEIGHT * i, one.name, anchor="end", colour=colour)
    return drawing.text()


def _names_from(curves: Sequence[Curve], until_h: float) -> float:
    """Where the names of the curves begin, at the right: above the curves, or below where those stay high."""
    # Names take the last third: there a curve that falls is at its highest where the third begins.
    highest = max(share for one in curves for age_h, share in one.points if age_h >= until_h * 2 / 3)
    above = _TOP + 14
    return above if highest < 0.6 else _HEIGHT - _BOTTOM - 10 - _NAME_HEIGHT * (len(curves) - 1)


def _png(curves: Sequence[Curve], title: str, out: Path) -> None:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        fix = "install it with: pip install 'everstep[plot]', or write .html"
        raise BadInput(Problem("--out", "", "a PNG needs matplotlib", fix)) from None
    figure = Figure(figsize=(8.6, 4.6), layout="constrained")
    axes = figure.subplots()
    for i, one in enumerate(curves):
        ages, shares = zip(*one.points, strict=True)
        axes.plot(ages, shares, label=one.name, color=_COLOURS[i % len(_COLOURS)], linewidth=2.5 if i == 0 else 1.5)
    axes.set(xlabel="age, hours", ylabel="still there", ylim=(0.0, 1.02), title=title)
    axes.legend()
    FigureCanvasAgg(figure)
    figure.savefig(str(out), format="png")
