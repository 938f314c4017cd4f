"""A submission whose answer was lost is repeated by its client; it must not become a second job.

The client makes a key per submission. A small file per key is written before the job is (``{"at", "digest", "job":
null}``) and again after it, so that a server that is killed in between still knows that there may be a job. Its
successor then looks for it in the journal: the same task, taken in between the file and the end of the old server.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everstep.model.codec import to_dict
from everstep.model.errors import BadInput, Conflict, EverstepError, Problem
from everstep.model.ids import JobId
from everstep.model.task import Task
from everstep.server.problems import disk_trouble

HEADER = "Idempotency-Key"
KEPT_S = 24 * 3600.0
"""How long a key is remembered; promised is an hour."""
_LONGEST_KEY = 200

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Lost:
    """A submission that a server before this one began and did not tell the end of.

    Attributes:
        after: UTC seconds; its job, if there is one, was taken in since then.
        claimed: jobs that belong to other submissions.
    """

    after: float
    claimed: frozenset[JobId]


Submit = Callable[[], Awaitable[JobId]]
Find = Callable[[Lost], Awaitable[JobId | None]]


class Submissions:
    """Keys of submissions and their jobs, one private file each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: dict[str, tuple[str, asyncio.Future[JobId]]] = {}
        self._unwritten: dict[str, dict[str, Any]] = {}
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    async def once(self, key: str, digest: str, *, now: float, submit: Submit, find: Find) -> JobId:
        """The job of a submission: by ``submit`` the first time, the same one for every repetition.

        Args:
            key: what the client called the submission.
            digest: names what is submitted.
            now: UTC seconds.
            submit: takes the job in. An ``EverstepError`` of it means that nothing was.
            find: the job of a submission that was cut off, if it got that far.

        Raises:
            BadInput: the key cannot be one. Conflict: it is that of another submission. DiskFull: nothing was taken in.
        """
        if not key.isascii() or not key.isprintable() or len(key) > _LONGEST_KEY:
            raise BadInput(Problem("", HEADER, f"expected at most {_LONGEST_KEY} printable ASCII characters"))
        name = hashlib.sha256(key.encode()).hexdigest()[:40]
        running = self._running.get(name)
        if running is None:
            # A task of its own: a client that goes away must not stop it half way.
            work = asyncio.ensure_future(self._once(name, digest, now, submit, find))
            running = self._running[name] = (digest, work)
            work.add_done_callback(lambda _: self._running.pop(name, None))
        if running[0] != digest:
            raise _misused()
        return await asyncio.shield(running[1])

    async def _once(self, name: str, digest: str, now: float, submit: Submit, find: Find) -> JobId:
        known = self._unwritten.get(name) or self._read(name)
        if known is not None:
            if known["digest"] != digest:
                raise _misused()
            if known["job"]:
                return JobId(known["job"])
            claimed = frozenset(JobId(other["job"]) for other in self._all() if other["job"])
            found = await find(Lost(float(known["at"]), claimed))
            if found is not None:
                self._keep(name, {**known, "job": found})
                return found
        entry = {"at": now, "digest": digest, "job": None}
        try:
            self._write(name, entry)
        except OSError as error:
            raise disk_trouble(error, str(self._folder)) from None
        try:
            job = await submit()
        except EverstepError:
            self._path(name).unlink(missing_ok=True)
            raise
        self._keep(name, {**entry, "job": job})
        return job

    def sweep(self, now: float) -> None:
        """Forgets keys of long ago."""
        for path in self._folder.glob("*.json"):
            entry = self._read(path.stem)
            if entry is None or now - float(entry["at"]) > KEPT_S:
                path.unlink(missing_ok=True)

    def _keep(self, name: str, entry: dict[str, Any]) -> None:
        try:
            self._write(name, entry)
        except OSError as error:
            # The job is taken in, whatever becomes of its key. Our successor will look for it.
            self._unwritten[name] = entry
            log.warning("the key of job %s could not be kept: %s", entry["job"], error)

    def _write(self, name: str, entry: dict[str, Any]) -> None:
        partial = self._path(name).with_suffix(".part")
        try:
            with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                json.dump(entry, file)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(self._path(name))
        finally:
            with contextlib.suppress(OSError):
                partial.unlink()

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            entry = json.loads(self._path(name).read_text())
            return {"at": float(entry["at"]), "digest": str(entry["digest"]), "job": entry["job"]}
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _all(self) -> Iterator[dict[str, Any]]:
        for path in self._folder.glob("*.json"):
            entry = self._read(path.stem)
            if entry is not None:
                yield entry

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.json"


def digest_of(task: Task, project: str) -> str:
    """Names a submission. Values of secrets are not in it: it stays on the disk longer than they may."""
    return hashlib.sha256(json.dumps([to_dict(task), project], sort_keys=True).encode()).hexdigest()


def _misused() -> Conflict:
    return Conflict(f"this {HEADER} was used for another submission; each needs its own")
