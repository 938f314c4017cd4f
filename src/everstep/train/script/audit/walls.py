"""What an audit may change: its own folder, caches, and temporary files that it makes itself. Nothing else.

Two walls. Landlock, where the kernel has it (Linux 5.13), stops every write of this process and of all that it starts.
An audit hook of Python stops what goes through Python on any kernel, protects the user's folders also where they lie
below the folder of temporary files, and knows the path: the audit ends there, and says which.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import tempfile
from collections.abc import Sequence
from typing import Any, NoReturn

from everstep.train.script.output import watch
from everstep.train.script.output.aside import remove
from everstep.train.script.output.journal import excluded
from everstep.train.script.refusal import leave

EXIT_WALL = 77
"""Exit code of a child that was about to change something that is not its own; the path is in the file `WALL`."""
WALL = "wall.txt"


class Walls:
    """Told of every change before it is made.

    Args:
        job: the audit's folder.
        protected: folders of the run: nothing may be made in them either.
    """

    def __init__(self, job: str, protected: Sequence[str]) -> None:
        self._job = os.path.realpath(job)
        self._protected = tuple(os.path.realpath(path) + os.sep for path in protected)
        self._temporary = os.path.realpath(tempfile.gettempdir()) + os.sep
        caches = [os.environ.get("XDG_CACHE_HOME") or "~/.cache", "~/.triton", "~/.nv"]
        self._caches = tuple(os.path.realpath(os.path.expanduser(path)) + os.sep for path in caches)
        self._made: set[str] = set()
        self._pid = os.getpid()

    def put_up(self) -> bool:
        """From now on. True if the kernel helps; False: programs that are started, and C libraries, are not stopped."""
        watch.guard(self)
        # The folder of temporary files may hold those of the run: there the hook alone keeps guard.
        return _landlock([self._job, "/dev", "/proc", self._temporary, *self._caches])

    def changes(self, path: str, how: str) -> None:
        """See `watch.Listener`."""
        if excluded(path, self._job) or path.startswith(self._caches):
            return
        there = os.path.lexists(path)
        if (how == "remove" and not there) or (how == "folder" and os.path.isdir(path)):
            return  # it will fail, or do nothing
        if path.startswith(self._temporary) and not path.startswith(self._protected):
            if not there:
                self._made.add(path)
            if path in self._made:
                return
        self._stop(path)

    def reads(self, path: str) -> None:
        """See `watch.Listener`."""

    def moves(self, source: str, target: str) -> None:
        """See `watch.Listener`."""
        self.changes(source, "remove")
        self.changes(target, "replace")

    def clean(self) -> None:
        """Remove the temporary files that were made."""
        for path in sorted(self._made, reverse=True):
            with contextlib.suppress(OSError):
                remove(path)

    def _stop(self, path: str) -> NoReturn:
        with contextlib.suppress(OSError), open(os.path.join(self._job, WALL), "x") as file:
            file.write(path)
        if os.getpid() != self._pid:
            raise PermissionError(f"everstep: an audit must not change {path}")  # it comes up in the training process
        leave(EXIT_WALL)


_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_NO_NEW_PRIVILEGES = 38
_BENEATH = 1
# Writing, removing and making of every kind (Landlock ABI 1), moving between folders (2), truncating (3).
_RIGHTS = {1: 0b1_1111_1111_0010, 2: 1 << 13, 3: 1 << 14}
_ON_FILES = (1 << 1) | (1 << 14)


_libc = ctypes.CDLL(None, use_errno=True)


def kernel_helps() -> bool:
    """Whether this kernel has Landlock."""
    return _version() >= 1


def _version() -> int:
    return _call(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(1))


def _call(number: int, *arguments: Any) -> int:
    return int(_libc.syscall(ctypes.c_long(number), *arguments))


def _landlock(allowed: Sequence[str]) -> bool:
    """Let this process and its children write below these paths only. False where the kernel cannot do that."""
    version = _version()
    if version < 1:
        return False
    rights = sum(right for since, right in _RIGHTS.items() if since <= version)
    attributes = struct.pack("Q", rights)
    rules = _call(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0))
    if rules < 0:
        return False
    try:
        for path in allowed:
            with contextlib.suppress(FileNotFoundError):
                _allow(rules, path, rights)
        if _libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) != 0:
            return False
        return _call(_RESTRICT_SELF, ctypes.c_int(rules), ctypes.c_uint32(0)) == 0
    except OSError:
        return False
    finally:
        os.close(rules)


def _allow(rules: int, path: str, rights: int) -> None:
    folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = struct.pack("=Qi", rights if os.path.isdir(path) else rights & _ON_FILES, folder)
        if _call(_ADD_RULE, ctypes.c_int(rules), ctypes.c_int(_BENEATH), rule, ctypes.c_uint32(0)) != 0:
            raise OSError(ctypes.get_errno(), "landlock_add_rule")
    finally:
        os.close(folder)
