"""Stores the files of ``outputs`` before the machine goes."""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Callable
from urllib.parse import quote

from everstep.agent import transfer
from everstep.agent.link import Backoff, LinkDown, Refused, Session
from everstep.model import handshake as hs

log = logging.getLogger(__name__)

_TRY_FOR_S = 120.0
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


def store(session: Session, paths: Iterable[tuple[str, Path]], *, stopping: Callable[[], bool]) -> Stored:
    """Store every file, in the server's bucket or with the server itself; each is tried for two minutes in which
    nothing of it gets there.
    """
    count = size = 0
    error: str | None = None
    with transfer.Bucket() as bucket:
        for name, file in files_of(paths):
            try:
                size += _Sending(session, name, file, stopping).go(bucket)
                count += 1
            except (OSError, ValueError, LinkDown, Refused) as problem:
                log.error("output %s was not stored: %s", name, problem)
                error = error or f"{name}: {problem}"
    return Stored(count, size, error)


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
        """Store it and give its size in bytes. Raises LinkDown, Refused, OSError."""
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
