"""The start-up probe: a store that does not keep the if-absent promise must never hold a lineage."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Sequence

from everstep.model.errors import EverstepError
from everstep.ports import BlobExists, BlobMissing, Blobs

_RIVALS = 8
_FOLDER = ".everstep-probe"


class UnsafeBlobs(EverstepError):
    """This object store lets two writers both create one object: two attempts of a job could both publish."""


async def probe_if_absent(blobs: Blobs) -> None:
    """Tries the promise out: once in turn, once with several writers at the same time. Leaves nothing behind.

    Raises:
        UnsafeBlobs: the store breaks it. Whatever else the store raises (no such bucket, no access) comes through.
    """
    keys = [f"{_FOLDER}/{uuid.uuid4().hex}" for _ in range(2)]
    try:
        await _in_turn(blobs, keys[0])
        await _at_once(blobs, keys[1])
    finally:
        for key in keys:
            with contextlib.suppress(Exception):
                await blobs.delete(key)


async def _in_turn(blobs: Blobs, key: str) -> None:
    await _judge(blobs, key, [await _try_create(blobs, key, b"0"), await _try_create(blobs, key, b"1")])


async def _at_once(blobs: Blobs, key: str) -> None:
    tries = (_try_create(blobs, key, b"%d" % rival) for rival in range(_RIVALS))
    await _judge(blobs, key, await asyncio.gather(*tries))


async def _try_create(blobs: Blobs, key: str, data: bytes) -> bool:
    try:
        await blobs.put(key, data, if_absent=True)
    except BlobExists:
        return False
    return True


async def _judge(blobs: Blobs, key: str, won: Sequence[bool]) -> None:
    winners = [b"%d" % rival for rival, created in enumerate(won) if created]
    if len(winners) != 1:
        raise UnsafeBlobs(
            f"this object store cannot be used: {len(winners)} of {len(won)} writers were told that they created "
            "the same object (it does not keep 'put if absent')"
        )
    try:
        kept = await blobs.get(key)
    except BlobMissing as error:
        raise UnsafeBlobs("this object store cannot be used: an object that it created is not there") from error
    if kept != winners[0]:
        raise UnsafeBlobs("this object store cannot be used: a refused put replaced the object all the same")
