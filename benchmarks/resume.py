"""What it costs to resume a script from outside: time per step while nothing is saved, and a relaunch's way back.

``python -m benchmarks resume`` takes about six minutes. One script, plainly and under
``everstep.train.run``, in turns:

* ``overhead``: steps of about 5 ms (calibrated) over a shuffled loader in epochs, no save meanwhile; how much longer a
  step takes, in processor time (of the whole process, its threads included) and on the clock.
* ``relaunch``: killed 20 steps after a save and started again; from the start of the process to the end of its first
  new step, beyond what ``python -c "import torch"`` takes. ``plain_start_s`` is the same for the script by itself.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.runs import report

ROOT = Path(__file__).resolve().parents[1]
_OVERHEAD_GOAL_PERCENT = 1.0
_RELAUNCH_GOAL_S = 0.3

#: What it has to tell goes to stderr: no resume cuts that. The first ``WARM`` steps are not timed.
SCRIPT = """
import json, os, signal, sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)
torch.set_num_threads(1)
WIDTH, EPOCHS, STOP_AT, WARM = (int(a) for a in sys.argv[1:5])
data = TensorDataset(torch.randn(1600, 32), torch.randn(1600, 1))
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(32, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
done, began = 0, (0.0, 0.0)
for epoch in range(EPOCHS):
    for x, y in loader:
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        done += 1
        if done == WARM:
            began = time.process_time(), time.perf_counter()
        if STOP_AT:
            os.write(2, f"{done} {time.time()}\\n".encode())
            if done == STOP_AT:
                os.kill(os.getpid(), signal.SIGKILL)
if not STOP_AT:
    ended, steps = (time.process_time(), time.perf_counter()), done - WARM
    os.write(2, json.dumps([1000 * (b - a) / steps for a, b in zip(began, ended)]).encode())
"""
_EPOCH = 100
_WARM = 100
_EVERY, _STOP_AT = 50, 120


def main(arguments: list[str]) -> int:
    """See the module; exit status 1 where a goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks resume --")
    parser.add_argument("--rounds", type=int, default=9, help="of each kind")
    parser.add_argument("--epochs", type=int, default=11, help=f"of {_EPOCH} steps, where steps are timed")
    parser.add_argument("--step-ms", type=float, default=5.0, help="about so long shall a step take")
    given = parser.parse_args(arguments)
    command = f"python -m benchmarks resume -- {' '.join(arguments)}".rstrip(" -")
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        (place / "train.py").write_text(SCRIPT)
        width = _width(place, given.step_ms)
        good = _overhead(place, command, width, given)
        return 0 if _relaunch(place, command, given.rounds) and good else 1


def _width(place: Path, step_ms: float) -> int:
    """Of the model with which a step takes the processor about so long."""
    width = 64
    while width < 8192 and _steps(place, width, 2, under=False)[0] < step_ms:
        width = int(width * 1.2)
    return width


def _steps(place: Path, width: int, epochs: int, *, under: bool) -> list[float]:
    """Milliseconds a step: of the processor, on the clock."""
    script = ["train.py", str(width), str(epochs), "0", str(_WARM)]
    with tempfile.TemporaryDirectory(dir=place) as saves:
        command = [sys.executable, *(_under(saves, "--every", "3600s") if under else ()), *script]
        done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the script ended with {done.returncode}: {done.stderr[-2000:]}")
    taken: list[float] = json.loads(done.stderr.splitlines()[-1])
    return taken


def _under(saves: str, *pace: str) -> tuple[str, ...]:
    return ("-m", "everstep.train.run", "--dir", saves, *pace)


def _overhead(place: Path, command: str, width: int, given: argparse.Namespace) -> bool:
    plain, under = [], []
    for _ in range(given.rounds):
        plain.append(_steps(place, width, given.epochs, under=False))
        under.append(_steps(place, width, given.epochs, under=True))
    good = True
    for index, clock in enumerate(("processor time", "wall clock")):
        bare = statistics.median(p[index] for p in plain)
        more = [100 * (u[index] / p[index] - 1) for p, u in zip(plain, under, strict=True)]
        case = f"overhead per step without saves, {clock}"
        facts = {"plain_ms": bare, "steps": given.epochs * _EPOCH - _WARM, "width": width}
        result = report("resume", case, more, unit="%", command=command, goal=_OVERHEAD_GOAL_PERCENT, **facts)
        good = good and bool(result["reached"])
    return good


def _relaunch(place: Path, command: str, rounds: int) -> bool:
    beyond, plain = [], []
    for _ in range(rounds):
        began = time.time()
        subprocess.run([sys.executable, "-c", "import torch"], check=True)
        torch_s = time.time() - began
        plain.append(_first_step(place, ())[1] - torch_s)
        with tempfile.TemporaryDirectory(dir=place) as saves:
            under = _under(saves, "--every-steps", str(_EVERY))
            _first_step(place, under)
            step, taken_s = _first_step(place, under)
        if step <= 1:
            raise RuntimeError("the relaunch began at the first step: there was no save to go on from")
        beyond.append(taken_s - torch_s)
    facts = {"plain_start_s": statistics.median(plain), "killed_at": _STOP_AT, "saves_every": _EVERY}
    case = "relaunch to first new step, beyond python and import torch"
    result = report("resume", case, beyond, unit="s", command=command, goal=_RELAUNCH_GOAL_S, **facts)
    return bool(result["reached"])


def _first_step(place: Path, under: Sequence[str]) -> tuple[int, float]:
    """The first step that a launch makes, and seconds from its start to that step's end; it kills itself later on."""
    command = [sys.executable, *under, "train.py", "64", "50", str(_STOP_AT), str(_WARM)]
    began = time.time()
    with subprocess.Popen(
        command, cwd=place, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=dict(os.environ)
    ) as script:
        assert script.stderr is not None
        lines = [line.split() for line in script.stderr]
    told = [words for words in lines if len(words) == 2 and words[0].isdecimal()]
    if script.returncode != -signal.SIGKILL or not told:
        raise RuntimeError(f"the script ended with {script.returncode}: {lines[-5:]}")
    return int(told[0][0]), float(told[0][1]) - began


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
