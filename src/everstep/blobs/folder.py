"""A folder as an object store: local disks, NFS and other shared folders."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote

from everstep.blobs.keys import check_key, check_prefix
from everstep.model.errors import BadInput, Problem
from everstep.ports import BlobExists, BlobInfo, BlobMissing

STAGING = ".everstep-staging"
"""Folder inside the store where objects are written before they get their name; no key may begin with it."""

_STALE_AFTER_S = 24 * 3600.0


class FolderBlobs:
    """``Blobs`` in a folder: each object is the file of its key, whole and on the disk before it has that name.

    Two limits that object stores do not have: a part of a key is at most 255 bytes, and ``a`` and ``a/b`` cannot both
    be objects. Both are a ValueError. Symbolic links in the folder are followed; whoever may make them is trusted.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Opens the folder, making it if it is not there, and clears away what writers that died left a day ago."""
        self.root = Path(path).absolute()
        self._staging = self.root / STAGING
        self._staging.mkdir(parents=True, exist_ok=True)
        self._clear_staging()

    async def put(self, key: str, data: bytes, *, if_absent: bool = False) -> None:
        """See ``Blobs.put``. On the disk when it returns."""
        await asyncio.to_thread(self._put, self._path(key), key, data, if_absent)

    async def get(self, key: str) -> bytes:
        """See ``Blobs.get``."""
        path = self._path(key)
        try:
            return await asyncio.to_thread(path.read_bytes)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
            raise BlobMissing(key) from error

    async def list(self, prefix: str) -> Sequence[BlobInfo]:
        """See ``Blobs.list``. Objects that appear or vanish meanwhile may or may not be in it."""
        check_prefix(prefix)
        return await asyncio.to_thread(self._list, prefix)

    async def delete(self, key: str) -> None:
        """See ``Blobs.delete``. Folders stay: somebody may be about to write into them."""
        path = self._path(key)
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
            await asyncio.to_thread(path.unlink)

    async def presign(self, key: str, *, method: str, ttl_s: float) -> str | None:
        """None: a folder has no URLs."""
        check_key(key)
        return None

    def _path(self, key: str) -> Path:
        parts = check_key(key).split("/")
        if parts[0] == STAGING:
            raise ValueError(f"{key!r}: {STAGING} is where objects are written before they get their name")
        if any(len(part.encode()) > 255 for part in parts):
            raise ValueError(f"{key[:40]!r}...: a part of a key in a folder has at most 255 bytes")
        return self.root.joinpath(*parts)

    def _put(self, path: Path, key: str, data: bytes, if_absent: bool) -> None:
        staged = self._staging / uuid.uuid4().hex
        try:
            _write_durably(staged, data)
            self._make_folders(path.parent)
            if if_absent:
                # A link fails if the name is taken, in one step, on local disks and on NFS; a rename would replace it.
                os.link(staged, path)
            else:
                os.replace(staged, path)
            _sync_folder(path.parent)
        except FileExistsError as error:
            if path.is_dir() or not path.exists():
                raise ValueError(f"{key!r}: a part of this key is an object, or it is the folder of others") from error
            raise BlobExists(key) from error
        except (NotADirectoryError, IsADirectoryError) as error:
            raise ValueError(f"{key!r}: a part of this key is an object, or it is the folder of others") from error
        finally:
            staged.unlink(missing_ok=True)

    def _make_folders(self, folder: Path) -> None:
        """Like ``mkdir -p``, and every new name is on the disk."""
        missing = []
        while not folder.exists():
            missing.append(folder)
            folder = folder.parent
        for made in reversed(missing):
            made.mkdir(exist_ok=True)
            _sync_folder(made.parent)

    def _list(self, prefix: str) -> Sequence[BlobInfo]:
        start = prefix.rpartition("/")[0]
        top = self.root / start if start else self.root
        found = [info for info in self._walk(top) if info.key.startswith(prefix)]
        return sorted(found, key=lambda info: info.key)

    def _walk(self, top: Path) -> Iterator[BlobInfo]:
        for folder, folders, names in os.walk(top):
            if folder == str(self.root) and STAGING in folders:
                folders.remove(STAGING)
            for name in names:
                path = os.path.join(folder, name)
                with contextlib.suppress(FileNotFoundError):
                    status = os.stat(path)
                    yield BlobInfo(os.path.relpath(path, self.root), status.st_size, status.st_mtime)

    def _clear_staging(self) -> None:
        limit = time.time() - _STALE_AFTER_S
        for entry in self._staging.iterdir():
            with contextlib.suppress(OSError):
                if entry.stat().st_mtime < limit:
                    entry.unlink()


def _write_durably(path: Path, data: bytes) -> None:
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    except OSError as error:
        # Some shared file systems cannot sync a folder; they do it at once by themselves.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(fd)


def open_url(url: str) -> FolderBlobs:
    """The folder of ``file:///absolute/path`` (with %-escapes, as file URLs have them)."""
    path = unquote(url.removeprefix("file://"))
    if not path.startswith("/") or path == "/":
        raise BadInput(Problem("", "blobs", f"'{url}' names no folder", "write file:///absolute/path"))
    return FolderBlobs(path)
