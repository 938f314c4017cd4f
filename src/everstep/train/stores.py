"""Object stores that a mirror can lie in: what a mirror needs of one, and the one that is a folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, Protocol

from everstep.model import handshake


class Unavailable(Exception):
    """The store gave no answer, or said that it cannot now. Asking again can help."""


class Refusal(Exception):
    """The store said no: asking again cannot help. The text is its own."""


class Absent(Refusal):
    """There is no such object."""


class Taken(Refusal):
    """There is another object of that key already."""


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

    def create(self, key: str, content: bytes) -> None:
        """Store a small object that nobody has stored before; the same content is as good: an answer may be lost.

        Raises `Taken` where there is another: of several writers one alone is not told so.
        """

    def upload(self, key: str, file: IO[bytes], size: int) -> None:
        """Store a file of any size. Called again after `Unavailable`, it sends what is missing."""

    def download(self, key: str, file: IO[bytes], size: int) -> None:
        """Fetch into a file that may hold the beginning already. Raises `Absent`."""

    def delete(self, *keys: str) -> None:
        """Delete what is there of these."""

    def close(self) -> None:
        """Let go of connections; another request makes new ones."""


def open_store(url: str, env: Mapping[str, str]) -> Store:
    """The store at ``s3://BUCKET/PREFIX``, ``gs://BUCKET/PREFIX``, ``file:///PATH`` or a path.

    The keys of a bucket are those of the environment. Where it has none, the mirror of the job is reached by URLs that
    the server signs.

    Raises:
        ValueError: says what was expected.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        return FolderStore(Path(url).absolute())
    if scheme == "file":
        return FolderStore(Path(rest).absolute())
    if scheme not in ("s3", "gs"):
        raise ValueError(f"a mirror is s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or a folder, got {url!r}")
    # Not before it is needed: HTTP and TLS cost time to load.
    from everstep.train.s3 import S3Store
    from everstep.train.signed import SignedStore

    signs = env.get(handshake.ENV_OBJECTS, "") if url == env.get(handshake.ENV_CHECKPOINT_MIRROR) else ""
    if signs and not (scheme == "s3" and S3Store.has_keys(env)):
        return SignedStore(url, Path(signs))
    if scheme == "gs":
        raise ValueError(f"the mirror in {url} needs a server that has the bucket's keys and signs URLs for the job")
    return S3Store.open(rest, env)


def settle(store: Store, key: str, content: bytes) -> None:
    """After an object could not be created because one is there: raises `Taken` unless it is the very same."""
    try:
        there = store.get(key)
    except Absent:
        raise Unavailable(f"{key} was there, and is not any more") from None
    if there != content:
        raise Taken(f"there is another {key} in {store.where} already")


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

    def create(self, key: str, content: bytes) -> None:
        """Write a small file unless there is another."""
        try:
            self._write(key, lambda file: file.write(content), place=os.link)
        except Taken:
            settle(self, key, content)

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

    def delete(self, *keys: str) -> None:
        """Delete files, and each folder whose last one went."""
        for path in map(self._root.joinpath, keys):
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise Unavailable(str(error)) from error
            with contextlib.suppress(OSError):
                path.parent.rmdir()

    def close(self) -> None:
        """Nothing is held."""

    def _write(
        self, key: str, fill: Callable[[IO[bytes]], Any], place: Callable[[str, Path], object] = os.replace
    ) -> None:
        path = self._root / key
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(prefix=".", dir=path.parent)
            try:
                with os.fdopen(handle, "wb") as file:
                    fill(file)
                    file.flush()
                    os.fsync(file.fileno())
                place(name, path)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name)
        except FileExistsError as error:
            raise Taken(f"{path} is there") from error
        except OSError as error:
            raise Unavailable(str(error)) from error
