"""Marks between the output in the log of a rank, by which the logs of all attempts become one text.

The agent keeps what comes out of a pipe as the rank's log. Where standard output is that very pipe, a save leaves a
mark that says how much the script had printed. A relaunch says from where it goes on, and whoever reads the logs cuts
what came behind that mark: see "Marks" in `everstep.model.handshake`.

The machine that is lost takes with it the end of its log, and perhaps the mark. So a relaunch first repeats the end of
what was printed before the save, with the marks that stood in it: the newest of them that has arrived is where the text
goes on.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterable, Mapping

from everstep.model import handshake

_EVERY_S = 0.2
_REPEATED = 1 << 16
_MOST_REPEATED = 1 << 20
_MOST_KNOWN = 64


class Marks:
    """The marks of one process.

    Args:
        name: of the script, the same in all attempts.
        pipe: where standard output goes.
        env: variables of this process.

    Attributes:
        known: how many bytes were printed at the newest marks, ascending.
    """

    def __init__(self, name: str, pipe: int, env: Mapping[str, str]) -> None:
        self._name = "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in name)[-80:]
        self._pipe = pipe
        label = _label(pipe, env.get(handshake.ENV_LOG_PIPE, ""))
        # Of several ranks that torchrun starts the first speaks; those that the agent starts have logs of their own.
        first = (env.get("LOCAL_RANK") or "0") == "0" or env.get("RANK") == label
        self._speaks = label is not None and first
        self._beside = label is not None and not first
        self._marked_at = -_EVERY_S
        self.known: list[int] = []

    def begin(self) -> None:
        """The script begins at its beginning."""
        self.known = [0]
        self._mark(handshake.LOG_ON, 0)

    def at(self, count: int) -> None:
        """A save holds that so many bytes were printed."""
        now = time.monotonic()
        if self._beside and count:
            self._beside = False
            self._write(_mark(handshake.LOG_BESIDE, self._name, 0))
        if now - self._marked_at >= _EVERY_S:
            self._marked_at = now
            if self.known[-1:] != [count]:
                self.known = [*self.known[1 - _MOST_KNOWN :], count]
            self._mark(handshake.LOG_AT, count)

    def on(self, count: int, known: Iterable[int], log: int) -> None:
        """The script goes on behind ``count`` bytes, which are all that there is in the file ``log``."""
        marks = [at for at in known if at <= count]
        near = [at for at in marks if at >= count - _REPEATED] or [
            at for at in marks[-1:] if at >= count - _MOST_REPEATED
        ]
        self.known = [*(marks[1 - _MOST_KNOWN :] if marks else []), *([count] if marks[-1:] != [count] else [])]
        if not self._speaks:
            return
        self._mark(handshake.LOG_AGAIN, count)
        for at, end in zip(near, [*near[1:], count], strict=True):
            self._mark(handshake.LOG_AT, at)
            self._write(os.pread(log, end - at, at))
        self._mark(handshake.LOG_ON, count)

    def _mark(self, kind: str, count: int) -> None:
        if self._speaks:
            self._write(_mark(kind, self._name, count))

    def _write(self, data: bytes) -> None:
        # A mark is shorter than what the system writes in one piece: nobody else's output comes into the middle of it.
        left = memoryview(data)
        with contextlib.suppress(OSError):  # a log without marks is told as it is
            while left:
                left = left[os.write(self._pipe, left) :]


def _mark(kind: str, name: str, count: int) -> bytes:
    return handshake.LOG_MARK_BEGIN + f"{kind};{name};{count}".encode() + handshake.LOG_MARK_END


def _label(pipe: int, told: str) -> str | None:
    """Whose log it is; None if standard output is not the agent's pipe."""
    label, _, numbers = told.partition(":")
    where = os.fstat(pipe)
    return label if stat.S_ISFIFO(where.st_mode) and numbers == f"{where.st_dev}:{where.st_ino}" else None
