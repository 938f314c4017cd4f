"""Estimates against what happened: is the outcome between P10 and P90 in 75-85 % of held-back windows? And how fast?

``python -m benchmarks estimate -- --traces DIR [--policy P] [--futures N] [--every H]``: each trace below DIR is cut
into windows; what comes before a window is what was seen, the window itself what happens. Both bill whole ticks, of
different lengths: an outcome counts as inside up to one tick of each beyond P10 or P90. Windows of a trace overlap.
Without traces only the speed is measured.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from benchmarks.runs import report
from everstep.market.availability import Series, read_folder
from everstep.sim.estimate import Ask, Pool, draws, entrant, estimate, horizon_s, names, sighted
from everstep.sim.futures import OwnForecast, Sight
from everstep.sim.reference.drive import drive
from everstep.sim.reference.market import ON_DEMAND_USD_PER_H, SPOT_USD_PER_H, Job, Market, Zone

_H = 3600.0
_POOL = Pool("zone", "region", SPOT_USD_PER_H, ON_DEMAND_USD_PER_H)
_SEEN_H = 72.0
"""Least history before a window."""
_GOAL = (0.75, 0.85)
_GOAL_S = 10.0
_COMMAND = "python -m benchmarks estimate"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks estimate --")
    parser.add_argument("--traces", type=Path)
    parser.add_argument("--policy", default="uniform_progress")
    parser.add_argument("--futures", type=int, default=100)
    parser.add_argument("--every", type=float, default=12.0, help="hours from one window to the next")
    given = parser.parse_args(arguments)
    results = list(_speed())
    if given.traces is not None:
        results += _calibration(given.traces, given.policy, given.futures, given.every)
    return 0 if all(result.get("reached", True) for result in results) else 1


def _speed() -> Iterator[dict[str, object]]:
    """Each policy over a thousand futures of a month, drawing them included."""
    ask = Ask(720 * _H, 720.0, (_POOL,))
    began, cpu = time.perf_counter(), time.process_time()
    worlds = draws(ask, OwnForecast([Sight()]), 1000, horizon_s(ask, [960 * _H]), seed=0)
    drawn_s, drawn_cpu_s = time.perf_counter() - began, time.process_time() - cpu
    for policy in names():
        began, cpu = time.perf_counter(), time.process_time()
        estimate(ask, worlds, policy, 960 * _H)
        took_s = drawn_s + time.perf_counter() - began
        yield report(
            "estimate", f"a month, 1,000 futures, one zone, {policy}", [took_s], unit="s", command=_COMMAND,
            goal=_GOAL_S, drawn_s=drawn_s, cpu_s=drawn_cpu_s + time.process_time() - cpu,
        )  # fmt: skip


def _calibration(traces: Path, policy: str, futures: int, every_h: float) -> list[dict[str, object]]:
    inside: dict[str, list[bool]] = defaultdict(list)
    for folder in sorted({path.parent for path in traces.rglob("*.json")}):
        for series in read_folder(folder):
            for gang in sorted({1, series.capacity}) if series.capacity <= 16 and "node" in folder.name else [1]:
                inside[folder.name] += _windows(series, gang, policy, (futures, every_h))
    every = [one for found in inside.values() for one in found]
    results = []
    for name, found in [*inside.items(), ("all", every)]:
        if found:
            share = sum(found) / len(found)
            command = f"{_COMMAND} -- --traces DIR --policy {policy} --futures {futures} --every {every_h:g}"
            told = report(
                "estimate", f"between P10 and P90: {name}", [share], unit="share", command=command, windows=len(found)
            )
            results.append(told)
    results[-1]["reached"] = _GOAL[0] <= sum(every) / len(every) <= _GOAL[1]
    return results


def _windows(series: Series, gang: int, policy: str, how: tuple[int, float]) -> list[bool]:
    futures, every_h = how
    up, gap_s = series.up(gang), series.gap_s
    work_s, deadline_s, changeover_s = 48 * _H, 60 * _H, 720.0
    # The world is run in ticks of the trace, the estimate in its own: both bill whole ticks.
    ask = Ask(work_s, changeover_s, (_POOL,))
    found = []
    start = round(_SEEN_H * _H / gap_s)
    while (len(up) - start) * gap_s >= deadline_s:
        worlds = draws(
            ask, OwnForecast([sighted(up[:start], gap_s)]), futures, horizon_s(ask, [deadline_s]), seed=start
        )
        span = estimate(ask, worlds, policy, deadline_s).cost_usd
        market = Market([Zone("zone", "region", up, SPOT_USD_PER_H, ON_DEMAND_USD_PER_H)], gap_s)
        job = Job(work_s, deadline_s - changeover_s, changeover_s, start)
        cost = drive(market, job, entrant(policy, deadline=True)).cost_usd
        tick_usd = ON_DEMAND_USD_PER_H * (gap_s + ask.tick_s) / _H
        found.append(span.p10 - tick_usd <= cost <= span.p90 + tick_usd)
        start += round(every_h * _H / gap_s)
    return found
