"""Starts training scripts as real processes without paying for `import torch` each time.

One process imports torch once; every script runs in a fork of it, with its own environment, folder and log. Orders come
as JSON lines on stdin, answers go to stdout; at the end of stdin every child that is left is killed.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Child:
    """A running script."""

    pid: int
    log: Path
    zygote: Zygote

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def terminate(self) -> None:
        os.kill(self.pid, signal.SIGTERM)

    def wait(self) -> int:
        """Exit code, negative for a signal."""
        return int(self.zygote.order(wait=self.pid)["rc"])

    def text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""


class Zygote:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def order(self, **order: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return dict(json.loads(self._process.stdout.readline()))

    def start(self, argv: list[str | Path], *, cwd: Path, log: Path, env: dict[str, str] | None = None) -> Child:
        order = {"argv": [str(a) for a in argv], "cwd": str(cwd), "log": str(log), "env": env or {}}
        return Child(int(self.order(**order)["pid"]), log, self)

    def run(self, argv: list[str | Path], *, cwd: Path, log: Path, env: dict[str, str] | None = None) -> int:
        return self.start(argv, cwd=cwd, log=log, env=env).wait()


@contextmanager
def zygote() -> Iterator[Zygote]:
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, str(Path(__file__))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as process:
        try:
            yield Zygote(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(timeout=20)


def _child(order: dict[str, Any]) -> None:
    handle = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.chdir(order["cwd"])
    os.environ.update(order["env"])
    sys.argv = order["argv"]
    code = 0
    try:
        runpy.run_path(order["argv"][0], run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _main() -> None:
    import torch.distributed

    import everstep.train

    assert everstep.train.attach
    torch.set_num_threads(1)
    # What torch imports only at the first step of an optimizer is paid here, once.
    weight = torch.zeros(1, requires_grad=True)
    weight.grad = torch.ones(1)
    torch.optim.AdamW([weight]).step()
    alive: set[int] = set()
    # What is imported stays: a collection in a fork need not look through it, nor copy its pages by that.
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        order = json.loads(line)
        if "wait" in order:
            _, status = os.waitpid(order["wait"], 0)
            alive.discard(order["wait"])
            answer = {"rc": os.waitstatus_to_exitcode(status)}
        else:
            pid = os.fork()
            if pid == 0:
                _child(order)
            alive.add(pid)
            answer = {"pid": pid}
        print(json.dumps(answer), flush=True)
    for pid in alive:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    _main()
