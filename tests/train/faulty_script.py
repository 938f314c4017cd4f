"""`tiny_script` on a file system that is pulled away: SIGKILL at the FAULT_AT-th change of a name or sync of a file."""

from __future__ import annotations

import itertools
import os
import runpy
import signal
from pathlib import Path
from typing import Any

_calls = itertools.count(1)
_fatal = int(os.environ.get("FAULT_AT", "0"))


def _counted(name: str) -> None:
    real = getattr(os, name)

    def call(*args: Any, **more: Any) -> Any:
        if next(_calls) == _fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **more)

    setattr(os, name, call)


for name in ("fsync", "replace", "link", "unlink"):
    _counted(name)
runpy.run_path(str(Path(__file__).with_name("tiny_script.py")), run_name="__main__")
