"""Stores the files of ``outputs`` with the server before the machine goes."""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Callable
from urllib.parse import quote

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
    """PUT every file; each is tried for two minutes."""
    count = size = 0
    error: str | None = None
    for name, file in files_of(paths):
        try:
            size += _put(session, name, file, stopping)
            count += 1
        except (OSError, LinkDown, Refused) as problem:
            log.error("output %s was not stored: %s", name, problem)
            error = error or f"{name}: {problem}"
    return Stored(count, size, error)


def _put(session: Session, name: str, file: Path, stopping: Callable[[], bool]) -> int:
    backoff = Backoff()
    end = time.monotonic() + _TRY_FOR_S
    while True:
        digest = hashlib.sha256()
        size = 0
        with open(file, "rb") as content:
            for chunk in iter(lambda: content.read(_CHUNK), b""):
                digest.update(chunk)
                size += len(chunk)
            content.seek(0)
            headers = {
                "X-Everstep-Sha256": digest.hexdigest(),
                "Content-Length": str(size),
                "Content-Type": "application/octet-stream",
            }
            try:
                session.request("PUT", hs.PATH_OUTPUTS + quote(name), body=content, headers=headers, timeout_s=60.0)
                return size
            except LinkDown as error:
                pause = backoff.next_s(error)
                if stopping() or time.monotonic() + pause > end:
                    raise
                time.sleep(pause)
