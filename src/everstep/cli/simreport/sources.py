"""Reports from what simulations wrote: JSON of ``sim job``, ``sim world`` and ``sim replay``, CSV of grids."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from everstep.cli.simreport.content import Bar, Lane, Report, Spell
from everstep.market.documents import read_document
from everstep.market.rows import MOST, header, rows
from everstep.model.errors import BadInput, Problem

_REFERENCE = "reference semantics: whole ticks, no boot time, no notice"
_BOTH = "Dashed: the same runs on demand, and the clairvoyant optimum."
_OPTIMAL = ("optimal", "optimal_dp")
_GRID = ("policy", "cost_usd", "deadline_met", "finish_h")
_KEY = ("file", "set", "gang", "task_h", "deadline_h", "changeover_h", "start_tick_in_file", "checkpoint_gb")


def read(path: Path, marks: Mapping[tuple[str, ...], tuple[float, float]] | None = None) -> Report:
    """The report of one file.

    Args:
        path: JSON or CSV.
        marks: of a grid, by the columns of a row that name its run: cost on demand, cost of the optimum.

    Raises:
        BadInput: it cannot be read, or no simulation wrote it.
    """
    if path.suffix == ".csv":
        return _grid(path, marks or {})
    document, _ = read_document(path)
    makers = {"sim world": _world, "sim replay": _replay}
    maker = makers.get(str(document.get("report")), _job if "decisions" in document else None)
    if maker is None:
        text = "is no output of a simulation"
        raise BadInput(Problem(str(path), "", text, "give what `sim job -o json` printed"))
    try:
        report = maker(document)
        _check(report)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise BadInput(Problem(str(path), "", f"is not whole: {error!r}", "run the simulation again")) from None
    return report


def _check(report: Report) -> None:
    """Raises ValueError for a figure that cannot be drawn, and for names that are no text."""
    figures: list[Any] = [report.on_demand_usd or 0.0, report.optimal_usd or 0.0]
    words: list[Any] = [report.title, report.mode, report.marks, *report.traces, *report.sources, *report.values]
    for bar in report.bars:
        figures += [bar.usd, bar.lowest_usd, bar.highest_usd, bar.finish_h or 0.0]
        words.append(bar.policy)
    for values in report.values.values():
        figures += values
    for lane in report.lanes:
        words.append(lane.label)
        for spell in lane.spells:
            figures += [spell.start_h, spell.end_h]
            words += [spell.kind, spell.place, spell.end]
    for figure in figures:
        if not isinstance(figure, int | float) or not abs(figure) <= MOST:
            raise ValueError(f"expected a number, found {figure!r}")
    for word in words:
        if not isinstance(word, str):
            raise ValueError(f"expected text, found {word!r}")


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
    conditions = {k: str(v).lower() if isinstance(v, bool) else v for k, v in told["conditions"].items()}
    plain = ", ".join(
        f"{k} {v if isinstance(v, str) else format(v, 'g')}"
        for k, v in conditions.items()
        if isinstance(v, str | int | float)
    )
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


def table(path: Path) -> list[dict[str, str]]:
    """The rows of a grid, whose figures are checked; raises Malformed."""
    names, found = header(path), []
    for row in rows(path, _GRID):
        row.number("cost_usd", "USD, 0 or more")
        row.flag("deadline_met")
        if row.text("finish_h"):
            row.number("finish_h", "hours, 0 or more")
        found.append({name: row.text(name) for name in names})
    return found


def _grid(path: Path, computed: Mapping[tuple[str, ...], tuple[float, float]]) -> Report:
    runs = table(path)
    groups: dict[str, list[dict[str, str]]] = {}
    for run in runs:
        groups.setdefault(run["policy"], []).append(run)
    keys = set(map(key_of, runs))
    steady, best = _marks(runs, computed)
    on_demand_usd, optimal_usd = _mean(steady, keys), _mean(best, keys)
    whole = optimal_usd is not None and all(best[key] > 0 for key in keys)
    values = {
        policy: [float(r["cost_usd"]) / (best[key_of(r)] if whole else 1.0) for r in group]
        for policy, group in groups.items()
    }
    return Report(
        title=f"{len(runs)} runs of {len(groups)} polic{'y' if len(groups) == 1 else 'ies'}",
        mode=_REFERENCE,
        traces=tuple(dict.fromkeys(run.get("file") or run.get("set") or "" for run in runs)),
        sources=(),
        bars=tuple(_bar(policy, group) for policy, group in groups.items()),
        on_demand_usd=on_demand_usd,
        optimal_usd=optimal_usd,
        marks=_BOTH
        if None not in (on_demand_usd, optimal_usd)
        else "The optimum and on-demand are shown where the file, or --traces, has them for every run.",
        values=values,
        unit="cost over the optimum" if whole else "USD",
    )


def _mean(costs: Mapping[tuple[str, ...], float], runs: Collection[tuple[str, ...]]) -> float | None:
    """None where a run has none: the mean of some would be held against the mean of all."""
    return sum(costs[run] for run in runs) / len(runs) if costs.keys() >= set(runs) else None


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
