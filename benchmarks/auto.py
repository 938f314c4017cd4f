"""How good `auto` is on recorded traces: beside the exact optimum, `uniform_progress`, `utility` and failover.

``python -m benchmarks auto -- --data DIR`` where DIR holds the folders of traces and ``peer_costs_dev.csv`` (columns
set, file, gang, task_h, deadline_h, changeover_h, start_tick_in_file, policy, cost_usd), as beside this repository.

One zone: every window of that table, by cell (set x deadline x changeover). Many zones: a job of 40 h with a changeover
of 0.2 h and a checkpoint of 50 GB, deadlines of 44 and 60 h, over all zones of a set at once, starts spread evenly.
The gap is the mean cost over the mean cost of the optimum, less one. Intervals: bootstrap over windows, 95 %.
``--unwatched``: nothing is known of a zone before the job begins. Without the data, only the speed is measured.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.runs import report
from everstep.brain.forecast.availability import BUILT_IN
from everstep.brain.pools import PoolBook, see_offers
from everstep.brain.select import SELECTORS, Need, Outlook
from everstep.brain.select.auto.problem import Problem
from everstep.brain.select.auto.programme import solve
from everstep.brain.select.course import Course, Memory, Policy, Situation
from everstep.brain.select.policies import POLICIES
from everstep.market.availability import read_series
from everstep.model.gang import Slot
from everstep.model.ids import JobId
from everstep.model.offers import MachineRequirement, MachineType, Offer
from everstep.model.offers import Market as Kind
from everstep.model.task import SpotMode
from everstep.sim.reference.drive import Outcome, drive
from everstep.sim.reference.egress import read_egress
from everstep.sim.reference.grid import Batch, market_of
from everstep.sim.reference.market import Job, Market, Zone
from everstep.sim.reference.optimal import best_plan
from everstep.sim.reference.rows import Task

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "spot_availability"
GOALS = {"all": 7.0, "0.02": 3.0, "0.2": 9.0, "0.4": 13.0}
"""Mean gap in per cent, over all windows and by changeover."""
ZONE_GOALS = {"gcp-h100x1-2025-10": 3.0, "aws-v100x1-2023-02": 8.0}
LEAST_CELL = 16
_COMMAND = "python -m benchmarks auto"
Costs = NDArray[np.float64]


@dataclass(frozen=True)
class Window:
    """One published window: what it costs with whom."""

    traces: str
    file: str
    gang: int
    job: Job
    deadline: str
    changeover: str
    known: dict[str, float]

    @property
    def cell(self) -> tuple[str, str, str]:
        return self.traces, self.deadline, self.changeover


def windows(folder: Path) -> list[Window]:
    """All windows of the table, in its order."""
    found: dict[tuple[str, ...], Window] = {}
    with (folder / "peer_costs_dev.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            deadline, changeover = row["deadline_h"], row["changeover_h"]
            key = row["file"], row["gang"], row["task_h"], deadline, changeover, row["start_tick_in_file"]
            if key not in found:
                hours = [float(row[name]) * 3600.0 for name in ("task_h", "deadline_h", "changeover_h")]
                job = Job(hours[0], hours[1], hours[2], start_tick=int(row["start_tick_in_file"]))
                found[key] = Window(row["set"], row["file"], int(row["gang"]), job, deadline, changeover, {})
            found[key].known[row["policy"]] = float(row["cost_usd"])
    return list(found.values())


class Zones:
    """Markets of one zone each, read once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read: dict[tuple[str, int], Market] = {}

    def of(self, window: Window) -> Market:
        """The market of a window."""
        key = window.file, window.gang
        if key not in self._read:
            series = read_series(self.folder / window.file)
            self._read[key] = Market([Zone(series.zone, series.region, series.up(window.gang))], series.gap_s)
        return self._read[key]


def outcomes(chosen: Sequence[Window], zones: Zones, policy: Policy, *, watched: bool = True) -> list[Outcome]:
    """Of each window under a policy."""
    asked = policy if watched else Forgetful(policy)
    return [drive(zones.of(window), window.job, asked) for window in chosen]


def least(chosen: Sequence[Window], zones: Zones) -> Costs:
    """The optimum of each window; reckoned where the table lacks it."""
    known = [
        window.known["optimal_dp"] if "optimal_dp" in window.known else best_plan(zones.of(window), window.job).cost_usd
        for window in chosen
    ]
    return np.array(known)


def gap(costs: Costs, best: Costs) -> float:
    """Per cent above the optimum, in the mean."""
    return float(100.0 * (costs.mean() / best.mean() - 1.0))


def interval(costs: Costs, best: Costs, *, of_ratios: bool = False, draws: int = 2000) -> tuple[float, float]:
    """95 % by bootstrap over pairs: of the gap in per cent, or of the mean ratio."""
    rng = np.random.default_rng(0)
    picks = rng.integers(0, len(costs), (draws, len(costs)))
    if of_ratios:
        drawn = (costs / best)[picks].mean(axis=1)
    else:
        drawn = 100.0 * (costs[picks].mean(axis=1) / best[picks].mean(axis=1) - 1.0)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(low), float(high)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks auto --")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--every", type=int, default=1, help="take every Nth window of one zone")
    parser.add_argument("--starts", type=int, default=60, help="per set and deadline over many zones; 0 = none")
    parser.add_argument("--unwatched", action="store_true")
    given = parser.parse_args(arguments)
    results = _speed()
    if (given.data / "peer_costs_dev.csv").is_file():
        results += one_zone(given.data, given.every, watched=not given.unwatched)
        if given.starts:
            results += many_zones(given.data, given.starts, watched=not given.unwatched)
    else:
        print(f"auto: {given.data} holds no peer_costs_dev.csv: the quality is not measured", file=sys.stderr)
    return 0 if all(result.get("reached", True) for result in results) else 1


def one_zone(folder: Path, every: int, *, watched: bool) -> list[dict[str, Any]]:
    """Reports by changeover and by cell; a table on stderr."""
    zones = Zones(folder)
    chosen = windows(folder)[::every]
    ran = outcomes(chosen, zones, POLICIES["auto"], watched=watched)
    costs, best = np.array([one.cost_usd for one in ran]), least(chosen, zones)
    even = np.array([window.known["uniform_progress"] for window in chosen])
    more: dict[str, Any] = {"command": f"{_COMMAND} -- --every {every}", "watched": watched}
    results = []
    for name, goal in GOALS.items():
        part = np.array([name in ("all", window.changeover) for window in chosen])
        gaps: dict[str, Any] = {"windows": int(part.sum()), "interval": interval(costs[part], best[part])}
        case = "one zone, gap" if name == "all" else f"one zone, gap, changeover {name} h"
        results.append(report("auto", case, [gap(costs[part], best[part])], unit="%", goal=goal, **gaps, **more))
    ratio = float((costs / even).mean())
    low, high = interval(costs, even, of_ratios=True)
    paired: dict[str, Any] = {"interval": (low, high), "reached_bound": high < 1.0}
    results.append(report("auto", "one zone, over uniform_progress", [ratio], unit="", goal=0.97, **paired, **more))
    missed = sum(not one.deadline_met for one in ran)
    results.append(report("auto", "one zone, deadlines missed", [missed], unit="jobs", goal=0.5, **more))
    dearer = _cells(chosen, costs, best, even, least_cell=LEAST_CELL if every == 1 else 1)
    results.append(report("auto", "cells dearer than uniform_progress", [dearer], unit="cells", goal=0.5, **more))
    return results


def _cells(chosen: Sequence[Window], costs: Costs, best: Costs, even: Costs, *, least_cell: int) -> int:
    """Prints the table; how many cells are dearer than `uniform_progress`."""
    cells: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for number, window in enumerate(chosen):
        cells[window.cell].append(number)
    print(f"{'SET':<38}{'DEADLINE':>9}{'CHANGEOVER':>11}{'WINDOWS':>8}{'AUTO %':>8}{'UP %':>7}", file=sys.stderr)
    dearer = 0
    for (traces, deadline, changeover), at in cells.items():
        figures = f"{len(at):>8}{gap(costs[at], best[at]):>8.1f}{gap(even[at], best[at]):>7.1f}"
        print(f"{traces:<38}{deadline:>9}{changeover:>11}{figures}", file=sys.stderr)
        dearer += len(at) >= least_cell and bool(costs[at].mean() > even[at].mean())
    return dearer


def many_zones(folder: Path, starts: int, *, watched: bool) -> list[dict[str, Any]]:
    """Reports by set: the gap of `auto`, and of others, over both deadlines together."""
    transfer = read_egress(folder / "egress" / "aws_egress_pricing.csv")
    entrants = {name: POLICIES[name] for name in ("auto", "utility", "failover", "uniform_progress")}
    entrants["auto"] = entrants["auto"] if watched else Forgetful(entrants["auto"])
    results = []
    for traces, goal in ZONE_GOALS.items():
        task = Task(0, "", traces, 1, Job(1.0, 1.0, 1.0), "auto", 50.0)
        market = market_of(task, Batch(folder, (task,), egress=transfer))
        jobs = [
            Job(40 * 3600.0, deadline_h * 3600.0, 720.0, start_tick=round(at), seed=round(at))
            for deadline_h in (44, 60)
            for at in np.linspace(0, market.ticks - deadline_h * 3600.0 / market.tick_s - 1, starts)
        ]
        best = np.array([best_plan(market, job).cost_usd for job in jobs])
        costs = {
            name: np.array([drive(market, job, policy).cost_usd for job in jobs]) for name, policy in entrants.items()
        }
        for name, usd in costs.items():
            halves = [gap(usd[part], best[part]) for part in (slice(0, starts), slice(starts, None))]
            more: dict[str, Any] = {
                "interval": interval(usd, best),
                "by_deadline": halves,
                "jobs": len(jobs),
                "watched": watched,
            }
            if name == "auto":
                others = {other: interval(usd, costs[other]) for other in costs if other != name}
                more |= {"goal": goal, "against": others}
            command = f"{_COMMAND} -- --starts {starts}"
            results.append(report("auto", f"{traces}, {name}", [gap(usd, best)], unit="%", command=command, **more))
    return results


class Forgetful:
    """A policy that is told nothing of the past (it is no ``Learner``), and how long each of its decisions took."""

    guarded = True

    def __init__(self, policy: Policy) -> None:
        self.policy, self.taken_ms = policy, list[float]()

    def steer(self, situation: Situation, memory: Memory) -> Course:
        """See ``Policy``."""
        began = time.perf_counter()
        course = self.policy.steer(situation, memory)
        self.taken_ms.append((time.perf_counter() - began) * 1000)
        return course


def _speed() -> list[dict[str, Any]]:
    """A solution of the programme, and decisions over 13 zones that flip at random."""
    hours = 3600.0
    solved = []
    for run in range(9):
        began = time.perf_counter()
        # Another problem each time: solutions are kept.
        solve(Problem(BUILT_IN, 0.97 + run * 1e-6, 3.06, 60 * hours, 12 * hours, 720.0))
        solved.append((time.perf_counter() - began) * 1000)
    rng = np.random.default_rng(1)
    ups = [np.repeat(rng.random(60) < 0.6, 10) for _ in range(13)]
    market = Market([Zone(f"z{n}", f"r{n % 5}", up, 1.0 + n / 50) for n, up in enumerate(ups)], 600.0)
    timed = Forgetful(POLICIES["auto"])
    drive(market, Job(48 * hours, 60 * hours, 720.0, start_tick=100), timed)
    taken, problems = _live(ups)
    more: dict[str, Any] = {"command": _COMMAND, "solved": problems}
    return [
        report("auto", "a solution, deadline in 60 h", solved, unit="ms", command=_COMMAND, goal=50.0),
        report("auto", "a decision, 13 zones", timed.taken_ms, unit="ms", command=_COMMAND, goal=5.0),
        report("auto", "a live decision, 13 zones, 300 jobs of all kinds", taken, unit="ms", goal=5.0, **more),
    ]


def _live(ups: Sequence[NDArray[np.bool_]]) -> tuple[list[float], int]:
    """Milliseconds of each of 300 live decisions, each for another job, and how often the programme was solved."""
    machine, now = MachineType("p3.2xlarge", "V100", 1, 8, 61), 1_000_000.0
    book, offers = PoolBook(), list[Offer]()
    for tick in range(len(ups[0])):
        offers = [
            Offer("c", f"r{n % 5}", f"z{n}", machine, Kind.SPOT, 1.0 + n / 50, 3.0, now, "", available=int(up[tick]))
            for n, up in enumerate(ups)
        ]
        book = see_offers(book, offers, {}, now + 600.0 * (tick - len(ups[0])), watched=tick > 0)
    offers += [replace(one, market=Kind.ON_DEMAND, price_usd_per_h=3.0, available=None) for one in offers]
    rng, taken, before = np.random.default_rng(2), list[float](), solve.cache_info().misses
    for number in range(300):
        work_s, slack_s, ago_s = rng.uniform(5, 60) * 3600, rng.uniform(2, 20) * 3600, rng.uniform(0, 20) * 3600
        outlook = Outlook(now - ago_s, now + work_s + slack_s, work_s, 0.3 * work_s, rng.uniform(90, 180))
        need = Need(JobId(f"j-{number}"), Slot(0, 0), MachineRequirement(), SpotMode.AUTO, outlook=outlook)
        began = time.perf_counter()
        SELECTORS["auto"].choose(need, offers, beliefs=book, inflight={}, now=now, rng=Random(0))
        taken.append((time.perf_counter() - began) * 1000)
    return taken, solve.cache_info().misses - before


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
