"""Starting a script and everything it starts, watching it, and ending all of it at once as a lost machine does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests import guards

#: What a launch must not inherit: another installation's handshake, the coverage of pytest, a torchrun around us.
_NOT_INHERITED = ("EVERSTEP_", "PYTEST_", "TORCHELASTIC_")
_DROPPED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PYTHONHASHSEED", "PYTHONPATH")
_LOOK_S = 0.003


@dataclass(frozen=True)
class Launch:
    """One start of a script: the command and where its output goes."""

    command: Sequence[str]
    work: Path
    stdout: Path
    stderr: Path
    python_path: Sequence[Path] = ()


class Running:
    """A launch that is on its way, with all processes that descend from it, in whatever session they are."""

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        self._mark = uuid.uuid4().hex
        with launch.stdout.open("wb") as out, launch.stderr.open("wb") as err:
            self._process = subprocess.Popen(
                list(launch.command),
                cwd=launch.work,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=_environment(launch.python_path, self._mark),
                start_new_session=True,
            )
        self._started = time.monotonic()

    @property
    def age_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started

    @property
    def written(self) -> int:
        """Bytes of stdout so far."""
        return self.launch.stdout.stat().st_size

    @property
    def exit_code(self) -> int | None:
        """As `subprocess` gives it; None while it runs."""
        return self._process.poll()

    def wait_until(self, condition: Callable[[Running], bool], timeout_s: float) -> bool:
        """Look every few milliseconds; False when the process ended, or the time was over, before `condition` held."""
        while self.exit_code is None and self.age_s < timeout_s:
            if condition(self):
                return True
            time.sleep(_LOOK_S)
        return False

    def terminate(self, grace_s: float) -> None:
        """SIGTERM to the process that was started; what is alive after `grace_s` is lost with the machine."""
        if self.exit_code is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(grace_s)
            except subprocess.TimeoutExpired:
                self.lose()

    def lose(self) -> None:
        """SIGKILL to the process and to all that descends from it; returns when none is left."""
        if self.exit_code is None:
            self._process.kill()
        self._process.wait()
        while survivors := guards.processes_of(self._mark):
            guards.end(survivors)
            time.sleep(_LOOK_S)


def _environment(python_path: Sequence[Path], mark: str) -> Mapping[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in _DROPPED and not name.startswith(_NOT_INHERITED)
    }
    ours = {"PYTHONDONTWRITEBYTECODE": "1", guards.RUN_VARIABLE: mark}
    if python_path:
        ours["PYTHONPATH"] = os.pathsep.join(map(str, python_path))
    return {**kept, **ours}


def python(*arguments: str) -> list[str]:
    """A command line for this very interpreter."""
    return [sys.executable, *arguments]
