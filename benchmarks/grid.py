"""How fast policies are tried: `everstep sim grid`, thousands of runs in <= 10 s, beside a plain loop over every tick.

``python -m benchmarks grid -- --traces DIR --rows FILE.csv`` takes rows of your own (without `optimal`). Without them
traces and rows are made: 12 zones of 650 h, 257 windows under 3 deadlines and 4 policies, which is 3,084 runs.

The command is timed with its start-up, on one core. The plain loop asks the same policy at every tick of the same runs,
in this process, as are the event-driven runs it is compared with; its results must be the same.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.runs import interleaved_ms, report
from everstep.sim.reference.drive import drive
from everstep.sim.reference.entrants import OPTIMAL, entrant
from everstep.sim.reference.grid import Batch, check, market_of
from everstep.sim.reference.market import Market
from everstep.sim.reference.rows import Task, read_grid

_GOAL_S = 10.0
_POLICIES = ("on_demand", "greedy", "up_no_hysteresis", "uniform_progress")
_HEADER = "file,gang,task_h,deadline_h,changeover_h,start_tick_in_file,policy"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks grid --")
    parser.add_argument("--traces", type=Path)
    parser.add_argument("--rows", type=Path)
    parser.add_argument("--runs", type=int, default=3, help="how often the command is timed")
    given = parser.parse_args(arguments)
    if (given.traces is None) != (given.rows is None):
        parser.error("--traces and --rows go together")
    with _work(given.traces, given.rows) as (traces, rows, out):
        tasks = [task for task in read_grid(rows) if task.policy != OPTIMAL]
        results = [_command(traces, rows, out, given.runs, len(tasks)), *_loops(tasks, traces)]
    return 0 if all(result.get("reached", True) for result in results) else 1


@contextmanager
def _work(traces: Path | None, rows: Path | None) -> Iterator[tuple[Path, Path, Path]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if traces is None or rows is None:
            traces, rows = folder, folder / "rows.csv"
            _make(folder, rows)
        yield traces, rows, folder / "out.csv"


def _make(folder: Path, rows: Path) -> None:
    """Zones that flip with hazards like those of recorded ones: long runs, and many short ones."""
    chance = random.Random(4)
    ticks = 3895
    for zone in range(12):
        data: list[int] = []
        up = chance.random() < 0.5
        while len(data) < ticks:
            data += [int(up)] * max(1, round(chance.weibullvariate(18.0 if up else 12.0, 0.65)))
            up = not up
        about = {"gap_seconds": 600, "zone": f"z{zone}", "region": "r"}
        (folder / f"z{zone}.json").write_text(json.dumps({"metadata": about, "data": data[:ticks]}), encoding="utf-8")
    lines = [_HEADER]
    for window in range(257):
        start = chance.randrange(ticks - 72 * 6)
        changeover = (0.02, 0.2, 0.4)[window % 3]
        lines += [
            f"z{window % 12}.json,1,48,{deadline},{changeover},{start},{policy}"
            for deadline in (52, 60, 72)
            for policy in _POLICIES
        ]
    rows.write_text("\n".join([*lines, ""]), encoding="utf-8")


def _command(traces: Path, rows: Path, out: Path, runs: int, count: int) -> dict[str, object]:
    everstep = str(Path(sys.executable).with_name("everstep"))
    words = [everstep, "sim", "grid", "--rows", str(rows), "--traces", str(traces), "--out", str(out), "--workers", "1"]
    taken_s = [value / 1000 for value in interleaved_ms({"grid": words}, runs=runs)["grid"]]
    case = f"everstep sim grid, {count} runs, one process, start-up included"
    return report("grid", case, taken_s, unit="s", command=f"python -m benchmarks grid -- --runs {runs}", goal=_GOAL_S)


def _loops(tasks: list[Task], traces: Path) -> Iterator[dict[str, object]]:
    """Per policy: seconds from event to event, seconds tick by tick, decisions per second."""
    check(tasks, traces)
    markets = {key: market_of(task, Batch(traces, ())) for task in tasks for key in [(task.traces, task.gang)]}
    command = "python -m benchmarks grid"
    for policy in dict.fromkeys(task.policy for task in tasks):
        chosen = [task for task in tasks if task.policy == policy]
        events_s, asked, costs = _timed(chosen, markets, every_tick=False)
        ticks_s, asked_ticks, same = _timed(chosen, markets, every_tick=True)
        if any(abs(a - b) > 1e-6 for a, b in zip(costs, same, strict=True)):
            raise RuntimeError(f"{policy} costs something else when it is asked at every tick")
        more = {"runs": len(chosen), "decisions": asked, "ticks": asked_ticks, "command": command}
        yield report("grid", f"{policy}, from event to event", [events_s], unit="s", **more)
        yield report("grid", f"{policy}, plain loop over every tick", [ticks_s], unit="s", **more)
        ratio = report("grid", f"{policy}, events over plain loop", [events_s / ticks_s], unit="of the loop", **more)
        yield ratio
        yield report("grid", f"{policy}, decisions with reasons", [asked / events_s], unit="per s", **more)


def _timed(
    tasks: list[Task], markets: dict[tuple[str, int], Market], *, every_tick: bool
) -> tuple[float, int, list[float]]:
    """Seconds, decisions asked for, costs."""
    began = time.perf_counter()
    outcomes = [
        drive(markets[task.traces, task.gang], task.job, entrant(task.policy), every_tick=every_tick) for task in tasks
    ]
    taken_s = time.perf_counter() - began
    return taken_s, sum(outcome.decisions for outcome in outcomes), [outcome.cost_usd for outcome in outcomes]


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
