"""Files that are open in this process: found, flushed, described and brought to a saved offset."""

from __future__ import annotations

import fcntl
import gc
import io
import os
import re
from collections.abc import Collection, Container, Iterable
from typing import Any

_TOP = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom, io.FileIO)


def written_fds(paths: Container[str]) -> dict[int, str]:
    """File descriptors of this process that are open for writing on ``paths``."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink(f"/proc/self/fd/{name}")
            if path in paths and fcntl.fcntl(int(name), fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY:
                found[int(name)] = path
        except OSError:
            continue
    return found


def file_objects(fds: Container[int]) -> list[Any]:
    """The file objects over these descriptors, those with a text layer first."""
    found = []
    kinds = _with_subclasses(_TOP)
    # By type, which takes 50 ns an object; isinstance would also ask proxies for their __class__.
    for thing in [thing for thing in gc.get_objects() if type(thing) in kinds]:
        try:
            if not thing.closed and thing.fileno() in fds:
                found.append(thing)
        except (ValueError, OSError):
            continue
    return sorted(found, key=lambda file: not isinstance(file, io.TextIOWrapper))


def _with_subclasses(kinds: Iterable[type]) -> set[type]:
    found = set(kinds)
    for kind in kinds:
        found |= _with_subclasses(kind.__subclasses__())
    return found


def flush(fds: Collection[int]) -> None:
    """Write out what file objects over ``fds`` hold back."""
    for file in file_objects(fds) if fds else ():
        if file.writable():
            file.flush()


def describe(fds: dict[int, str]) -> list[dict[str, Any]]:
    """Path, offset and whether it only appends, of descriptors by number."""
    return [
        {
            "path": path,
            "offset": os.lseek(fd, 0, os.SEEK_CUR),
            "appends": bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_APPEND),
        }
        for fd, path in sorted(fds.items())
    ]


def shape(path: str) -> str:
    """A path without the numbers in it: equal for files that a time or a process number is part of."""
    return re.sub(r"\d+", "#", path)


def rejoin(fds: dict[int, str], saved: list[dict[str, Any]]) -> None:
    """Let handles that the replay's setup opened write where those of the save wrote.

    A handle belongs to the saved one of the same path. One whose file has another name now, because a time or a process
    number is part of it, gets the file of the saved handle, if only one of that shape was open.
    """
    for fd, path in fds.items():
        of_path = [handle for handle in saved if handle["path"] == path]
        if len(of_path) == 1:
            _seek(fd, of_path[0]["offset"])
            continue
        alike = [handle for handle in saved if shape(handle["path"]) == shape(path)]
        here = [other for other in fds.values() if shape(other) == shape(path)]
        if not of_path and len(alike) == len(here) == 1 and os.path.exists(alike[0]["path"]):
            _exchange(fd, alike[0])


def _seek(fd: int, offset: int) -> None:
    for file in file_objects({fd}):
        # Through the object where there is one: it keeps an idea of the offset.
        if isinstance(file, io.TextIOWrapper):
            file.flush()
            file.buffer.seek(offset)
        else:
            file.seek(offset)
        return
    os.lseek(fd, offset, os.SEEK_SET)


def _exchange(fd: int, saved: dict[str, Any]) -> None:
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    other = os.open(saved["path"], flags & (os.O_ACCMODE | os.O_APPEND) | os.O_CLOEXEC)
    try:
        os.dup2(other, fd, inheritable=False)
    finally:
        os.close(other)
    _seek(fd, saved["offset"])
