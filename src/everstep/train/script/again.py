"""A second try of a relaunch that failed on its way: the process is started anew, and writes nothing before it arrives.

On the way the saved values are written early, so that conditions see them (see `arrival`). Where a loop's pass does
something that can be done once only, as adding parameters to an optimizer, that very thing makes the relaunch fail: it
finds it done. Without the early write it finds what it found then. The second try may go wrong in its turn, where a
condition needs the saved values; it then ends as the first would have, or refuses since it arrives by another way.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from everstep.train.hashseed import is_runner
from everstep.train.script.refusal import end_children

VARIABLE = "EVERSTEP_RESUME_LATE"
_STARTED = "EVERSTEP_SHIM_STARTED"
_SHIM = os.path.join("everstep_shim", "launch.py")


class Again:
    """How this process was started, noted before the script can change any of it."""

    def __init__(self) -> None:
        self._command = [sys.executable, *sys.orig_argv[1:]]
        self._folder = os.getcwd()
        self._env = _environment()
        self.is_second = os.environ.pop(VARIABLE, None) is not None

    @property
    def possible(self) -> bool:
        """Whether this was the first try, of a process that can be started anew by its command line."""
        ours = is_runner(self._command) or any(word.endswith(_SHIM) for word in self._command)
        return ours and not self.is_second and b"PATH" in self._env

    def start(self, let_go: Callable[[], None]) -> None:
        """Another process image takes the place of this one. Returns only where that fails.

        Args:
            let_go: gives standard output back.
        """
        end_children()
        let_go()
        try:
            os.chdir(self._folder)
            os.execve(self._command[0], self._command, {**self._env, VARIABLE.encode(): b"1"})
        except OSError:
            return


def _environment() -> dict[bytes, bytes]:
    """What this process was started with; the shim and others may have changed it since. Empty if it is not known."""
    told = os.environ.pop(_STARTED, None)
    if told is not None:
        # It had waited for its time (``agent/standby_hook.py``), and was started for another attempt.
        return {os.fsencode(name): os.fsencode(value) for name, value in json.loads(told).items()}
    try:
        raw = Path("/proc/self/environ").read_bytes()
    except OSError:
        return {}
    return {name: value for name, sign, value in (entry.partition(b"=") for entry in raw.split(b"\0")) if sign}
