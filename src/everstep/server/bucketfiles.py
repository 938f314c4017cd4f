"""Working folders and outputs in a bucket, where the server has one for them: ``files`` in its configuration.

Below its place there, all objects written once and never changed:

    uploads/SHA256.tar.gz                        packed folders; the server puts them there, machines fetch them
    outputs/JOB/MACHINE/PATH/SHA256.00000 ...    parts of one output; the machine puts them there

A machine gets URLs to write below its own name and nowhere else. An output exists once it is on the job's list, which
is on the server's own disk (``BucketList``): that is where all parts are seen to be there, and whoever reads it meets
nothing that is still coming in. Where the bucket is no help, the server's own routes are: every question about a
transfer may be answered with None, "not by URL".
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import json
import logging
import os
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from everstep.blobs.keys import MAX_KEY_BYTES
from everstep.model.errors import BadInput, NotFound, Problem
from everstep.model.ids import InstanceId, JobId
from everstep.ports import BlobMissing
from everstep.server.buckets import BucketRefuses, BucketTrouble, Place
from everstep.server.files import OUTPUT_BYTES, StoredFile, checked_path
from everstep.server.problems import TooLarge, disk_trouble

log = logging.getLogger(__name__)
T = TypeVar("T")

PART_BYTES = 64 << 20
"""An output is parts of this size and a last one: what broke off goes on where it was, in any store."""
_SIGNED_AHEAD = 32
_PATIENCE_S = 20.0
_SWEEP_S = 86_400.0
_LISTS_KNOWN = 16
_LONGEST_KEY = MAX_KEY_BYTES - 200
"""Below our place, whose own name comes before it."""
_UPLOADS = "uploads/"
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Put:
    """A stretch of a file, in bytes, and the URL to which it goes."""

    url: str
    start: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Listed:
    """An output in the bucket: path below the job's outputs, size, digest, and the folder of its parts."""

    path: str
    bytes: int
    sha256: str
    folder: str


class BucketList:
    """Which outputs of which job are in the bucket: a file per job, a line for each that came; the last one of a path
    counts.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[JobId, tuple[int, Mapping[str, Listed]]] = {}
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def read(self, job: JobId) -> Mapping[str, Listed]:
        """By path."""
        path = self._path(job)
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            return {}
        known = self._known.get(job)
        if known is None or known[0] != size:  # it only grows
            content = path.read_bytes()
            known = self._known[job] = len(content), _parsed(content)
            while len(self._known) > _LISTS_KNOWN:
                self._known.pop(next(iter(self._known)), None)
        return known[1]

    def add(self, job: JobId, output: Listed) -> None:
        """Keeps it for good. Raises DiskFull."""
        self._write(job, asdict(output))

    def drop(self, job: JobId, path: str) -> None:
        """It is somewhere else now. Raises DiskFull."""
        if path in self.read(job):
            self._write(job, {"path": path, "gone": True})

    def _write(self, job: JobId, line: object) -> None:
        # A line of its own, even behind the half of one that had no room.
        text = b"\n" + json.dumps(line).encode() + b"\n"
        try:
            with open(self._path(job), "ab", buffering=0) as file:
                if file.write(text) != len(text):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(file.fileno())
        except OSError as error:
            raise disk_trouble(error, str(self._folder)) from None

    def _path(self, job: JobId) -> Path:
        return self._folder / f"{job}.jsonl"


def _parsed(content: bytes) -> Mapping[str, Listed]:
    found: dict[str, Listed] = {}
    for line in content.splitlines():
        # A server that was killed may have left half a line; the machine was not answered, and asks again.
        with contextlib.suppress(ValueError, TypeError, KeyError):
            told = json.loads(line)
            if told.get("gone"):
                found.pop(told["path"], None)
            else:
                found[told["path"]] = Listed(**told)
    return found


class BucketFiles:
    """What lies in the bucket, and what of it a machine may move.

    Args:
        place: of this deployment alone.
        folder: of the lists of outputs, on the server's own disk.
        upload: where the server holds an archive itself; None if it does not.
    """

    def __init__(self, place: Place, folder: Path, upload: Callable[[str], Path | None]) -> None:
        self._place = place
        self._lists = BucketList(folder)
        self._upload = upload
        self._there: dict[str, asyncio.Task[int]] = {}

    @property
    def text(self) -> str:
        """For people: where it is, and what is wrong if something is."""
        trouble = self._place.bucket.trouble
        return f"{self._place.bucket.url}/{self._place.folder}" + (f"; failing: {trouble}" if trouble else "")

    # --- Working folders --------------------------------------------------------------------------------------------

    def begin(self, digests: Iterable[str]) -> None:
        """Begins to put archives into the bucket: machines that are yet to come will fetch them there."""
        for digest in digests:
            self._on_its_way(digest)

    async def folder(self, digest: str) -> tuple[str, int] | None:
        """URL and size in bytes of an archive; waits for it to be in the bucket, but not for long."""

        async def find() -> tuple[str, int]:
            size = await asyncio.shield(self._on_its_way(digest))
            (url,) = await self._place.sign("GET", [f"{_UPLOADS}{digest}.tar.gz"])
            return url, size

        return await self._or_not(find())

    async def keep_tidy(self, *, older_than_s: float) -> None:
        """Sweeps once a day, until cancelled. Failures are told, not raised."""
        while True:
            try:
                await self.sweep_uploads(older_than_s=older_than_s)
            except (BucketTrouble, BucketRefuses) as error:
                log.warning("old folders were not looked for: %s", error)
            await asyncio.sleep(_SWEEP_S)

    async def sweep_uploads(self, *, older_than_s: float) -> list[str]:
        """Deletes archives that the server does not hold itself any more; gives their keys."""
        found = await self._place.listed(_UPLOADS)
        old = [info for info in found if time.time() - info.modified_at > older_than_s]
        gone = [info.key for info in old if self._upload(Path(info.key).name.partition(".")[0]) is None]
        await self._place.delete(gone)
        for key in gone:
            self._there.pop(Path(key).name.partition(".")[0], None)
        return gone

    def _on_its_way(self, digest: str) -> asyncio.Task[int]:
        task = self._there.get(digest)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = self._there[digest] = asyncio.ensure_future(self._put_upload(digest))
            task.add_done_callback(_look_at)
        return task

    async def _put_upload(self, digest: str) -> int:
        path = self._upload(digest)
        if path is None:
            raise NotFound(f"the archive {digest} is not held any more; submit the job again")
        key, size = f"{_UPLOADS}{digest}.tar.gz", path.stat().st_size
        if (await self._place.list(key)).get(key) != size:
            await self._place.put(key, await asyncio.to_thread(path.read_bytes))
        return size

    # --- Outputs ------------------------------------------------------------------------------------------------------

    async def output(self, job: JobId, instance: InstanceId, told: Listed) -> Sequence[Put] | None:
        """What a machine has to store of an output so that it is whole; nothing: it is, and on the list.

        Args:
            job: whose.
            instance: the machine that has it.
            told: what the machine says of it; ``folder`` is of no interest.

        Raises:
            BadInput: the path leaves the job's outputs, or the digest is none. TooLarge.
            DiskFull: it could not be listed.
        """
        path = checked_path(told.path)
        if not _DIGEST.fullmatch(told.sha256) or told.bytes < 0:
            raise BadInput(Problem("", "sha256", "expected 64 digits 0-9 a-f, and a size of at least 0"))
        if told.bytes > OUTPUT_BYTES:
            raise TooLarge(OUTPUT_BYTES, path)
        folder = f"outputs/{job}/{_named(instance)}/{path}"
        parts = list(_parts(Listed(path, told.bytes, told.sha256, folder)))
        if len(parts[-1][0].encode("utf-8", "replace")) > _LONGEST_KEY:
            return None

        async def look() -> Sequence[Put]:
            there = await self._place.list(f"{folder}/{told.sha256}.")
            missing = [part for part in parts if there.get(part[0]) != part[2]][:_SIGNED_AHEAD]
            urls = await self._place.sign("PUT", [key for key, _, _ in missing])
            return [Put(url, start, size) for url, (_, start, size) in zip(urls, missing, strict=True)]

        puts = await self._or_not(look())
        if puts is not None and not puts:
            await asyncio.to_thread(self._lists.add, job, Listed(path, told.bytes, told.sha256, folder))
        return puts

    def outputs(self, job: JobId) -> list[StoredFile]:
        """Those on the list of a job."""
        return [StoredFile(one.path, one.bytes) for one in self._lists.read(job).values()]

    def find(self, job: JobId, path: str) -> Listed | None:
        """One of them; None: it is not there."""
        return self._lists.read(job).get(path)

    def drop(self, job: JobId, path: str) -> None:
        """The server itself has a newer output of that path."""
        self._lists.drop(job, path)

    async def read(self, output: Listed) -> AsyncIterator[bytes]:
        """Its bytes. The last piece comes only if all of them together are what the machine had.

        Raises:
            NotFound: somebody deleted or changed it. BucketTrouble, BucketRefuses.
        """
        sha = hashlib.sha256()
        held = b""
        for key, _, size in _parts(output):
            if held:
                yield held
            try:
                held = await self._place.get(key)
            except BlobMissing:
                held = b""
            if len(held) != size:
                raise NotFound(f"{output.path}: {key} in {self._place.bucket.url} is not what was stored there")
            await asyncio.to_thread(sha.update, held)
        if sha.hexdigest() != output.sha256:
            raise NotFound(f"{output.path}: what is in {self._place.bucket.url} is not what the machine had")
        yield held

    async def _or_not(self, call: Awaitable[T]) -> T | None:
        """None where the bucket does not do it: whoever asks goes the other way."""
        try:
            async with asyncio.timeout(_PATIENCE_S):
                return await call
        except TimeoutError:
            self._place.bucket.trouble = f"no answer within {_PATIENCE_S:.0f} s"
        except (BucketTrouble, BucketRefuses):
            pass
        log.warning("not by URL: %s", self.text)
        return None


def _parts(output: Listed) -> Iterator[tuple[str, int, int]]:
    """Key, beginning in the file and size of each object that an output is made of; at least one."""
    for number, start in enumerate(range(0, max(output.bytes, 1), PART_BYTES)):
        size = min(PART_BYTES, output.bytes - start)
        yield f"{output.folder}/{output.sha256}.{number:05d}", start, size


def _named(instance: InstanceId) -> str:
    """As part of a key. Dots alone would lead elsewhere, and quoting leaves them."""
    name = quote(instance, safe="")
    return name if name.strip(".") else f"%2E{name[1:]}"


def _look_at(task: asyncio.Task[int]) -> None:
    """An archive that nobody waited for: that it did not get there is told once."""
    if not task.cancelled() and task.exception() is not None:
        log.warning("not put into the bucket: %s", task.exception())
