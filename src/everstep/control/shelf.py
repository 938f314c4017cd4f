"""Bytes that are seldom looked at, in a file of this process alone: what stays in memory of each is where it lies.

A server that runs for months remembers every job that ever ended. The file has no name and goes with the process: it is
a cache of the journal, as snapshots are.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TypeVar

K = TypeVar("K")

_SIZE_BITS = 28
_MOST = (1 << _SIZE_BITS) - 1


class Shelf:
    """Keeps bytes until the process ends. What is dropped leaves its room unused until then.

    Args:
        folder: on whose disk the file lies; None = where temporary files do, which may be memory.
    """

    def __init__(self, folder: Path | None = None) -> None:
        """See the class. The file is made with the first bytes."""
        self._folder = folder
        self._file: IO[bytes] | None = None
        self._end = 0

    def put(self, data: bytes) -> Leaf:
        """Puts one piece down; a disk that is full, or refuses, leaves it in memory."""
        return self.put_all({0: data})[0]

    def put_all(self, pieces: Mapping[K, bytes]) -> dict[K, Leaf]:
        """Puts several down with one write."""
        start = at = self._end
        found: dict[K, Leaf] = {}
        for key, data in pieces.items():
            found[key] = Leaf(self, at << _SIZE_BITS | len(data))
            at += len(data)
        try:
            if max(map(len, pieces.values()), default=0) > _MOST:
                raise OSError("too large for a place")
            self._write(b"".join(pieces.values()), start)
        except OSError:
            return {key: Leaf(self, 0, data) for key, data in pieces.items()}
        self._end = at
        return found

    def _write(self, data: bytes, at: int) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115 - lives with the shelf
            weakref.finalize(self, self._file.close)
        while data:
            written = os.pwrite(self._file.fileno(), data, at)
            data, at = data[written:], at + written

    def read(self, place: int) -> bytes:
        """What was put there."""
        assert self._file is not None
        data = os.pread(self._file.fileno(), place & _MOST, place >> _SIZE_BITS)
        if len(data) != place & _MOST:
            raise OSError(f"{len(data)} of {place & _MOST} bytes are left of what was put away")
        return data


class Leaf:
    """One piece on a shelf. Equal to another with the same bytes."""

    __slots__ = ("_kept", "_place", "_shelf")

    def __init__(self, shelf: Shelf, place: int, kept: bytes | None = None) -> None:
        """Made by ``Shelf``; ``kept``: the bytes themselves, where they could not be put down."""
        self._shelf = shelf
        self._place = place
        self._kept = kept

    def read(self) -> bytes:
        """The bytes."""
        return self._shelf.read(self._place) if self._kept is None else self._kept

    def __eq__(self, other: object) -> bool:
        """Whether the bytes are the same."""
        return isinstance(other, Leaf) and (self is other or self.read() == other.read())

    __hash__ = None  # type: ignore[assignment]
