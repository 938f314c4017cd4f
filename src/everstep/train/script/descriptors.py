"""Files that the script opens by number (``os.open``, ``tempfile.mkstemp``): nobody opens them again where they were.

There is no save while one of them was read, or written to. What only holds a lock is no obstacle.
"""

from __future__ import annotations

import fcntl
import os
import stat
import sys
from types import FrameType
from typing import Any

_open = os.open
_opened: dict[int, tuple[tuple[int, int], str]] = {}
"""By number: device and inode, and where in the script it was opened."""

past_stdout: list[str] = []
"""Where the script has opened standard output by its number."""


def begin() -> None:
    """From now on they are noted."""
    os.open = _noting


def wrapped(number: int) -> None:
    """A file object was made of it: that one comes back. What is printed through one over standard output is not in the
    log of all launches."""
    _opened.pop(number, None)
    if number == 1 and not past_stdout:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and "__everstep__" not in frame.f_globals:
            frame = frame.f_back
        if frame is not None:
            past_stdout.append(f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}")


def in_use() -> str:
    """Where the script has opened one that could not be given back; "" if there is none."""
    for number, (which, where) in list(_opened.items()):
        try:
            state = os.fstat(number)
        except OSError:
            state = None
        if state is None or (state.st_dev, state.st_ino) != which:
            del _opened[number]
            continue
        may_write = fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY
        if os.lseek(number, 0, os.SEEK_CUR) or (may_write and state.st_size):
            return where
    return ""


def _noting(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
    number = _open(path, flags, mode, dir_fd=dir_fd)
    frame = _asking(sys._getframe(1))
    if frame is not None and "__everstep__" in frame.f_globals:
        state = os.fstat(number)
        if stat.S_ISREG(state.st_mode):
            where = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
            _opened[number] = (state.st_dev, state.st_ino), where
    return number


def _asking(frame: FrameType | None) -> FrameType | None:
    """Who has called ``os.open``, or ``tempfile.mkstemp``; None for its file objects."""
    while frame is not None and frame.f_globals.get("__name__") == "tempfile":
        if frame.f_code.co_name == "opener":
            return None
        frame = frame.f_back
    return frame
