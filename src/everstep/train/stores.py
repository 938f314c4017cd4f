"""Object stores that a mirror can lie in: what a mirror needs of one, and the one that is a folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, Protocol


class Unavailable(Exception):
    """The store gave no answer, or said that it cannot now. Asking again can help."""


class Refusal(Exception):
    """The store said no: asking again cannot help. The text is its own."""


class Absent(Refusal):
    """There is no such object."""


class Store(Protocol):
    """Whole objects under keys with slashes. An object appears whole or not at all.

    Every method raises `Unavailable` or `Refusal`.
    """

    @property
    def where(self) -> str:
        """Its address, for people."""

    def list(self, prefix: str) -> dict[str, int]:
        """Sizes of the objects whose keys begin so."""

    def get(self, key: str) -> bytes:
        """A small object. Raises `Absent`."""

    def put(self, key: str, content: bytes) -> None:
        """Store a small object."""

    def upload(self, key: str, file: IO[bytes], size: int) -> None:
        """Store a file of any size. Called again after `Unavailable`, it sends what is missing."""

    def download(self, key: str, file: IO[bytes], size: int) -> None:
        """Fetch into a file that may hold the beginning already. Raises `Absent`."""

    def delete(self, key: str) -> None:
        """Delete, if it is there."""


def open_store(url: str, env: Mapping[str, str]) -> Store:
    """The store at ``s3://BUCKET/PREFIX``, ``file:///PATH`` or a path.

    Raises:
        ValueError: says what was expected.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        return FolderStore(Path(url))
    if scheme == "file":
        return FolderStore(Path(rest))
    if scheme == "s3":
        # Not before it is needed: HTTP and TLS cost time to load.
        from everstep.train.s3 import S3Store

        return S3Store.open(rest, env)
    raise ValueError(f"a mirror is s3://BUCKET/PREFIX or a folder, got {url!r}")


class FolderStore:
    """A folder, for example of a network file system that is too slow to save to directly."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def where(self) -> str:
        """Its path."""
        return str(self._root)

    def list(self, prefix: str) -> dict[str, int]:
        """Sizes of the files whose paths below the folder begin so."""
        found = {}
        try:
            for path in self._root.rglob("*"):
                key = path.relative_to(self._root).as_posix()
                if key.startswith(prefix) and path.is_file() and not path.name.startswith("."):
                    found[key] = path.stat().st_size
        except OSError as error:
            raise Unavailable(str(error)) from error
        return found

    def get(self, key: str) -> bytes:
        """A small file."""
        try:
            return (self._root / key).read_bytes()
        except FileNotFoundError:
            raise Absent(f"{self._root / key} is not there") from None
        except OSError as error:
            raise Unavailable(str(error)) from error

    def put(self, key: str, content: bytes) -> None:
        """Write a small file."""
        self._write(key, lambda file: file.write(content))

    def upload(self, key: str, file: IO[bytes], size: int) -> None:
        """Copy a file; always whole."""
        file.seek(0)
        self._write(key, lambda target: shutil.copyfileobj(file, target, 1 << 22))

    def download(self, key: str, file: IO[bytes], size: int) -> None:
        """Copy a file back; always whole."""
        try:
            with (self._root / key).open("rb") as source:
                file.seek(0)
                shutil.copyfileobj(source, file, 1 << 22)
        except FileNotFoundError:
            raise Absent(f"{self._root / key} is not there") from None
        except OSError as error:
            raise Unavailable(str(error)) from error

    def delete(self, key: str) -> None:
        """Delete a file, and its folder when it was the last one there."""
        path = self._root / key
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise Unavailable(str(error)) from error
        with contextlib.suppress(OSError):
            path.parent.rmdir()

    def _write(self, key: str, fill: Callable[[IO[bytes]], Any]) -> None:
        path = self._root / key
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(prefix=".", dir=path.parent)
            try:
                with os.fdopen(handle, "wb") as file:
                    fill(file)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(name, path)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name)
        except OSError as error:
            raise Unavailable(str(error)) from error
