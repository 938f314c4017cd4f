"""The probe refuses stores that break the promise, each in its own way."""

from __future__ import annotations

import asyncio

import pytest

from everstep.blobs import UnsafeBlobs, probe_if_absent
from everstep.blobs.objects import ObstoreBlobs
from everstep.ports import BlobExists


class IgnoresTheCondition(ObstoreBlobs):
    async def put(self, key: str, data: bytes, *, if_absent: bool = False) -> None:
        await super().put(key, data)


class LooksFirst(ObstoreBlobs):
    """Right in turn, wrong at once: it looks, and writes later."""

    async def put(self, key: str, data: bytes, *, if_absent: bool = False) -> None:
        if if_absent and await self.list(key):
            raise BlobExists(key)
        await asyncio.sleep(0.01)
        await super().put(key, data)


class WritesAndRefuses(ObstoreBlobs):
    async def put(self, key: str, data: bytes, *, if_absent: bool = False) -> None:
        there = bool(await self.list(key))
        await super().put(key, data)
        if if_absent and there:
            raise BlobExists(key)


class RefusesAll(ObstoreBlobs):
    async def put(self, key: str, data: bytes, *, if_absent: bool = False) -> None:
        raise BlobExists(key)


class Forgets(ObstoreBlobs):
    async def get(self, key: str) -> bytes:
        await self.delete(key)
        return await super().get(key)


@pytest.mark.parametrize(
    ("liar", "complaint"),
    [
        (IgnoresTheCondition, "2 of 2 writers were told that they created"),
        (LooksFirst, "8 of 8 writers were told that they created"),
        (WritesAndRefuses, "a refused put replaced the object"),
        (RefusesAll, "0 of 2 writers"),
        (Forgets, "an object that it created is not there"),
    ],
)
async def test_liars_are_refused_and_nothing_is_left(liar: type[ObstoreBlobs], complaint: str) -> None:
    blobs = liar("memory://")
    with pytest.raises(UnsafeBlobs, match=complaint):
        await probe_if_absent(blobs)
    assert await blobs.list("") == []


async def test_other_faults_come_through() -> None:
    class NoAccess(ObstoreBlobs):
        async def put(self, key: str, data: bytes, *, if_absent: bool = False) -> None:
            raise PermissionError("no access to the bucket")

    with pytest.raises(PermissionError, match="no access"):
        await probe_if_absent(NoAccess("memory://"))
