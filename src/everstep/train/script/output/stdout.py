"""Standard output: counted, muted during a replay, and kept as one log of all relaunches.

``DIR/stdout-RANK.log`` is cut back at each resume, so that in the end it equals the output of an uninterrupted run byte
for byte. If standard output itself is a regular file that the run had before (same device and inode), and the process
is alone, it is cut back too.

What goes to file descriptor 1 past ``sys.stdout`` (other programs, C libraries) is muted during the replay, but is
neither counted nor kept.
"""

from __future__ import annotations

import contextlib
import io
import os
import stat
import sys
from pathlib import Path
from typing import Any, TextIO

from everstep.train.script.output.marks import Marks


class _Tee(io.RawIOBase):
    """The bytes of ``sys.stdout``: into the log, and to where standard output goes."""

    def __init__(self, log: int, terminal: int) -> None:
        self._log = log
        self._terminal = terminal
        self._pid = os.getpid()
        self._broken = False
        self.muted = False

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return os.isatty(self._terminal)

    def fileno(self) -> int:
        return 1

    def write(self, data: Any) -> int:
        count = memoryview(data).nbytes
        if self.muted:
            return count
        # The output of a forked child is its own: it would come into the log at another place each time.
        if os.getpid() == self._pid and not self._broken:
            self._log_it(data)
        _write_all(self._terminal, data)
        return count

    def _log_it(self, data: Any) -> None:
        try:
            _write_all(self._log, data)
        except OSError as error:
            # A full disk must not end the training. What comes later would stand at the wrong place.
            self._broken = True
            why = error.strerror or str(error)
            print(f"everstep: the log of standard output ends here, {why}; training goes on", file=sys.stderr)


class Stdout:
    """Standard output of one rank.

    Args:
        folder: where the log is.
        rank: of this process.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self._name = folder.name
        self._path = folder / f"stdout-{rank}.log"
        self._tee: _Tee | None = None
        self._text: io.TextIOWrapper | None = None

    def begin(self, saved: dict[str, Any] | None) -> None:
        """Take over ``sys.stdout``; muted if a save is resumed, otherwise the log begins anew."""
        self._before: tuple[TextIO, TextIO | None] = sys.stdout, sys.__stdout__
        sys.stdout.flush()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._log = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._terminal = os.dup(1)
        self._marks = Marks(self._name, self._terminal, os.environ)
        self._tee = _Tee(self._log, self._terminal)
        self._text = _like(sys.stdout, self._tee)
        sys.stdout = sys.__stdout__ = self._text  # type: ignore[misc]
        if saved is None:
            self._cut(0, self._start())
            self._marks.begin()
            return
        self._tee.muted = True
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.close(null)

    def position(self) -> dict[str, Any]:
        """How much was written. Flushes."""
        self._flush()
        where = os.fstat(self._terminal)
        count = os.lseek(self._log, 0, os.SEEK_CUR)
        self._marks.at(count)
        return {"log": count, "file": _identity(where), "size": where.st_size, "marks": self._marks.known}

    def sync(self) -> None:
        """Make the log durable: a machine that is lost takes with it what no disk has."""
        with contextlib.suppress(OSError):
            os.fsync(self._log)

    def restored(self, saved: dict[str, Any]) -> None:
        """Cut back to ``saved``; what is written from now on is output."""
        assert self._tee is not None
        self._flush()
        there = os.fstat(self._log).st_size >= saved["log"]
        self._cut(saved["log"], saved)
        self._marks.on(saved["log"], saved.get("marks", ()) if there else (), self._log)
        os.dup2(self._terminal, 1)
        self._tee.muted = False

    def end(self) -> None:
        """Give ``sys.stdout`` back."""
        self._flush()
        os.dup2(self._terminal, 1)
        sys.stdout, sys.__stdout__ = self._before  # type: ignore[misc, assignment]
        os.close(self._log)
        os.close(self._terminal)

    def _flush(self) -> None:
        # The script may have put something over ours. What an object of its own holds back is in that object.
        for stream in (sys.stdout, self._text):
            if stream is not None and issubclass(type(stream), io.IOBase) and not stream.closed:
                stream.flush()

    def _start(self) -> dict[str, Any]:
        """Where standard output was when the run first began; noted at that time."""
        noted = self._path.with_suffix(".start")
        where = os.fstat(self._terminal)
        try:
            machine, *numbers = noted.read_text().split()
            device, inode, size = map(int, numbers)
            if machine != os.uname().nodename:
                raise ValueError("noted on another machine")
        except (FileNotFoundError, ValueError):
            noted.write_text(f"{os.uname().nodename} {where.st_dev} {where.st_ino} {where.st_size}")
            device, inode, size = where.st_dev, where.st_ino, where.st_size
        return {"file": (device, inode) if stat.S_ISREG(where.st_mode) else None, "size": size}

    def _cut(self, log: int, saved: dict[str, Any]) -> None:
        os.ftruncate(self._log, log)
        os.lseek(self._log, log, os.SEEK_SET)
        where = os.fstat(self._terminal)
        alone = int(os.environ.get("WORLD_SIZE") or 1) == 1
        same = saved["file"] is not None and saved["file"] == _identity(where)
        if alone and same and where.st_size >= saved["size"]:
            os.ftruncate(self._terminal, saved["size"])
            os.lseek(self._terminal, saved["size"], os.SEEK_SET)


def _like(text: TextIO, tee: _Tee) -> io.TextIOWrapper:
    return io.TextIOWrapper(
        io.BufferedWriter(tee),
        encoding=getattr(text, "encoding", None) or "utf-8",
        errors=getattr(text, "errors", None),
        newline="\n",
        line_buffering=bool(getattr(text, "line_buffering", False)),
        write_through=bool(getattr(text, "write_through", False)),
    )


def _identity(where: os.stat_result) -> tuple[int, int] | None:
    return (where.st_dev, where.st_ino) if stat.S_ISREG(where.st_mode) else None


def _write_all(fd: int, data: Any) -> None:
    left = memoryview(data).cast("B")
    while left:
        left = left[os.write(fd, left) :]
