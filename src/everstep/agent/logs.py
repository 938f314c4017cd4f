"""Log files on their way to the server: by offset, one chunk at a time, again after every failure.

The files are written by keepers (masked already). The shipper never reads ahead of what the server took: a slow server
makes the files wait on disk, not in memory.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from everstep.agent.link import Backoff, LinkDown, Refused, Session
from everstep.model import handshake as hs

log = logging.getLogger(__name__)

_CHUNK = 256 << 10
_IDLE_S = 0.2
_TAIL_BYTES = 8192
_MARK = re.compile(
    f"{re.escape(hs.LOG_MARK_BEGIN.decode())}.{{0,{hs.LOG_MARK_LONGEST}}}?{re.escape(hs.LOG_MARK_END.decode())}"
)


def tail(path: Path, lines: int = 30) -> str:
    """The last lines of a log, at most 8 KiB; empty if there is none."""
    try:
        with open(path, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(_MARK.sub("", text).splitlines()[-lines:])


@dataclass
class _Stream:
    path: Path
    offset: int = 0
    known: bool = False  # whether the server told what it holds
    last: bool = False  # nothing will be appended any more


class LogShipper:
    """A thread that streams every log file it was told of."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._lock = threading.Lock()
        self._streams: dict[tuple[int, str], _Stream] = {}
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="logs", daemon=True)

    def start(self) -> None:
        """Begin to ship."""
        self._thread.start()

    def follow(self, attempt: int, rank: str, path: Path) -> None:
        """Ship ``path`` as the log of ``rank`` of ``attempt``; the server says from where."""
        with self._lock:
            self._streams.setdefault((attempt, rank), _Stream(path)).last = False
        self._wake.set()

    def finish(self, attempt: int, rank: str) -> None:
        """The log has grown for the last time; it is forgotten once all of it is shipped."""
        with self._lock:
            if (attempt, rank) in self._streams:
                self._streams[attempt, rank].last = True
        self._wake.set()

    def resume(self, folder: Path) -> None:
        """Ship what an earlier agent may have left unsent."""
        for path in sorted(folder.glob("*/*.log")):
            if path.parent.name.isdigit():
                attempt = int(path.parent.name)
                self.follow(attempt, path.stem, path)
                self.finish(attempt, path.stem)

    def drain(self, timeout_s: float) -> bool:
        """Wait until everything written so far is shipped; False if the time ran out first."""
        end = time.monotonic() + timeout_s
        while self._pending():
            if time.monotonic() > end:
                return False
            self._wake.set()
            time.sleep(0.02)
        return True

    def stop(self) -> None:
        """Ship no more."""
        self._stopping = True
        self._wake.set()

    def _pending(self) -> bool:
        with self._lock:
            return any(not stream.known or stream.offset < _size(stream.path) for stream in self._streams.values())

    def _run(self) -> None:
        backoff = Backoff()
        while not self._stopping:
            try:
                moved = self._round()
                backoff.reset()
                pause = 0.0 if moved else _IDLE_S
            except (LinkDown, Refused) as error:
                log.debug("logs not shipped: %s", error)
                pause = backoff.next_s(error)
            except Exception:  # logs are the least of what we do: never let them end the thread
                log.exception("shipping logs failed")
                pause = backoff.next_s()
            if pause:
                self._wake.wait(pause) if pause <= _IDLE_S else time.sleep(pause)
            self._wake.clear()
        self._session.close()

    def _round(self) -> bool:
        """One chunk of every stream that has something; whether anything moved."""
        with self._lock:
            streams: list[tuple[tuple[int, str], _Stream]] = list(self._streams.items())
        moved = False
        for (attempt, rank), stream in streams:
            last = stream.last  # read before the size: what is written before `last` is seen
            size = _size(stream.path)
            if size > stream.offset or (size and not stream.known):
                try:
                    moved = self._ship(attempt, rank, stream, size) or moved
                except Refused as error:
                    if error.unknown or error.fenced or error.status == 429:
                        raise
                    log.warning("the server refuses the log of rank %s of attempt %d: %s", rank, attempt, error)
                    self._forget(attempt, rank)
            elif last:
                self._forget(attempt, rank)
            else:
                stream.known = True
        return moved

    def _ship(self, attempt: int, rank: str, stream: _Stream, size: int) -> bool:
        data = b""
        if stream.known or size <= _CHUNK:
            with open(stream.path, "rb") as file:
                file.seek(stream.offset)
                data = file.read(_CHUNK)
        query = {"attempt": attempt, "rank": rank, "offset": stream.offset}
        headers = {"Content-Type": "application/octet-stream"}
        answer = self._session.request("POST", hs.PATH_LOGS, query=query, body=data, headers=headers, timeout_s=30.0)
        held = answer.json().get("offset")
        if not isinstance(held, int) or isinstance(held, bool) or held < 0:
            raise LinkDown("the server's answer to logs has no offset")
        before = stream.offset
        moved = not stream.known or held != before
        stream.offset = min(held, max(size, before + len(data)))
        stream.known = True
        return moved

    def _forget(self, attempt: int, rank: str) -> None:
        with self._lock:
            self._streams.pop((attempt, rank), None)


def _size(path: Path, default: int = 0) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return default


def log_path(folder: Path, attempt: int | None, rank: str) -> Path:
    """Where the log of a rank of an attempt is kept (attempt 0: before the first one)."""
    return folder / str(attempt or 0) / f"{rank}.log"
