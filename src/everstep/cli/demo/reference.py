"""The undisturbed run: the same script, two plain ranks, no agent, no server. Its weights are what must come out."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import everstep
from everstep.cli.demo.interrupts import deferred
from everstep.cli.demo.scenario import DATA, NODES, SCRIPT
from everstep.model.errors import EverstepError
from everstep.model.handshake import ENV_CHECKPOINT_DIR, ENV_CHECKPOINT_EVERY

_CALIBRATION_STEPS, _WARM_UP_STEPS = 150, 30
_PATIENCE_S = 900.0
#: So long that no save disturbs it.
_NO_SAVES_S = "86400"
_LOOK_S = 0.005


def script_folder() -> Path:
    """Folder with the script and its data: inside the package when installed, ``examples`` in a checkout.

    Raises:
        EverstepError: neither is there.
    """
    package = Path(everstep.__file__).resolve().parent
    for folder in (package / "_demo", package.parent.parent / "examples"):
        if (folder / SCRIPT).is_file() and (folder / DATA).is_file():
            return folder
    raise EverstepError(f"the demo's script {SCRIPT} is missing from this installation; install everstep again")


def step_s(script: Path, folder: Path) -> float:
    """Seconds of one step with two ranks on this machine, from a short run. Raises EverstepError if that fails."""
    with ranks(script, folder, steps=_CALIBRATION_STEPS, out=folder / "calibration.pt") as started:
        first, last = (_when(step, started, folder) for step in (_WARM_UP_STEPS, _CALIBRATION_STEPS))
        _finish(started, folder)
    return (last - first) / (_CALIBRATION_STEPS - _WARM_UP_STEPS)


def _when(step: int, started: list[subprocess.Popen[bytes]], folder: Path) -> float:
    """When the script tells of that step, monotonic seconds."""
    line = re.compile(rb"^step %d " % step, re.MULTILINE)
    while True:
        over = _over(started, folder)
        if line.search((folder / "rank-0.log").read_bytes()):
            return time.monotonic()
        if over:
            raise EverstepError(f"the demo's script did not train; see {folder / 'rank-0.log'}")
        time.sleep(_LOOK_S)


def train(script: Path, folder: Path, *, steps: int, out: Path) -> None:
    """The whole undisturbed run; its weights are in ``out``. Raises EverstepError if a rank fails."""
    with ranks(script, folder, steps=steps, out=out) as started:
        _finish(started, folder)
    if not out.is_file():
        raise EverstepError(f"the undisturbed run left no weights; see {folder / 'rank-0.log'}")


@contextmanager
def ranks(script: Path, folder: Path, *, steps: int, out: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The ranks, each in a session of its own; whatever is left of them at the end is killed."""
    folder.mkdir(parents=True, exist_ok=True)
    started: list[subprocess.Popen[bytes]] = []
    command = [sys.executable, "-u", SCRIPT, "--steps", str(steps), "--out", str(out)]
    port = _free_port()
    try:
        for rank in range(NODES):
            log = (folder / f"rank-{rank}.log").open("wb")
            with log, deferred():
                started.append(
                    subprocess.Popen(
                        command,
                        cwd=script,
                        env={**os.environ, **rank_environment(rank, port, folder / "checkpoints")},
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        start_new_session=True,
                    )
                )
        yield started
    finally:
        for process in started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def rank_environment(rank: int, port: int, checkpoints: Path) -> Mapping[str, str]:
    """What the script needs to know, as torchrun would tell it."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(NODES),
        "LOCAL_WORLD_SIZE": str(NODES),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        ENV_CHECKPOINT_DIR: str(checkpoints),
        ENV_CHECKPOINT_EVERY: _NO_SAVES_S,
    }


def _finish(started: list[subprocess.Popen[bytes]], folder: Path) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not _over(started, folder):
        if time.monotonic() > deadline:
            raise EverstepError(f"the undisturbed run hangs; see {folder}")
        time.sleep(_LOOK_S)


def _over(started: list[subprocess.Popen[bytes]], folder: Path) -> bool:
    """Whether all ranks have ended well. Raises EverstepError as soon as one has not: the others may wait for it."""
    codes = [process.poll() for process in started]
    for rank, code in enumerate(codes):
        if code:
            tail = (folder / f"rank-{rank}.log").read_text(errors="replace").strip().splitlines()[-1:]
            raise EverstepError(f"rank {rank} of the undisturbed run failed ({code}): {' '.join(tail)}")
    return all(code == 0 for code in codes)


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
