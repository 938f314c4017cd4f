"""`tiny_script` on a file system that is pulled away.

FAULT_AT: SIGKILL at that change of a name or sync of a file. TINY_DIE_DISK: "5 9", the disk is full in changes 5 to 8.
"""

from __future__ import annotations

import errno
import itertools
import os
import runpy
import signal
from pathlib import Path
from typing import Any

_calls = itertools.count(1)
_fatal = int(os.environ.get("FAULT_AT", "0"))
_full = range(*map(int, os.environ.get("TINY_DIE_DISK", "0 0").split()))


def _counted(name: str) -> None:
    real = getattr(os, name)

    def call(*args: Any, **more: Any) -> Any:
        number = next(_calls)
        if number == _fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        if number in _full and name == "fsync":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*args, **more)

    setattr(os, name, call)


for name in ("fsync", "replace", "link", "unlink"):
    _counted(name)
runpy.run_path(str(Path(__file__).with_name("tiny_script.py")), run_name="__main__")
