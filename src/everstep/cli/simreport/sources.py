"""Reports from what simulations wrote: JSON of ``sim job``, ``sim world`` and ``sim replay``, CSV of grids."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from everstep.cli.simreport.content import Bar, Lane, Report, Spell
from everstep.model.errors import BadInput, Problem

_REFERENCE = "reference semantics: whole ticks, no boot time, no notice"
_BOTH = "Dashed: the same runs on demand, and the clairvoyant optimum."
_OPTIMAL = ("optimal", "optimal_dp")
_KEY = ("file", "set", "gang", "task_h", "deadline_h", "changeover_h", "start_tick_in_file", "checkpoint_gb")


def read(path: Path, marks: Mapping[tuple[str, ...], tuple[float, float]] | None = None) -> Report:
    """The report of one file.

    Args:
        path: JSON or CSV.
        marks: of a grid, by the columns of a row that name its run: cost on demand, cost of the optimum.

    Raises:
        BadInput: it cannot be read, or no simulation wrote it.
    """
    try:
        if path.suffix == ".csv":
            return _grid(path, marks or {})
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        reason = f"cannot be read: {(error.strerror or str(error)).lower()}"
        raise BadInput(Problem(str(path), "", reason, "check the path")) from None
    except ValueError as error:
        raise BadInput(Problem(str(path), "", f"is not JSON: {error}", "give what `-o json` printed")) from None
    makers = {"sim world": _world, "sim replay": _replay}
    if not isinstance(document, dict):
        raise _strange(path)
    maker = makers.get(str(document.get("report")), _job if "decisions" in document else None)
    if maker is None:
        raise _strange(path)
    try:
        return maker(document)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadInput(Problem(str(path), "", f"is not whole: {error!r}", "run the simulation again")) from None


def _strange(path: Path) -> BadInput:
    return BadInput(Problem(str(path), "", "is no output of a simulation", "give what `sim job -o json` printed"))


# --- One job ----------------------------------------------------------------------------------------------------------


def _job(told: Mapping[str, Any]) -> Report:
    usd, finish = float(told["cost_usd"]), told["finish_h"]
    bar = Bar(told["policy"], 1, usd, usd, usd, finish, int(not told["deadline_met"]))
    end_h = finish if finish is not None else max((d["at_h"] for d in told["decisions"]), default=0.0)
    return Report(
        title=f"One job under {told['policy']}: ${usd:.2f}",
        mode=_REFERENCE,
        traces=(told["trace"],) if told.get("trace") else (),
        sources=(),
        bars=(bar,),
        on_demand_usd=told["on_demand_usd"],
        optimal_usd=told["optimal_usd"],
        marks=_BOTH,
        values={},
        unit="USD",
        lanes=(Lane(told["policy"], _spells_of(told["decisions"], end_h)),),
        notes=(f"{told['spot_exits']} spot exits, {told['moves']} moves, {len(told['decisions'])} decisions.",),
    )


def _spells_of(decisions: Sequence[Mapping[str, Any]], end_h: float) -> tuple[Spell, ...]:
    """Stretches between decisions in which the same thing ran."""
    spells: list[Spell] = []
    for number, decision in enumerate(decisions):
        until = decisions[number + 1]["at_h"] if number + 1 < len(decisions) else end_h
        mode, place = decision["mode"], decision["place"] or ""
        if mode == "idle" or until <= decision["at_h"]:
            continue
        last = spells[-1] if spells else None
        if last is not None and (last.kind, last.place, last.end_h) == (mode, place, decision["at_h"]):
            spells[-1] = Spell(last.start_h, until, mode, place)
        else:
            spells.append(Spell(decision["at_h"], until, mode, place))
    return tuple(spells)


# --- The realistic simulator ------------------------------------------------------------------------------------------


def _world(told: Mapping[str, Any]) -> Report:
    results: Sequence[Mapping[str, Any]] = told["results"]
    policies = list(dict.fromkeys(r["policy"] for r in results))
    groups = {policy: [r for r in results if r["policy"] == policy] for policy in policies}
    marks = told.get("marks") or {}
    first = results[0]["start_tick"]
    return Report(
        title=f"{told['task_h']:g} h of work on {told['gang']} machine{'s' if told['gang'] > 1 else ''}",
        mode=told["mode"],
        traces=tuple(told["traces"]),
        sources=tuple(told["sources"]),
        bars=tuple(_bar(policy, group, _overheads(group)) for policy, group in groups.items()),
        on_demand_usd=marks.get("on_demand_usd"),
        optimal_usd=marks.get("optimal_usd"),
        marks=marks.get("text", ""),
        values={policy: [r["cost_usd"] for r in group] for policy, group in groups.items()},
        unit="USD",
        lanes=tuple(lane for r in results if r["start_tick"] == first for lane in _lanes(r)),
        notes=_notes(told),
    )


def _notes(told: Mapping[str, Any]) -> tuple[str, ...]:
    deadline = told["deadline_h"]
    due = "no deadline" if deadline is None else f"a deadline of {deadline:g} h"
    plain = ", ".join(f"{k} {v:g}" for k, v in told["conditions"].items() if isinstance(v, int | float))
    return (f"With {due}. Conditions: {plain}.",)


def _overheads(group: Sequence[Mapping[str, Any]]) -> str:
    causes = group[0]["overhead_h"]
    means = {cause: sum(r["overhead_h"][cause] for r in group) / len(group) for cause in causes}
    return ", ".join(f"{cause} {hours:.2f} h" for cause, hours in means.items() if hours >= 0.005)


def _lanes(result: Mapping[str, Any]) -> list[Lane]:
    slots = list(dict.fromkeys(spell["slot"] for spell in result["spells"]))
    lanes = []
    for slot in slots:
        own = [s for s in result["spells"] if s["slot"] == slot]
        label = result["policy"] if len(slots) == 1 else f"{result['policy']} {slot}"
        spells = (Spell(s["start_h"], s["end_h"], s["market"], s["zone"], s["end"]) for s in own)
        lanes.append(Lane(label, tuple(spells)))
    return lanes


def _bar(policy: str, group: Sequence[Mapping[str, Any]], more: str = "") -> Bar:
    costs = [float(r["cost_usd"]) for r in group]
    finished = [float(r["finish_h"]) for r in group if r["finish_h"] not in (None, "")]
    return Bar(
        policy=policy,
        runs=len(group),
        usd=sum(costs) / len(costs),
        lowest_usd=min(costs),
        highest_usd=max(costs),
        finish_h=sum(finished) / len(finished) if finished else None,
        missed=sum(r["deadline_met"] not in (True, "true") for r in group),
        more=more,
    )


def _replay(told: Mapping[str, Any]) -> Report:
    groups = {row["policy"]: list(row["results"].values()) for row in told["policies"]}
    return Report(
        title=f"Replay of {told['journal']}",
        mode=told["mode"],
        traces=(told["journal"],),
        sources=(),
        bars=tuple(_bar(policy, group) for policy, group in groups.items()),
        on_demand_usd=None,
        optimal_usd=None,
        marks="Mean cost of a job; the first row is the bill as it was.",
        values={policy: [r["cost_usd"] for r in group] for policy, group in groups.items()},
        unit="USD",
        notes=(
            f"{told['pool_h']:.1f} pool-hours of spot, {100 * told['unseen_share']:.0f} % observed by nobody: "
            f"{told['filled']}.",
        ),
    )


# --- Grids ------------------------------------------------------------------------------------------------------------


def key_of(row: Mapping[str, str]) -> tuple[str, ...]:
    """What names a run of a grid apart from its policy."""
    return tuple(row.get(column) or "" for column in _KEY)


def _grid(path: Path, computed: Mapping[tuple[str, ...], tuple[float, float]]) -> Report:
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    if not rows or not {"policy", "cost_usd", "deadline_met", "finish_h"} <= rows[0].keys():
        raise BadInput(Problem(str(path), "", "is no output of `sim grid` or `sim zones`", "give their --out file"))
    try:
        groups: dict[str, list[dict[str, str]]] = {}
        for row in rows:
            groups.setdefault(row["policy"], []).append(row)
        steady, best = _marks(rows, computed)
        bars = tuple(_bar(policy, group) for policy, group in groups.items())
        whole = bool(best) and all(key_of(row) in best for row in rows)
        values = {
            policy: [float(r["cost_usd"]) / best[key_of(r)] if whole else float(r["cost_usd"]) for r in group]
            for policy, group in groups.items()
        }
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise BadInput(Problem(str(path), "", f"a cell is not what a grid writes: {error}")) from None
    traces = tuple(dict.fromkeys(row.get("file") or row.get("set") or "" for row in rows))
    return Report(
        title=f"{len(rows)} runs of {len(groups)} polic{'y' if len(groups) == 1 else 'ies'}",
        mode=_REFERENCE,
        traces=traces,
        sources=(),
        bars=bars,
        on_demand_usd=_mean(steady),
        optimal_usd=_mean(best),
        marks=_BOTH
        if steady and best
        else "The optimum and on-demand are shown where the file, or --traces, has them.",
        values=values,
        unit="cost over the optimum" if whole else "USD",
    )


def _mean(costs: Mapping[tuple[str, ...], float]) -> float | None:
    return sum(costs.values()) / len(costs) if costs else None


def _marks(
    rows: Sequence[Mapping[str, str]], computed: Mapping[tuple[str, ...], tuple[float, float]]
) -> tuple[dict[tuple[str, ...], float], dict[tuple[str, ...], float]]:
    """Cost on demand and of the optimum by run: computed, or from rows of those policies."""
    steady = {key: pair[0] for key, pair in computed.items()}
    best = {key: pair[1] for key, pair in computed.items()}
    for row in rows:
        if row["policy"] == "on_demand":
            steady.setdefault(key_of(row), float(row["cost_usd"]))
        elif row["policy"] in _OPTIMAL:
            best.setdefault(key_of(row), float(row["cost_usd"]))
    return steady, best
