"""What benchmarks share: the shape of a result, and timing of commands."""

from __future__ import annotations

import functools
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any


@functools.cache
def environment() -> dict[str, Any]:
    """The machine the figures belong to."""
    model = ""
    try:
        with open("/proc/cpuinfo") as file:
            model = next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), "")
    except OSError:
        pass
    return {
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cpu": model,
        "cores": os.cpu_count(),
        "commit": _commit(),
    }


def _commit() -> str:
    done = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def report(bench: str, case: str, values: Sequence[float], *, unit: str, command: str, **more: Any) -> dict[str, Any]:
    """Print one result as a JSON line and return it.

    Args:
        bench, case: what was measured.
        values: the single measurements.
        unit: of each.
        command: what was run, so that others can run it.
        more: further facts, for example ``goal``; a median above it makes ``reached`` false.
    """
    ordered = sorted(values)
    result: dict[str, Any] = {
        "bench": bench,
        "case": case,
        "median": statistics.median(ordered),
        "spread": {
            "min": ordered[0],
            "p10": _quantile(ordered, 0.1),
            "p90": _quantile(ordered, 0.9),
            "max": ordered[-1],
        },
        "unit": unit,
        "n": len(ordered),
        **more,
    }
    if "goal" in more:
        result["reached"] = result["median"] < more["goal"]
    result |= {"command": command, "environment": environment(), "load_1min": os.getloadavg()[0]}
    print(json.dumps(result), flush=True)
    return result


def _quantile(ordered: Sequence[float], fraction: float) -> float:
    """Linear between the two nearest measurements."""
    position = fraction * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def interleaved_ms(
    commands: Mapping[str, Sequence[str]], *, runs: int, env: Mapping[str, str] | None = None
) -> dict[str, list[float]]:
    """Wall time of each command, milliseconds, ``runs`` times after one warm-up.

    The commands take turns, so that a slow minute of the machine hits all of them alike.

    Raises:
        RuntimeError: a command failed; its output is in the text.
    """
    taken: dict[str, list[float]] = {name: [] for name in commands}
    for turn in range(runs + 1):
        for name, command in commands.items():
            began = time.perf_counter()
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, env={**os.environ, **(env or {})}
            )
            elapsed_ms = (time.perf_counter() - began) * 1000
            if done.returncode:
                raise RuntimeError(f"{' '.join(command)} exited with {done.returncode}: {done.stdout}{done.stderr}")
            if turn:
                taken[name].append(elapsed_ms)
    return taken


def python(*arguments: str) -> list[str]:
    """A command of this very Python."""
    return [sys.executable, *arguments]
