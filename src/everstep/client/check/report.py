"""The report of a check: one JSON object, one HTML page."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any

from everstep.client.check.checking import Checked
from everstep.client.check.drill import Launched
from everstep.client.check.verdict import Verdict
from everstep.model.codec import to_dict
from everstep.model.units import format_duration, format_size

JSON_NAME, PAGE_NAME = "report.json", "report.html"

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1120px; margin: 2rem auto; padding: 0 1rem; color: #222; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; } td, th { padding: .15rem .9rem .15rem 0; text-align: left; vertical-align: top; }
td.n { text-align: right; font-variant-numeric: tabular-nums; } code, pre { font-size: .85em; }
pre { background: #f5f5f4; padding: .6rem .9rem; } .bad { color: #b91c1c; } .good { color: #15803d; }
"""


def as_json(checked: Checked) -> dict[str, Any]:
    """The report as plain data. Keys that could not be measured are null."""
    judgement, costs, drilled = checked.judgement, checked.costs, checked.drilled
    first = judgement.first_difference
    return {
        "verdict": str(checked.verdict),
        "reason": judgement.reason,
        "kills": len(drilled.kills) if drilled is not None else 0,
        "exact": checked.verdict is Verdict.EXACT,
        "first_difference": None if first is None else to_dict(first),
        "resume_s": dict(costs.resume_s) if costs is not None else None,
        "save_s": costs.save_s if costs is not None else None,
        "stall_s": costs.stall_s if costs is not None else None,
        "state_bytes": costs.state_bytes if costs is not None else None,
        "lost_steps": list(costs.lost_steps) if costs is not None else [],
        "weights_sha256_plain": checked.weights[0],
        "weights_sha256_resumed": checked.weights[1],
        "checkpoint": dict(costs.checkpoint) if costs is not None else None,
        "overhead": costs.overhead if costs is not None else None,
        "rate_per_h": checked.settings.rate_per_h,
        "command": checked.command.text,
        "mode": str(checked.mode),
        "nproc": checked.settings.nproc,
        "steps": checked.steps,
        "whole": checked.whole,
        "plain_s": round(checked.plain_s, 3),
        "step_s": round(checked.step_s, 6),
        "seed": checked.settings.seed,
        "differences": [{"part": str(d.part), "object": d.name, "what": d.what} for d in judgement.differences],
        "not_compared": list(checked.not_compared),
        "launches": [_launch(launch) for launch in drilled.launches] if drilled is not None else [],
        "changed_meanwhile": checked.disturbed,
    }


def _launch(launch: Launched) -> dict[str, Any]:
    return {
        "number": launch.number,
        "from_step": launch.base,
        "steps": launch.steps,
        "killed": None if launch.kill is None else str(launch.kill.how),
        "at_step": None if launch.kill is None else launch.kill.position,
        "differs_from_step": launch.diverged_at,
        "exit_code": launch.exit_code,
        "seconds": round(launch.seconds, 3),
        "moments_s": {name: round(at, 4) for name, at in launch.moments.items()},
        "warnings": list(launch.facts.warnings),
    }


def write_report(report: Mapping[str, Any], folder: Path) -> Path:
    """Write ``report.json`` and ``report.html`` into a folder; the path of the page."""
    (folder / JSON_NAME).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    page = folder / PAGE_NAME
    page.write_text(_page(report), encoding="utf-8")
    return page


def told(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The report as people read it, in the order of their interest; empty values are unknown."""
    first = report["first_difference"]
    return [
        ("verdict", report["verdict"]),
        ("because", report["reason"]),
        ("differs in", f"{first['object']}: {first['what']}" if first else ""),
        ("cause", first["likely_cause"] if first else ""),
        ("looked at", _scope(report)),
        ("time to resume", _resume(report["resume_s"])),
        ("a save", _save(report)),
        ("lost steps", _lost(report["lost_steps"])),
        ("overhead", _overhead(report)),
        ("not compared", ", ".join(report["not_compared"])),
        ("changed meanwhile", report["changed_meanwhile"] or ""),
    ]


def checkpoint_block(report: Mapping[str, Any]) -> str:
    """The recommended lines of a task file; empty where there is no advice."""
    if report["verdict"] not in (Verdict.EXACT, Verdict.NOT_EXACT) or not report["checkpoint"]:
        return ""
    return "checkpoint:\n" + "".join(f"  {key}: {value}\n" for key, value in report["checkpoint"].items())


def _scope(report: Mapping[str, Any]) -> str:
    steps = f"{report['steps']} steps" if report["whole"] else f"the first {report['steps']} steps"
    return (
        f"{steps} in {report['plain_s']:.1f} s, {1000 * report['step_s']:.1f} ms a step; killed {report['kills']} times"
    )


def _resume(parts: Mapping[str, float] | None) -> str:
    if not parts:
        return ""
    named = (f"{name.replace('_', ' ')} {seconds:.2f}" for name, seconds in parts.items() if name != "total")
    return f"{parts['total']:.2f} s: {', '.join(named)}"


def _save(report: Mapping[str, Any]) -> str:
    if report["save_s"] is None:
        return ""
    stall = "" if report["stall_s"] is None else f", training stands still for {1000 * report['stall_s']:.1f} ms of it"
    return f"{format_size(report['state_bytes'])} in {1000 * report['save_s']:.1f} ms{stall}"


def _lost(lost: list[int | None]) -> str:
    return ", ".join("unknown" if count is None else str(count) for count in lost) + (" (per kill)" if lost else "")


def _overhead(report: Mapping[str, Any]) -> str:
    if report["overhead"] is None:
        return ""
    mean = format_duration(3600.0 / report["rate_per_h"])
    return f"{100 * report['overhead']:.2f} % at {report['rate_per_h']:g} preemptions an hour (one in {mean})"


# --- the page ---------------------------------------------------------------------------------------------------------


def _page(report: Mapping[str, Any]) -> str:
    kind = "good" if report["exact"] else "bad"
    weights = "".join(_row(name, report[f"weights_sha256_{name}"]) for name in ("plain", "resumed"))
    block = checkpoint_block(report)
    advice = f"<h2>For the task file</h2><pre>{escape(block)}</pre>" if block else ""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>everstep check: {escape(report["verdict"])}</title><style>{_STYLE}</style></head><body>
<h1><span class="{kind}">{escape(report["verdict"])}</span></h1>
<p><code>{escape(report["command"])}</code></p>
<table>{"".join(_row(name, value) for name, value in told(report)[1:] if value)}</table>
{advice}
{_table("Launches", _LAUNCH_COLUMNS, _launch_rows(report))}
{_table("What differs", ("part", "object", "how"), _difference_rows(report))}
<h2>Weights</h2><table>{weights}</table></body></html>
"""


_LAUNCH_COLUMNS = ("launch", "from step", "steps", "killed", "at step", "exit code", "seconds")
_SHOWN_DIFFERENCES = 50


def _row(name: str, value: str | None) -> str:
    return f"<tr><th>{escape(name)}</th><td>{escape(value or 'unknown')}</td></tr>"


def _launch_rows(report: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for launch in report["launches"]:
        values = (launch[key] for key in ("number", "from_step", "steps", "killed", "at_step", "exit_code", "seconds"))
        yield tuple("" if value is None else str(value) for value in values)


def _difference_rows(report: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    found = report["differences"]
    for difference in found[:_SHOWN_DIFFERENCES]:
        yield difference["part"], difference["object"], difference["what"]
    if len(found) > _SHOWN_DIFFERENCES:
        yield "", f"and {len(found) - _SHOWN_DIFFERENCES} more in {JSON_NAME}", ""


def _table(title: str, columns: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    return f"<h2>{escape(title)}</h2><table><tr>{head}</tr>{body}</table>" if body else ""
