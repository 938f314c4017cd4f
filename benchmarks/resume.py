"""What it costs to resume a script from outside: time per step while nothing is saved, and a relaunch's way back.

``python -m benchmarks resume`` takes about four minutes. One script, plainly and under ``everstep.train.run``:

* ``overhead``: steps of about 5 ms (calibrated) over a shuffled loader in epochs, no save meanwhile; how much longer a
  step takes, in processor time (of the whole process, its threads included) and on the clock. Both run at once on one
  processor, but never together: each stops itself after an epoch, and the other makes its own. So a computer that is
  faster in one second than in the next is so for both. Of a round the median of its epochs counts.
* ``relaunch``: killed 20 steps after a save and started again; from the start of the process to the end of its first
  new step, beyond what ``python -c "import torch"`` takes. ``plain_start_s`` is the same for the script by itself.
"""

from __future__ import annotations

import argparse
import contextlib
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

#: What it has to tell goes to stderr: no resume cuts that. An epoch has 100 steps.
SCRIPT = """
import json, os, signal, sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)
torch.set_num_threads(1)
WIDTH, EPOCHS, STOP_AT = (int(a) for a in sys.argv[1:4])
data = TensorDataset(torch.randn(1600, 32), torch.randn(1600, 1))
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(32, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
done = 0
for epoch in range(EPOCHS):
    began = time.process_time(), time.perf_counter()
    for x, y in loader:
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        done += 1
        if STOP_AT:
            os.write(2, f"{done} {time.time()}\\n".encode())
            if done == STOP_AT:
                os.kill(os.getpid(), signal.SIGKILL)
    if not STOP_AT:
        ended = time.process_time(), time.perf_counter()
        os.write(2, json.dumps([10 * (b - a) for a, b in zip(began, ended)]).encode() + b"\\n")
        os.kill(os.getpid(), signal.SIGSTOP)
"""
_EPOCH = 100
_WARM_EPOCHS = 2
_EVERY, _STOP_AT = 50, 120


def main(arguments: list[str]) -> int:
    """See the module; exit status 1 where a goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks resume --")
    parser.add_argument("--rounds", type=int, default=9, help="of each kind")
    parser.add_argument("--epochs", type=int, default=12, help=f"of {_EPOCH} steps, a round; two are not timed")
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
    while width < 8192 and _epochs(place, width, 2, plain_only=True)[-1][0][0] < step_ms:
        width = int(width * 1.2)
    return width


def _epochs(place: Path, width: int, epochs: int, *, plain_only: bool = False) -> list[list[list[float]]]:
    """Milliseconds a step, by epoch; plainly and under everstep; of the processor and on the clock."""
    script = ("train.py", str(width), str(epochs), "0")
    cpu = min(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(dir=place) as saves, contextlib.ExitStack() as running:
        found = []
        ways = ((), _under(saves, "--every", "3600s"))[: 1 if plain_only else 2]
        both = [running.enter_context(_Turns([sys.executable, *way, *script], place, cpu)) for way in ways]
        for epoch in range(epochs):
            order = both if epoch % 2 else both[::-1]  # who is first finds the other's data in the processor's cache
            taken = {each: each.epoch() for each in order}
            found.append([taken[each] for each in both])
    return found


class _Turns:
    """A run of the script that waits after each epoch until it is told to go on."""

    def __init__(self, command: Sequence[str], place: Path, cpu: int) -> None:
        self._script = subprocess.Popen(
            command, cwd=place, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=dict(os.environ)
        )
        os.sched_setaffinity(self._script.pid, {cpu})
        self._began = False

    def __enter__(self) -> _Turns:
        return self

    def epoch(self) -> list[float]:
        """Lets it make one; what a step of it took. The first begins with the process, beside the other's."""
        if self._began:
            self._script.send_signal(signal.SIGCONT)
        self._began = True
        assert self._script.stderr is not None
        line = self._script.stderr.readline()
        if not line.startswith(b"["):
            self._script.kill()
            raise RuntimeError(f"the script ended: {line.decode()}{self._script.stderr.read().decode()[-2000:]}")
        os.waitid(os.P_PID, self._script.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        taken: list[float] = json.loads(line)
        return taken

    def __exit__(self, *_: object) -> None:
        self._script.kill()
        self._script.communicate()


def _under(saves: str, *pace: str) -> tuple[str, ...]:
    return ("-m", "everstep.train.run", "--dir", saves, *pace)


def _overhead(place: Path, command: str, width: int, given: argparse.Namespace) -> bool:
    rounds = [_epochs(place, width, given.epochs)[_WARM_EPOCHS:] for _ in range(given.rounds)]
    good = True
    for index, clock in enumerate(("processor time", "wall clock")):
        bare = statistics.median(plain[index] for epochs in rounds for plain, _ in epochs)
        more = [100 * (statistics.median(u[index] / p[index] for p, u in epochs) - 1) for epochs in rounds]
        case = f"overhead per step without saves, {clock}"
        facts = {"plain_ms": bare, "steps": _EPOCH * len(rounds[0]), "width": width}
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
    command = [sys.executable, *under, "train.py", "64", "50", str(_STOP_AT)]
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
