"""The timeline as SVG, and as PNG where matplotlib is installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from everstep.cli.demo.svg import Drawing
from everstep.cli.demo.timeline import Phase, Timeline

COLOURS = {
    Phase.BOOT: "#9aa5b1",
    Phase.SETUP: "#c4b5fd",
    Phase.IDLE: "#e5e7eb",
    Phase.RESTORE: "#fbbf24",
    Phase.TRAIN: "#22c55e",
}
_ON_DEMAND, _NOTICE, _FAULT, _CURVE = "#1d4ed8", "#b91c1c", "#b91c1c", "#0f172a"
_WIDTH, _LEFT, _RIGHT, _LANE, _GAP, _TOP, _CURVE_HEIGHT = 1120.0, 240.0, 30.0, 18.0, 6.0, 78.0, 150.0


def as_svg(found: Timeline) -> str:
    """The picture: one lane per machine, faults as numbered lines across, progress below."""
    lanes_end = _TOP + len(found.lanes) * (_LANE + _GAP)
    legend_at = lanes_end + _CURVE_HEIGHT + 62
    drawing = Drawing(_WIDTH, legend_at + 18 + 16 * ((len(found.marks) + 1) // 2), "Timeline of the demo")
    scale = (_WIDTH - _LEFT - _RIGHT) / max(found.length_s, 1e-9)

    def x(second: float) -> float:
        return _LEFT + second * scale

    drawing.words(16, 24, "One job, its machines and what happened to them", size=16)
    _legend(drawing)
    for number, lane in enumerate(found.lanes):
        y = _TOP + number * (_LANE + _GAP)
        colour = _ON_DEMAND if lane.market == "on-demand" else "#222222"
        drawing.words(
            _LEFT - 8, y + 13, f"{lane.name}  {lane.zone}  {lane.market}", anchor="end", size=10, colour=colour
        )
        for span in lane.spans:
            tip = f"{lane.name}: {span.phase.value}, {span.start_s:.1f} to {span.end_s:.1f} s"
            drawing.box(
                x(span.start_s), y, (span.end_s - span.start_s) * scale, _LANE, fill=COLOURS[span.phase], tip=tip
            )
        if lane.notice_s is not None:
            drawing.line([(x(lane.notice_s), y - 2), (x(lane.notice_s), y + _LANE + 2)], colour=_NOTICE, width=3)
        if lane.spans and lane.end not in ("", "owner"):
            drawing.words(x(lane.spans[-1].end_s) + 3, y + 13, f"x {lane.end}", colour=_FAULT, size=10)
    _progress(drawing, found, lanes_end + 18, scale)
    for number, mark in enumerate(found.marks, start=1):
        drawing.line(
            [(x(mark.at_s), _TOP - 10), (x(mark.at_s), lanes_end + 18 + _CURVE_HEIGHT)], colour=_FAULT, dash="3 3"
        )
        drawing.words(x(mark.at_s), _TOP - 14, str(number), anchor="middle", colour=_FAULT)
        column, row = (number - 1) % 2, (number - 1) // 2
        drawing.words(_LEFT + column * 430, legend_at + row * 16, f"{number}  {mark.at_s:.0f} s  {mark.text}", size=11)
    return drawing.text()


def _legend(drawing: Drawing) -> None:
    x = 16.0
    for phase, colour in COLOURS.items():
        drawing.box(x, 36, 12, 12, fill=colour)
        drawing.words(x + 17, 46, phase.value, size=11)
        x += 34 + 6.2 * len(phase.value)
    drawing.line([(x + 2, 35), (x + 2, 49)], colour=_NOTICE, width=3)
    drawing.words(x + 10, 46, "notice", size=11)


def _progress(drawing: Drawing, found: Timeline, top: float, scale: float) -> None:
    bottom = top + _CURVE_HEIGHT
    most = max(found.most_steps, 1)
    drawing.line([(_LEFT, top), (_LEFT, bottom), (_WIDTH - _RIGHT, bottom)], colour="#888888")
    drawing.words(_LEFT - 8, top + 10, f"step {found.most_steps}", anchor="end", size=10)
    drawing.words(_LEFT - 8, bottom, "0", anchor="end", size=10)
    for second in range(0, int(found.length_s) + 1, _tick_s(found.length_s)):
        drawing.words(_LEFT + second * scale, bottom + 16, f"{second} s", anchor="middle", size=10)
    for part in found.curve:
        points = [(_LEFT + at * scale, bottom - step / most * (_CURVE_HEIGHT - 8)) for at, step in part]
        drawing.line(points, colour=_CURVE, width=2)


def _tick_s(length_s: float) -> int:
    """A round distance that gives about ten ticks."""
    return next((tick for tick in (1, 2, 5, 10, 20, 30, 60, 120, 300, 600) if length_s / tick <= 12), 3600)


def write_png(found: Timeline, path: Path) -> bool:
    """The same picture by matplotlib; False if that is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        return False
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import patches, pyplot

    figure, (lanes, curve) = pyplot.subplots(
        2,
        1,
        sharex=True,
        figsize=(12, 4.8 + 0.3 * len(found.lanes)),
        height_ratios=[len(found.lanes) + 2, 8],
        layout="constrained",
    )
    for number, lane in enumerate(found.lanes):
        for span in lane.spans:
            lanes.barh(number, span.end_s - span.start_s, left=span.start_s, color=COLOURS[span.phase], height=0.7)
        if lane.notice_s is not None:
            lanes.plot([lane.notice_s] * 2, [number - 0.45, number + 0.45], color=_NOTICE, linewidth=3)
    lanes.set_yticks(
        range(len(found.lanes)), [f"{lane.name} {lane.zone} {lane.market}" for lane in found.lanes], fontsize=7
    )
    lanes.invert_yaxis()
    handles = [patches.Patch(color=colour, label=phase.value) for phase, colour in COLOURS.items()]
    handles.append(patches.Patch(color=_NOTICE, label="notice"))
    notes = [patches.Patch(alpha=0, label=f"{n}  {mark.text}") for n, mark in enumerate(found.marks, start=1)]
    # A legend of two columns fills the first with half of all entries: equal lengths keep colours and faults apart.
    for column in (handles, notes):
        column += [patches.Patch(alpha=0, label=" ")] * (max(len(handles), len(notes)) - len(column))
    figure.legend(handles=[*handles, *notes], loc="outside lower center", ncols=2, fontsize=7, frameon=False)
    for part in found.curve:
        curve.plot([at for at, _ in part], [step for _, step in part], color=_CURVE)
    for number, mark in enumerate(found.marks, start=1):
        for axes in (lanes, curve):
            axes.axvline(mark.at_s, color=_FAULT, linestyle=":", linewidth=1)
        lanes.annotate(
            str(number), (mark.at_s, 1), xycoords=("data", "axes fraction"), color=_FAULT, ha="center", va="bottom"
        )
    curve.set_ylabel("step")
    curve.set_xlabel("seconds since the submission")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return True
