"""What is asked of this process from outside: the agent's control file and SIGTERM."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar

from everstep.model import handshake


class Requests:
    """The standing requests of the control file; the rules of when a save is due are here, the saving is not.

    A higher ``seq`` replaces what was asked before. With ``save`` it asks for a save at once and, if there is a
    ``save_by``, for another one shortly before it and for holding still from then on. With ``stop`` it asks for a save
    and the end.

    Args:
        path: the control file, None for no agent.
        started_at: UTC seconds when this process began: a ``save_by`` before that was not meant for it.
    """

    def __init__(self, path: Path | None, started_at: float) -> None:
        self._path = path
        self._started_at = started_at
        self._stamp: tuple[int, int, int] | None = None
        self._seq = 0
        self._save_by: float | None = None
        self.save = False
        self.stop = False
        self.holding = False
        self.hazard_per_h: float | None = None

    def look(self, now: float, margin_s: float) -> None:
        """Read the file if it changed, and raise `save` where the last save before ``save_by`` is due.

        Args:
            now: UTC seconds.
            margin_s: how long before ``save_by`` the last save must begin.
        """
        self._read()
        if self._save_by is not None and now >= self._save_by - margin_s:
            self._save_by = None
            self.save = True
            self.holding = True

    def saved(self) -> None:
        """A save was made: what was asked for until now is done (`holding` and `stop` stay)."""
        self.save = False

    def _read(self) -> None:
        if self._path is None:
            return
        try:
            stat = os.stat(self._path)
            stamp = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
            if stamp == self._stamp:
                return
            raw = json.loads(self._path.read_bytes())
            self._take(raw)
        except (OSError, ValueError, TypeError, AttributeError):
            # Absent or not readable now: the next boundary looks again.
            return
        self._stamp = stamp

    def _take(self, raw: dict[str, Any]) -> None:
        hazard = raw.get(handshake.CONTROL_HAZARD_PER_H)
        if hazard is not None:
            self.hazard_per_h = float(hazard)
        seq = int(raw.get(handshake.CONTROL_SEQ) or 0)
        self.stop = self.stop or bool(raw.get(handshake.CONTROL_STOP))
        if seq <= self._seq:
            return
        self._seq = seq
        self.save = bool(raw.get(handshake.CONTROL_SAVE))
        self.holding = False
        save_by = raw.get(handshake.CONTROL_SAVE_BY) if self.save else None
        self._save_by = float(save_by) if save_by is not None and float(save_by) > self._started_at else None


class Terminations:
    """Turns SIGTERM into a flag that is looked at at the next step boundary. Only the main thread can listen.

    Several may listen in one process, each for a training of its own: a SIGTERM is meant for all of them.
    """

    _listeners: ClassVar[list[Terminations]] = []
    _before: ClassVar[Callable[[int, FrameType | None], Any] | int | None] = None

    def __init__(self) -> None:
        self.asked = False
        self._pid = os.getpid()

    def listen(self) -> None:
        """Take over SIGTERM; a no-op outside the main thread."""
        if self in self._listeners or threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGTERM) is not _on_sigterm:
            Terminations._before = signal.signal(signal.SIGTERM, _on_sigterm)
        self._listeners.append(self)

    def release(self) -> None:
        """Stop listening; the last one gives SIGTERM back to whoever had it."""
        if self not in self._listeners or threading.current_thread() is not threading.main_thread():
            return
        self._listeners.remove(self)
        if not self._listeners:
            before = Terminations._before
            signal.signal(signal.SIGTERM, before if before is not None else signal.SIG_DFL)

    @classmethod
    def arrived(cls) -> None:
        """A SIGTERM came."""
        listeners = [one for one in cls._listeners if one._pid == os.getpid()]
        if not listeners:
            # A forked child (a data-loader worker) inherited the handler; it must die as it would have without us.
            end_by_sigterm()
        for one in listeners:
            one.ask()

    def ask(self) -> None:
        """Raise the flag."""
        self.asked = True


def end_by_sigterm() -> None:
    """End this process as SIGTERM does where nobody listens."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)


def _on_sigterm(_number: int, _frame: FrameType | None) -> None:
    Terminations.arrived()
