"""What saving costs: training with durable saves against none, and against ``torch.save`` and ``torch.distributed``.

``python -m benchmarks saving`` is quick: 5 saves of each kind, one every 2 s; about 7 minutes. ``-- --full`` makes 100
saves of each kind, one every 10 s: a day's work; ``--ways``, ``--states``, ``--steps-ms`` choose parts of it.

Each measurement is a process of its own, so that peak memory is its own; the work of a step is calibrated once and is
the same for all. ``stall`` is how long training stood still for a save, ``throughput`` the rate of steps between saves
against no saves: what works in the background takes processor and disk from training, and only the latter shows it.
With ``--device cuda`` all tensors are on the GPU; without one that is skipped.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.runs import report

ROOT = Path(__file__).resolve().parents[1]
WAYS = ("no saves", "torch.save", "dcp.save", "dcp.async_save", "everstep")
MB = 1_000_000
STATES = {"100 MB": 100 * MB, "1 GB": 1000 * MB}
_STALL_GOAL = 0.2
_RESTORE_GOAL = 1.2


@dataclass(frozen=True)
class Case:
    """One state and one step length."""

    state: str
    step_ms: int

    def __str__(self) -> str:
        return f"state {self.state}, steps of {self.step_ms} ms"


@dataclass(frozen=True)
class Figures:
    """Of one way in one case: throughput against no saves, stall per save, both medians."""

    throughput: float
    stall_s: float


def main(arguments: list[str]) -> int:
    given = _parser().parse_args(arguments)
    if given.device != "cpu" and not _has_gpu():
        print("saving: skipped, this machine has no CUDA device", file=sys.stderr)
        return 0
    command = f"python -m benchmarks saving -- {' '.join(arguments)}".rstrip(" -")
    good = True
    for case in (Case(state, step_ms) for state in given.states for step_ms in given.steps_ms):
        good = _compare(case, dict(_measure(case, given, command)), command) and good
    for state in given.states if given.restores else []:
        good = _restore(state, given, command) and good
    return 0 if good else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks saving --")
    parser.add_argument("--full", action="store_true", help="100 saves of each kind, one every 10 s")
    parser.add_argument("--saves", type=int, help="of each kind; default 5, with --full 100")
    parser.add_argument("--every-s", type=float, help="seconds between saves; default 2, with --full 10")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--states", nargs="+", choices=STATES, default=list(STATES))
    parser.add_argument("--steps-ms", nargs="+", type=int, default=[50, 500])
    parser.add_argument("--restores", type=int, default=5, help="how often a restore is timed; 0 for not")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--folder", help="where to save; default: the folder for temporary files")
    return parser


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _ask(what: str, **order: Any) -> Any:
    """One measurement in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.save.one", what, json.dumps(order)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{what} {order} failed: {done.stderr[-2000:]}")
    return json.loads(done.stdout)


def _measure(case: Case, given: argparse.Namespace, command: str) -> Iterator[tuple[str, Figures]]:
    saves = given.saves or (100 if given.full else 5)
    every_s = given.every_s or (10.0 if given.full else 2.0)
    step_s = case.step_ms / 1000
    order = {
        "state_bytes": STATES[case.state],
        "passes": _ask("passes", step_s=step_s, device=given.device),
        "device": given.device,
        "every_s": every_s,
        "steps": round((saves + 0.5) * every_s / step_s),
        "folder": given.folder or tempfile.gettempdir(),
    }
    window = max(1, round(every_s / step_s))
    undisturbed = 0.0
    for way in dict.fromkeys(["no saves", *given.ways]):
        found = _ask("throughput", way=way, **order)
        rates = [len(part) / sum(part) for part in _windows(found["steps_s"], window)]
        undisturbed = undisturbed or statistics.median(rates)
        more = {
            "way": way,
            "step_ms": 1000 * statistics.median(found["steps_s"]),
            "state_bytes": found["state_bytes"],
            "every_s": every_s,
            "saves": len(found["stalls_s"]),
            "peak_mib": round(found["peak_mib"]),
            "device": found["device"],
            "command": command,
        }
        ratios = [rate / undisturbed for rate in rates]
        throughput = report("saving", f"throughput, {case}", ratios, unit="of no saves", **more)
        if found["stalls_s"]:
            stall = report("saving", f"stall, {case}", found["stalls_s"], unit="s per save", **more)
            yield way, Figures(throughput["median"], stall["median"])


def _windows(steps_s: list[float], size: int) -> list[list[float]]:
    """Parts of about one save each; the first, before any save, is left out where there are more."""
    parts = [steps_s[start : start + size] for start in range(0, len(steps_s) - size + 1, size)]
    return parts[1:] or [steps_s]


def _compare(case: Case, figures: dict[str, Figures], command: str) -> bool:
    """Against the asynchronous saves of torch, where both were measured."""
    ours, theirs = figures.get("everstep"), figures.get("dcp.async_save")
    if ours is None or theirs is None:
        return True
    stall = ours.stall_s / theirs.stall_s if theirs.stall_s else 0.0
    result = {
        "bench": "saving",
        "case": f"everstep against dcp.async_save, {case}",
        "throughput_ratio": ours.throughput / theirs.throughput,
        "stall_ratio": stall,
        "goal": {"throughput_ratio": "> 1", **({"stall_ratio": f"<= {_STALL_GOAL}"} if case.step_ms >= 500 else {})},
        "reached": ours.throughput > theirs.throughput and (case.step_ms < 500 or stall <= _STALL_GOAL),
        "command": command,
    }
    print(json.dumps(result), flush=True)
    return bool(result["reached"])


def _restore(state: str, given: argparse.Namespace, command: str) -> bool:
    found = _ask(
        "restore",
        state_bytes=STATES[state],
        device=given.device,
        turns=given.restores,
        folder=given.folder or tempfile.gettempdir(),
    )
    read_s = statistics.median(found["taken_s"]["read"])
    good = True
    for way, taken in found["taken_s"].items():
        more = {"way": way, "against_reading": statistics.median(taken) / read_s, "state_bytes": found["state_bytes"]}
        goal = {"goal": _RESTORE_GOAL * read_s} if way == "everstep" else {}
        result = report("saving", f"restore, state {state}", taken, unit="s", command=command, **more, **goal)
        good = good and result.get("reached", True)
    return good


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
