"""A folder as an object store."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from everstep.blobs.folder import STAGING, FolderBlobs
from everstep.blobs.objects import ObstoreBlobs
from everstep.testing.blobs_suite import BlobsSuite, keys


class TestFolderBlobs(BlobsSuite):
    @pytest.fixture
    def blobs(self, tmp_path: Path) -> FolderBlobs:
        return FolderBlobs(tmp_path / "new" / "folder")


async def test_objects_are_plain_files_that_others_may_add_to(tmp_path: Path) -> None:
    blobs = FolderBlobs(tmp_path)
    await blobs.put("attempts/1.json", b"x")
    assert (tmp_path / "attempts" / "1.json").read_bytes() == b"x"
    (tmp_path / "attempts" / "2.json").write_bytes(b"y")
    assert await keys(blobs, "") == ["attempts/1.json", "attempts/2.json"]


async def test_a_write_that_fails_leaves_the_old_object_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs = FolderBlobs(tmp_path)
    await blobs.put("a", b"old")

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        for if_absent in (False, True):
            with pytest.raises(OSError, match="No space"):
                await blobs.put("a", b"new", if_absent=if_absent)
            with pytest.raises(OSError, match="No space"):
                await blobs.put("b", b"new", if_absent=if_absent)
    assert await blobs.get("a") == b"old"
    assert await keys(blobs, "") == ["a"]
    assert list((tmp_path / STAGING).iterdir()) == []


async def test_an_object_is_synced_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blobs = FolderBlobs(tmp_path)
    done: list[str] = []
    for name in ("fsync", "link", "replace"):
        call = getattr(os, name)

        def noted(*args: object, _name: str = name, _call: object = call) -> object:
            done.append(_name)
            return _call(*args)  # type: ignore[operator]

        monkeypatch.setattr(os, name, noted)
    await blobs.put("a", b"x")
    await blobs.put("b", b"x", if_absent=True)
    assert done == ["fsync", "replace", "fsync", "fsync", "link", "fsync"]


async def test_what_dead_writers_left_is_never_listed_and_cleared_after_a_day(tmp_path: Path) -> None:
    blobs = FolderBlobs(tmp_path)
    old, young = tmp_path / STAGING / "old", tmp_path / STAGING / "young"
    for left in (old, young):
        left.write_bytes(b"half")
    os.utime(old, (time.time() - 90_000,) * 2)
    assert await keys(blobs, "") == []
    FolderBlobs(tmp_path)
    assert (old.exists(), young.exists()) == (False, True)


@pytest.mark.parametrize("if_absent", [False, True])
async def test_what_a_folder_cannot_hold_is_refused(tmp_path: Path, if_absent: bool) -> None:
    blobs = FolderBlobs(tmp_path)
    await blobs.put("a/b", b"x")
    for key in ("a", "a/b/c", "x" * 256, f"{STAGING}/x"):
        with pytest.raises(ValueError, match=r"part of (this|a) key|before they get their name"):
            await blobs.put(key, b"y", if_absent=if_absent)
    assert await keys(blobs, "") == ["a/b"]


class TestObstoreFolder(BlobsSuite):
    """The same folder through obstore."""

    @pytest.fixture
    def blobs(self, tmp_path: Path) -> ObstoreBlobs:
        return ObstoreBlobs(f"file://{tmp_path}/objects")


class TestObstoreMemory(BlobsSuite):
    @pytest.fixture
    def blobs(self) -> ObstoreBlobs:
        return ObstoreBlobs("memory://")
