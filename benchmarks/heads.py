"""What a pass of a loop costs more in a script that everstep resumes from outside, in microseconds.

``python -m benchmarks heads`` takes about 20 s. The same loops are timed in a plain process and in one under the real
session, which takes no save meanwhile; the figures are the differences. Processes of both kinds take turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.runs import report

ROOT = Path(__file__).resolve().parents[1]
_HEAD_GOAL_US = 2.0
_OUTER_GOAL_US = 5.0

#: Loops by name; each is a function of the number of passes. ``step`` counts one step, as an optimizer's hook does.
SCRIPT = """
import json
import sys
import time

import torch

loss = torch.zeros(())


def none(passes):
    for _ in range(passes):
        pass


def step_each(passes):
    for _ in range(passes):
        step()


def while_each(passes):
    done = 0
    while done < passes:
        done += 1
        step()


def outer(passes):
    for _ in range(passes):
        for _ in (1,):
            step()


def outer_draws(passes):
    for _ in range(passes):
        for _ in (1,):
            torch.rand(1)
            step()


def outer_locals(passes):
    total, history, running, name = 0.0, [1.0] * 10, loss, "train"
    for number in range(passes):
        for _ in (1,):
            step()
            total += number


def outer_calls(passes):
    for _ in range(passes):
        called()


def called():
    for _ in (1,):
        step()


class Steps:
    count = 0


steps = sys.modules["counted"].steps if "counted" in sys.modules else Steps()


def step():
    steps.count += 1


taken = {}
for turn in range(%(turns)d + 1):
    for loop in (none, step_each, while_each, outer, outer_draws, outer_locals, outer_calls):
        passes = 100_000 if loop is none else 5_000
        began = time.thread_time()
        loop(passes)
        if turn:
            taken.setdefault(loop.__name__, []).append(1e6 * (time.thread_time() - began) / passes)
print(json.dumps(taken))
"""

#: Runs the script as ``everstep.train.run`` does, and lets it count its steps where everstep counts them.
UNDER = """
import sys, types
from pathlib import Path
from everstep.train.script.launching import Order, launch

def begun(heads, steps):
    sys.modules["counted"] = types.SimpleNamespace(steps=steps)

launch(Order(sys.argv[1], False, (), Path(sys.argv[2]), 3600.0, None), begun)
"""

CASES = {
    "none": ("head of a loop without steps", _HEAD_GOAL_US),
    "step_each": ("head of a `for` with a step in each pass", _HEAD_GOAL_US),
    "while_each": ("head of a `while` with a step in each pass", _HEAD_GOAL_US),
    "outer": ("pass of a loop with a stepping loop inside", _OUTER_GOAL_US),
    "outer_draws": ("the same, with numbers drawn from torch meanwhile", None),
    "outer_locals": ("the same, in a function with variables", None),
    "outer_calls": ("the same, with the inner loop in a function of its own", _OUTER_GOAL_US),
}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks heads --")
    parser.add_argument("--turns", type=int, default=5, help="how often each process times each loop")
    parser.add_argument("--processes", type=int, default=3, help="of each kind")
    given = parser.parse_args(arguments)
    plain, under = _measure(given.turns, given.processes)
    command = f"python -m benchmarks heads -- {' '.join(arguments)}".rstrip(" -")
    good = True
    for case, (text, goal) in CASES.items():
        bare = statistics.median(plain[case])
        more = {} if goal is None else {"goal": goal}
        cost = [taken - bare for taken in under[case]]
        result = report("heads", text, cost, unit="us", plain_us=bare, command=command, **more)
        good = good and result.get("reached", True)
    return 0 if good else 1


def _measure(turns: int, processes: int) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Microseconds a pass by loop: plainly, and under everstep."""
    taken: tuple[dict[str, list[float]], dict[str, list[float]]] = ({}, {})
    for _ in range(processes):
        for found, under in zip(taken, (False, True), strict=True):
            for case, times in _run(turns, under=under).items():
                found.setdefault(case, []).extend(times)
    return taken


def _run(turns: int, *, under: bool) -> dict[str, list[float]]:
    with tempfile.TemporaryDirectory() as name:
        script = Path(name, "loops.py")
        script.write_text(SCRIPT % {"turns": turns})
        command = [sys.executable, *(("-c", UNDER, str(script), f"{name}/saves") if under else (str(script),))]
        done = subprocess.run(command, cwd=name, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the loops ended with {done.returncode}: {done.stderr[-2000:]}")
    return dict(json.loads(done.stdout))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
