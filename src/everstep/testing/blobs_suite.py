"""What every ``Blobs`` must do. An implementation is done when it passes."""

from __future__ import annotations

import asyncio
import time

import pytest

from everstep.blobs.probe import probe_if_absent
from everstep.ports import BlobExists, BlobInfo, BlobMissing, Blobs

RIVALS = 50
# How far the clock of a store may be from ours.
_CLOCKS_DIFFER_BY_S = 120.0


async def create(blobs: Blobs, key: str, data: bytes) -> bool:
    """Whether a put if absent went through."""
    try:
        await blobs.put(key, data, if_absent=True)
    except BlobExists:
        return False
    return True


async def keys(blobs: Blobs, prefix: str) -> list[str]:
    """The keys listed under a prefix."""
    return [info.key for info in await blobs.list(prefix)]


@pytest.mark.asyncio
class BlobsSuite:
    """Give it the fixture ``blobs``: an empty object store."""

    @pytest.mark.parametrize("data", [b"", b"x", bytes(range(256)) * 100], ids=["empty", "one", "many"])
    async def test_an_object_comes_back_as_it_was_put(self, blobs: Blobs, data: bytes) -> None:
        await blobs.put("attempts/000001.json", data)
        assert await blobs.get("attempts/000001.json") == data

    async def test_a_large_object_comes_back(self, blobs: Blobs) -> None:
        data = bytes(range(251)) * 50_000
        await blobs.put("plain", data)
        assert await create(blobs, "created", data)
        assert await blobs.get("plain") == data
        assert await blobs.get("created") == data

    async def test_a_put_replaces(self, blobs: Blobs) -> None:
        await blobs.put("a", b"long and old")
        await blobs.put("a", b"new")
        assert await blobs.get("a") == b"new"

    async def test_a_missing_object_is_missing(self, blobs: Blobs) -> None:
        await blobs.put("folder/a", b"x")
        for key in ("b", "folder", "folder/b", "folder/a/b"):
            with pytest.raises(BlobMissing):
                await blobs.get(key)

    async def test_deleting_is_idempotent(self, blobs: Blobs) -> None:
        await blobs.put("folder/a", b"x")
        await blobs.put("folder/b", b"y")
        for _ in range(2):
            await blobs.delete("folder/a")
        await blobs.delete("never/there")
        with pytest.raises(BlobMissing):
            await blobs.get("folder/a")
        assert await keys(blobs, "") == ["folder/b"]

    # --- if absent ---

    async def test_if_absent_creates_once(self, blobs: Blobs) -> None:
        await blobs.put("a", b"first", if_absent=True)
        with pytest.raises(BlobExists):
            await blobs.put("a", b"second", if_absent=True)
        assert await blobs.get("a") == b"first"

    async def test_if_absent_sees_plain_puts_and_deletes(self, blobs: Blobs) -> None:
        await blobs.put("a", b"first")
        assert not await create(blobs, "a", b"second")
        await blobs.delete("a")
        assert await create(blobs, "a", b"third")
        assert await blobs.get("a") == b"third"

    async def test_of_rivals_exactly_one_creates(self, blobs: Blobs) -> None:
        won = await asyncio.gather(*(create(blobs, "attempts/000002.json", b"%d" % n) for n in range(RIVALS)))
        assert sum(won) == 1
        assert await blobs.get("attempts/000002.json") == b"%d" % won.index(True)

    async def test_the_probe_accepts_it_and_leaves_nothing(self, blobs: Blobs) -> None:
        await probe_if_absent(blobs)
        assert await keys(blobs, "") == []

    # --- listing ---

    async def test_listing_is_by_the_beginning_of_the_key_in_order(self, blobs: Blobs) -> None:
        for key in ("b", "a/2", "a/10", "a/1/x", "ab/c", "a.b"):
            await blobs.put(key, key.encode())
        assert await keys(blobs, "") == ["a.b", "a/1/x", "a/10", "a/2", "ab/c", "b"]
        assert await keys(blobs, "a") == ["a.b", "a/1/x", "a/10", "a/2", "ab/c"]
        assert await keys(blobs, "a/") == ["a/1/x", "a/10", "a/2"]
        assert await keys(blobs, "a/1") == ["a/1/x", "a/10"]
        assert await keys(blobs, "a/1/x") == ["a/1/x"]
        assert await keys(blobs, "a/1/x/") == []
        assert await keys(blobs, "c/") == []

    async def test_a_listing_tells_size_and_time(self, blobs: Blobs) -> None:
        await blobs.put("a", b"12345")
        [info] = await blobs.list("")
        assert info == BlobInfo("a", 5, info.modified_at)
        assert abs(info.modified_at - time.time()) < _CLOCKS_DIFFER_BY_S

    async def test_a_listing_may_be_longer_than_a_page_of_the_store(self, blobs: Blobs) -> None:
        names = [f"many/{n:04}" for n in range(1_050)]
        for start in range(0, len(names), 50):
            await asyncio.gather(*(blobs.put(name, b"") for name in names[start : start + 50]))
        assert await keys(blobs, "many/") == names

    # --- keys ---

    @pytest.mark.parametrize(
        "key",
        [
            "a b",
            "a+b",
            "a%20b",
            "ü/\u2603",
            "a=b&c?d",
            "a#b",
            "a:b@c,d;e",
            "(a)'[b]{c}~!$*",
            ".hidden/..a",
            "/".join("x" * 500),
        ],
    )
    async def test_unusual_keys_are_kept_as_they_are(self, blobs: Blobs, key: str) -> None:
        await blobs.put(key, b"x")
        assert await blobs.get(key) == b"x"
        assert not await create(blobs, key, b"y")
        assert await keys(blobs, "") == [key]
        await blobs.delete(key)
        assert await keys(blobs, "") == []

    @pytest.mark.parametrize(
        "key",
        [
            "",
            "/",
            "/a",
            "a/",
            "a//b",
            ".",
            "..",
            "../a",
            "a/../b",
            "a/./b",
            "a\0b",
            "\ud800",
            "/".join("x" * 513),
            "\u2603/" * 256 + "x",
        ],
        ids=ascii,
    )
    async def test_keys_that_mean_something_else_elsewhere_are_refused(self, blobs: Blobs, key: str) -> None:
        calls = [blobs.put(key, b""), blobs.put(key, b"", if_absent=True), blobs.get(key), blobs.delete(key)]
        for call in (*calls, blobs.presign(key, method="GET", ttl_s=60)):
            with pytest.raises(ValueError, match="key of an object"):
                await call

    @pytest.mark.parametrize("prefix", ["/", "../", "a/../", "a//", "a\0"], ids=ascii)
    async def test_prefixes_that_no_key_has_are_refused(self, blobs: Blobs, prefix: str) -> None:
        with pytest.raises(ValueError, match="key of an object"):
            await blobs.list(prefix)

    # --- signed URLs ---

    async def test_a_signed_url_is_a_url_or_there_is_none(self, blobs: Blobs) -> None:
        for method in ("GET", "PUT"):
            url = await blobs.presign("a/b", method=method, ttl_s=60)
            assert url is None or url.startswith(("http://", "https://"))
