"""Buckets that the server has the keys of, and machines have not: URLs that live for minutes, below one job's place.

A node is given what it needs to move the checkpoints of its own job, and nothing that outlives it. What must be decided
once (who creates an object) and what no URL can do (list, delete) goes through the server itself.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from everstep.blobs import UnsafeBlobs, open_blobs, probe_if_absent
from everstep.blobs.keys import check_key, check_prefix
from everstep.brain.lifecycle.orders import mirror_place
from everstep.model.errors import BadInput, EverstepError, NotFound, Problem
from everstep.model.job import JobState
from everstep.ports import BlobExists, BlobInfo, BlobMissing, Blobs, BlobsRefuse
from everstep.server.problems import Refused

log = logging.getLogger(__name__)
T = TypeVar("T")

LIFE_S = 900.0
"""How long a URL is good for: a part of a shard takes seconds, and whoever waited longer asks again."""
MOST_KEYS = 256
"""In one request."""
OBJECT_BYTES = 1 << 20
"""Largest object that is created through the server: records of attempts are a hundred bytes."""
# Nothing that a parser of URLs may read in another way than we do.
_URL = re.compile(r"(s3|gs)://[A-Za-z0-9._-]+(/[A-Za-z0-9._~=+,@:-]+)*")
OPTIONS = frozenset({"endpoint", "region"})
"""What may be said of a bucket. Its keys are found as for backups: the configuration is no place for them."""


class BucketTrouble(Refused):
    """The bucket gives no answer."""

    def __init__(self, url: str, error: Exception) -> None:
        super().__init__(503, "unavailable", f"{url} gives no answer: {_words(error)}")


class BucketRefuses(Refused):
    """The bucket, or its kind, will not do it, however often it is asked."""

    def __init__(self, url: str, error: Exception) -> None:
        super().__init__(422, "bad_input", f"{url}: {_words(error)}")


class Bucket:
    """One bucket, or a folder of one, that the configuration names.

    Args:
        url: ``s3://BUCKET[/PREFIX]`` or ``gs://``.
        blobs: opened there.
    """

    def __init__(self, url: str, blobs: Blobs) -> None:
        self.url = url
        self.blobs = blobs
        self.trouble = ""
        """What it said last, if that was no; for people."""
        self._trusted = False
        self._probing = asyncio.Lock()

    async def trust(self) -> None:
        """Raises UnsafeBlobs if two writers could both create one object; tries it out the first time."""
        async with self._probing:
            if not self._trusted:
                await probe_if_absent(self.blobs)
                self._trusted = True


class Buckets:
    """The buckets of ``config.yaml``, and which part of them is a job's.

    Args:
        given: options of ``open_blobs`` by URL.
        life_s: how long a signed URL is good for, seconds.

    Raises:
        BadInput: a URL or an option is not understood.
    """

    def __init__(self, given: Mapping[str, Mapping[str, str]], *, life_s: float = LIFE_S) -> None:
        self._life_s = life_s
        # A folder of a bucket before the bucket itself.
        self._buckets = [_opened(url, given[url]) for url in sorted(given, key=len, reverse=True)]
        self._reserved = ""

    def reserve(self, url: str, name: str) -> Place:
        """The folder ``name`` below ``url``, for the server itself: no job's mirror may lie there.

        Raises:
            BadInput: ``url`` is not in one of these buckets.
        """
        place = url.rstrip("/")
        for bucket in self._buckets if _plain(place) else ():
            if f"{place}/".startswith(f"{bucket.url}/"):
                self._reserved = f"{place}/{name}"
                return Place(bucket, self._reserved.removeprefix(f"{bucket.url}/"), self._life_s)
        fix = "write s3://BUCKET/PREFIX or gs://BUCKET/PREFIX, and name the bucket under 'buckets'"
        raise BadInput(Problem("config.yaml", "files", f"'{url}' is in none of the 'buckets'", fix))

    def place(self, state: JobState) -> Place:
        """Where the mirror of a job is.

        Raises:
            NotFound: it has none, or none in one of these buckets.
        """
        url = mirror_place(state)
        if not url:
            raise NotFound(f"job {state.id} has no checkpoint.mirror")
        taken = self._reserved and f"{url}/".startswith(f"{self._reserved}/")
        if _plain(url) and not taken:
            for bucket in self._buckets:
                if url.startswith(f"{bucket.url}/"):
                    return Place(bucket, url.removeprefix(f"{bucket.url}/"), self._life_s)
        raise NotFound(
            f"this server signs nothing for {url}: name the bucket under 'buckets' in its config.yaml, or give the job "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY of its own"
        )


@dataclass(frozen=True)
class Place:
    """The part of a bucket that is one job's. Keys are relative to it.

    Every method raises BadInput for a key or prefix that leads anywhere else, BucketRefuses and BucketTrouble.
    """

    bucket: Bucket
    folder: str
    life_s: float

    async def sign(self, method: str, keys: Sequence[str]) -> list[str]:
        """URLs with which anyone may ``GET`` or ``PUT`` these objects for ``life_s`` seconds."""
        if method not in ("GET", "PUT"):
            raise BadInput(Problem("", "method", "expected GET or PUT"))
        wanted = [self.key(key) for key in keys]
        calls = (self.bucket.blobs.presign(key, method=method, ttl_s=self.life_s) for key in wanted)
        return [url or "" for url in await self._asked(asyncio.gather(*calls))]

    async def list(self, prefix: str) -> dict[str, int]:
        """Sizes of the objects whose keys begin so."""
        return {info.key: info.size for info in await self.listed(prefix)}

    async def listed(self, prefix: str) -> Sequence[BlobInfo]:
        """The objects whose keys begin so."""
        try:
            check_prefix(prefix)
        except ValueError as error:
            raise BadInput(Problem("", "prefix", str(error))) from None
        above = f"{self.folder}/"
        found = await self._asked(self.bucket.blobs.list(above + prefix))
        return [replace(info, key=info.key.removeprefix(above)) for info in found]

    async def put(self, key: str, data: bytes) -> None:
        """Stores an object, in place of another of that key."""
        await self._asked(self.bucket.blobs.put(self.key(key), data))

    async def get(self, key: str) -> bytes:
        """The object. Raises BlobMissing."""
        return await self._asked(self.bucket.blobs.get(self.key(key)))

    async def delete(self, keys: Sequence[str]) -> None:
        """Deletes what is there of these."""
        wanted = [self.key(key) for key in keys]
        await self._asked(asyncio.gather(*(self.bucket.blobs.delete(key) for key in wanted)))

    async def create(self, key: str, data: bytes) -> bool:
        """Stores an object unless one of that key is there; false if it was."""
        wanted = self.key(key)
        await self._asked(self.bucket.trust())
        try:
            await self._asked(self.bucket.blobs.put(wanted, data, if_absent=True))
        except BlobExists:
            return False
        return True

    def key(self, key: str) -> str:
        """Its name in the bucket."""
        try:
            return f"{self.folder}/{check_key(key)}"
        except ValueError as error:
            raise BadInput(Problem("", "key", str(error))) from None

    async def _asked(self, call: Awaitable[T]) -> T:
        try:
            answer = await call
        except (BlobExists, BlobMissing, EverstepError) as error:
            if isinstance(error, UnsafeBlobs):
                raise BucketRefuses(self.bucket.url, error) from error
            raise
        except BlobsRefuse as error:
            self.bucket.trouble = _words(error)
            raise BucketRefuses(self.bucket.url, error) from error
        except Exception as error:
            self.bucket.trouble = _words(error)
            log.warning("%s: %s", self.bucket.url, _words(error))
            raise BucketTrouble(self.bucket.url, error) from error
        self.bucket.trouble = ""
        return answer


def _words(error: Exception) -> str:
    """Its first words: what follows is long, and the library's own affair."""
    return " ".join(str(error).split())[:300]


def _opened(url: str, options: Mapping[str, str]) -> Bucket:
    place = url.rstrip("/")
    if not _plain(place):
        fix = "write s3://BUCKET, s3://BUCKET/PREFIX or gs://..."
        raise BadInput(Problem("config.yaml", "buckets", f"'{url}' is no bucket whose URLs can be signed", fix))
    for name in options:
        if name not in OPTIONS:
            fix = f"known: {', '.join(sorted(OPTIONS))}; keys come from the environment or the role of the server"
            raise BadInput(Problem("config.yaml", f"buckets.{url}", f"unknown key '{name}'", fix))
    return Bucket(place, open_blobs(place, **options))


def _plain(url: str) -> bool:
    return _URL.fullmatch(url) is not None and not {".", ".."} & set(url.split("/"))
