"""Stores the files of ``outputs`` before the machine goes."""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Callable
from urllib.parse import quote

from everstep.agent import transfer
from everstep.agent.link import Backoff, LinkDown, Session
from everstep.model import handshake as hs

log = logging.getLogger(__name__)

_TRY_FOR_S = 120.0
_AT_ONCE = 8  # a small file is three round trips and hardly any bytes
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Stored:
    """What arrived; ``error`` is the first failure, None if all did."""

    files: int
    bytes: int
    error: str | None


def files_of(paths: Iterable[tuple[str, Path]]) -> Iterator[tuple[str, Path]]:
    """Regular files below ``(name, path)`` pairs, as (relative name, file), sorted; links are not followed."""
    for name, path in paths:
        if path.is_file() and not path.is_symlink():
            yield name, path
        for parent, folders, names in os.walk(path):
            folders.sort()
            for entry in sorted(names):
                file = Path(parent) / entry
                if file.is_file() and not file.is_symlink():
                    yield (Path(name) / file.relative_to(path)).as_posix(), file


def output_name(text: str) -> str:
    """The name an output of the task has with the server: relative, without ``..``, ``~`` and leading slashes."""
    parts = [part for part in Path(os.path.normpath(text)).parts if part not in ("/", "..", "~")]
    return "/".join(parts) or "workdir"


def store(
    new_session: Callable[[], Session], paths: Iterable[tuple[str, Path]], *, stopping: Callable[[], bool]
) -> Stored:
    """Store every file, in the server's bucket or with the server itself, some at once.

    Each is tried for two minutes in which nothing of it gets there.
    """
    crew = _Crew(new_session, files_of(paths), stopping)
    # Daemons: an agent that has to go does not wait for them.
    threads = [threading.Thread(target=crew.work, name="outputs", daemon=True) for _ in range(_AT_ONCE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    first = min(crew.errors.items(), default=(0, None))
    return Stored(len(crew.sizes), sum(crew.sizes), first[1])


class _Crew:
    """Threads that take one file after the other.

    Attributes:
        sizes: in bytes, of the files that arrived.
        errors: why others did not, by their number.
    """

    def __init__(
        self, new_session: Callable[[], Session], files: Iterator[tuple[str, Path]], stopping: Callable[[], bool]
    ) -> None:
        self.sizes: list[int] = []
        self.errors: dict[int, str] = {}
        self._new_session = new_session
        self._files = enumerate(files)
        self._lock = threading.Lock()
        self._stopping = stopping

    def work(self) -> None:
        """Until there are no more."""
        session = self._new_session()
        with transfer.Bucket() as bucket:
            while True:
                found = self._next()
                if found is None:
                    break
                number, (name, file) = found
                try:
                    self.sizes.append(_Sending(session, name, file, self._stopping).go(bucket))
                except Exception as problem:  # whatever it is, it must be told, or the machine would never go
                    log.error("output %s was not stored: %s", name, problem)
                    self.errors[number] = f"{name}: {problem}"
        session.close()

    def _next(self) -> tuple[int, tuple[str, Path]] | None:
        with self._lock:
            try:
                return next(self._files, None)
            except OSError as problem:  # a folder that may not be read
                self.errors[-1] = str(problem)
                return None


class _Sending:
    """One file on its way."""

    def __init__(self, session: Session, name: str, file: Path, stopping: Callable[[], bool]) -> None:
        self._session = session
        self._name = name
        self._file = file
        self._stopping = stopping
        self._measured = ((-1, -1), "")
        self._began()

    def go(self, bucket: transfer.Bucket) -> int:
        """Store it and give its size in bytes.

        Raises:
            LinkDown, Refused: see :mod:`everstep.agent.link`.
            OSError: it cannot be read, or changes meanwhile.
            ValueError: its name is no text.
        """
        while True:
            try:
                with open(self._file, "rb") as content:
                    stamp = _stamp(content)
                    if self._measured[0] != stamp:
                        self._measured = (stamp, _digest(content))
                    if not self._by_url(bucket, content, stamp, self._measured[1]):
                        self._to_server(content, stamp[0], self._measured[1])
                return stamp[0]
            except LinkDown as error:
                self._wait(error)

    def _by_url(self, bucket: transfer.Bucket, content: IO[bytes], stamp: tuple[int, int], digest: str) -> bool:
        """False: not this way. Raises OSError for a file that changes meanwhile: nobody could say what was stored."""
        sent: dict[int, int] = {}
        # What was stored so often and is still missing went somewhere else than where the server looks.
        while not bucket.hopeless and max(sent.values(), default=0) < transfer.TRIES:
            puts = transfer.missing(self._session, self._name, stamp[0], digest)
            if puts is None:
                return False
            if not puts:
                return True
            for put in puts:
                try:
                    bucket.store(put.url, content, put.start, put.bytes)
                except transfer.Failed as error:
                    log.warning("output %s by URL: %s", self._name, error)
                    time.sleep(self._backoff.next_s())
                    break
                sent[put.start] = sent.get(put.start, 0) + 1
                self._began()
            if _stamp(content) != stamp:
                raise OSError("it changes while it is stored")
        return False

    def _to_server(self, content: IO[bytes], size: int, digest: str) -> None:
        headers = {
            "X-Everstep-Sha256": digest,
            "Content-Length": str(size),
            "Content-Type": "application/octet-stream",
        }
        path = hs.PATH_OUTPUTS + quote(self._name)
        content.seek(0)
        self._session.request("PUT", path, body=content, headers=headers, timeout_s=60.0)

    def _began(self) -> None:
        """Something got there: the two minutes begin anew."""
        self._backoff = Backoff()
        self._end = time.monotonic() + _TRY_FOR_S

    def _wait(self, error: LinkDown) -> None:
        """Until the next try; raises ``error`` if there is none."""
        pause = self._backoff.next_s(error)
        if self._stopping() or time.monotonic() + pause > self._end:
            raise error
        time.sleep(pause)


def _digest(content: IO[bytes]) -> str:
    digest = hashlib.sha256()
    for chunk in iter(lambda: content.read(_CHUNK), b""):
        digest.update(chunk)
    return digest.hexdigest()


def _stamp(content: IO[bytes]) -> tuple[int, int]:
    """Size in bytes, and when it was written to: another one means other bytes."""
    told = os.fstat(content.fileno())
    return told.st_size, told.st_mtime_ns
