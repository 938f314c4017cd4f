"""One process of the user's script, watched: started, followed, ended, and nothing of it left behind."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

import everstep
from everstep.client.check.command import Command
from everstep.client.check.evidence import Facts, Trail, read_facts, read_json
from everstep.model import handshake
from everstep.model.handshake import EXIT_REFUSED

_PACKAGE = Path(everstep.__file__).parent
_MARK = "EVERSTEP_CHECK"
_LOOK_S = 0.01
_GONE_S = 10.0
_OURS = "everstep: "
#: ``ValueError: ...``, but not torchrun's own report of what its children did.
_ERROR = re.compile(r"(?!torch\.distributed\.elastic)[\w.]*(Error|Exception|Interrupt|Exit)\b")
_RANK_REFUSED = re.compile(rf"exitcode\s*:\s*{EXIT_REFUSED}\b")
#: What a surrounding job would tell the script must not reach it.
_STRIPPED = {value for name, value in vars(handshake).items() if name.startswith("ENV_")} | {
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
}


class StartUp:
    """The start-up hook that brings the witness into the user's Python, and everstep itself where that is needed.

    Args:
        folder: where it is made.
    """

    def __init__(self, folder: Path) -> None:
        self._hook, self._ours = folder / "hook", folder / "ours"
        self._hook.mkdir(parents=True)
        self._ours.mkdir()
        witness = _PACKAGE / "train" / "script" / "witness"
        leave = shutil.ignore_patterns("__pycache__", "startup.py")
        shutil.copytree(witness, self._hook / "everstep_witness", ignore=leave)
        shutil.copyfile(witness / "startup.py", self._hook / "sitecustomize.py")
        (self._ours / "everstep").symlink_to(_PACKAGE)

    def path(self, given: str | None, *, ours: bool) -> str:
        """The value of ``PYTHONPATH``; ``ours``: `everstep.train` of this version is to be importable."""
        parts = [str(self._hook), *([str(self._ours)] if ours else []), *([given] if given else [])]
        return os.pathsep.join(parts)


@dataclass(frozen=True, slots=True)
class Start:
    """What is to be started.

    Attributes:
        command: the user's.
        words: what Python is to run: the user's target and arguments, or the runner with them.
        nproc: ranks, started by torchrun if more than one.
        cwd: working folder.
        folder: for the output and the evidence of this launch; made here.
        witness: what the witness is told, beside ``folder`` and ``ranks``.
        env: variables on top of the user's.
        startup: the hook.
        mark: in the environment of everything that the check starts.
        ours: whether the runner of everstep is needed.
    """

    command: Command
    words: tuple[str, ...]
    nproc: int
    cwd: Path
    folder: Path
    witness: Mapping[str, Any]
    env: Mapping[str, str]
    startup: StartUp
    mark: str
    ours: bool = False

    @property
    def argv(self) -> list[str]:
        """The whole command line."""
        python = [self.command.python, *self.command.options]
        if self.nproc == 1:
            return [*python, *self.words]
        ranks = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={self.nproc}"]
        logs = ["--redirects=1", f"--log-dir={self.folder / 'ranks'}", "--max-restarts=0"]
        return [*python, *ranks, *logs, *self.words]


class Launch:
    """A running process. Use it as a context: at its end nothing that it started is alive.

    Attributes:
        start: what was started.
        began_at: monotonic seconds.
        trail: of rank 0.
    """

    def __init__(self, start: Start) -> None:
        self.start = start
        start.folder.mkdir(parents=True)
        (start.folder / "reports").mkdir()
        self.trail = Trail(start.folder / "rank-0.trail")
        told = {"folder": str(start.folder), "ranks": start.nproc > 1, **start.witness}
        env = {name: value for name, value in os.environ.items() if name not in _STRIPPED}
        env.update(start.env)
        env["PYTHONPATH"] = start.startup.path(env.get("PYTHONPATH"), ours=start.ours)
        env["EVERSTEP_WITNESS"] = json.dumps(told)
        env[handshake.ENV_REPORT_DIR] = str(start.folder / "reports")
        env[_MARK] = start.mark
        with (start.folder / "stdout").open("wb") as out, (start.folder / "stderr").open("wb") as err:
            self.began_at = time.monotonic()
            self._process = subprocess.Popen(
                start.argv,
                cwd=start.cwd,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        self.ended_at: float | None = None

    def __enter__(self) -> Launch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    # --- looking --------------------------------------------------------------------------------------------------

    def poll(self) -> int | None:
        """Its exit code (negative: a signal), None while it runs."""
        code = self._process.poll()
        if code is not None and self.ended_at is None:
            self.ended_at = time.monotonic()
        return code

    def looks(self, until: float) -> Iterator[None]:
        """Once every look while the process runs, with the trail read on, at most until a monotonic time."""
        while self.poll() is None and time.monotonic() < until:
            self.trail.follow()
            yield
            time.sleep(_LOOK_S)
        self.trail.follow()

    def wait(self, seconds: float) -> int | None:
        """Its exit code; None if it still runs after that long."""
        for _ in self.looks(time.monotonic() + seconds):
            pass
        return self.poll()

    @property
    def exit_code(self) -> int:
        """Of a launch that ended."""
        code = self.poll()
        assert code is not None
        return code

    @property
    def seconds(self) -> float:
        """How long it ran, or has run."""
        return (self.ended_at or time.monotonic()) - self.began_at

    def facts(self) -> Facts:
        """What rank 0 reported."""
        return read_facts(self.start.folder / "reports")

    def finals(self) -> tuple[dict[str, Any] | None, ...]:
        """The witness's last word of each rank."""
        return tuple(read_json(self.start.folder / f"rank-{rank}.json") for rank in range(self.start.nproc))

    def stdout(self) -> tuple[Path, ...]:
        """Each rank's output."""
        if self.start.nproc == 1:
            return (self.start.folder / "stdout",)
        ranks = self.start.folder / "ranks"
        found = {int(path.parent.name): path for path in ranks.glob("*/attempt_0/*/stdout.log")}
        return tuple(found.get(rank, ranks / "missing") for rank in range(self.start.nproc))

    @property
    def refused(self) -> bool:
        """Whether it ended by a refusal of everstep's; torchrun tells the codes of ranks in a table of its own."""
        return self.exit_code == EXIT_REFUSED or any(_RANK_REFUSED.match(line) for line in self._stderr())

    def complaint(self) -> str:
        """The line of standard error that says best what went wrong; empty if there is none."""
        lines = self._stderr()
        ours = [line for line in lines if line.startswith(_OURS)]
        errors = [line for line in lines if _ERROR.match(line)]
        chosen = (ours or errors or lines) if self.refused else (errors or ours or lines)
        return chosen[-1].removeprefix(_OURS) if chosen else ""

    def _stderr(self) -> list[str]:
        text = (self.start.folder / "stderr").read_text(encoding="utf-8", errors="replace")
        return [line.strip() for line in text.splitlines() if any(map(str.isalpha, line))]

    # --- ending ---------------------------------------------------------------------------------------------------

    def terminate(self) -> None:
        """SIGTERM to the script; under torchrun to torchrun, which passes it on."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL to everything that it started, wherever that has gone. Returns when it is gone."""
        victims: list[Any] = [self._process, *self._descendants()]
        for victim in victims:
            with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
                victim.kill()
        self._process.wait()
        self.poll()
        end_marked(self.start.mark)

    def _descendants(self) -> list[psutil.Process]:
        try:
            return list(psutil.Process(self._process.pid).children(recursive=True))
        except psutil.NoSuchProcess:
            return []


def end_marked(mark: str) -> None:
    """SIGKILL to all that carry a mark: children that left their session, orphans. Returns when they are gone."""
    limit = time.monotonic() + _GONE_S
    while (left := _marked(mark)) and time.monotonic() < limit:
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        time.sleep(_LOOK_S)


def _marked(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(_MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def utc_to_monotonic(utc_s: float) -> float:
    """The monotonic time of an instant, with the clock as it is now."""
    return utc_s - time.time() + time.monotonic()
