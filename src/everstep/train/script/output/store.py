"""Contents of the run's files beside the checkpoints, for a relaunch that does not find the files themselves.

    DIR/files/RANK/000002-<sha256>              4 MiB of a file (its end: what is left), written by attempt 2
    DIR/000002/000000120/files-RANK.json        which of them the checkpoint needs

A piece is written once and never changed, so a log that grows costs one save its new end. It is synced before the
checkpoint that needs it is published, and deleted when no checkpoint does. Each rank has pieces of its own; only the
newest attempt deletes. That an attempt goes on with an older one's piece only if its base needs it, and writes all
others under its own number, keeps a straggler of an older attempt from deleting what a newer one has written.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from everstep.train.lineage import Position
from everstep.train.script.output import durable

PIECE = 1 << 22
_RECORD = re.compile(r"(\d{6,})\.(json|claim)")


class Damaged(Exception):
    """A piece is missing, or not what was written; the text names it."""


class Store:
    """The pieces of one rank.

    Args:
        folder: the checkpoint folder.
        rank: of this process.
        attempt: whose pieces are written.
    """

    def __init__(self, folder: Path, rank: int, attempt: int) -> None:
        self._root = folder
        self._folder = folder / "files" / str(rank)
        self._list = f"files-{rank}.json"
        self._attempt = attempt
        self._known: dict[str, str] = {}

    def adopt(self, names: Iterable[str]) -> None:
        """These pieces belong to the save that is resumed: what is in them need not be written again."""
        self._known.update((_digest(name), name) for name in names)

    def has(self, names: Iterable[str]) -> bool:
        """True if all these pieces are there; what is in them is not looked at."""
        return all((self._folder / name).exists() for name in names)

    def put(self, contents: bytes) -> str:
        """Keep a piece durably; its name.

        Raises:
            OSError: the disk's.
        """
        digest = hashlib.sha256(contents).hexdigest()
        name = self._known.get(digest)
        if name is not None and (self._folder / name).exists():
            return name
        name = f"{self._attempt:06d}-{digest}"
        self._folder.mkdir(parents=True, exist_ok=True)
        durable.write(self._folder / name, contents)
        self._known[digest] = name
        return name

    def get(self, name: str, size: int) -> bytes:
        """The contents of a piece, every byte checked.

        Raises:
            Damaged: it is not there, or is not what was written.
        """
        path = self._folder / name
        try:
            contents = path.read_bytes()
        except OSError as error:
            raise Damaged(f"{path}: {error.strerror or error}") from error
        if len(contents) != size or hashlib.sha256(contents).hexdigest() != _digest(name):
            raise Damaged(f"{path} is damaged")
        return contents

    def contents(self, names: Iterable[str], size: int) -> Iterator[bytes]:
        """A file of ``size`` bytes, piece by piece. Raises as `get`."""
        for number, name in enumerate(names):
            yield self.get(name, min(PIECE, size - number * PIECE))

    @staticmethod
    def equal(path: str, names: Iterable[str]) -> bool:
        """True if these pieces are what the file holds."""
        with open(path, "rb") as file:
            return all(hashlib.sha256(file.read(PIECE)).hexdigest() == _digest(name) for name in names)

    def refer(self, position: Position, names: Iterable[str]) -> None:
        """Note durably what the checkpoint at ``position``, which is about to be written, needs.

        Raises:
            OSError: the disk's.
        """
        wanted = set(names)
        path = self._root / position.folder / self._list
        with contextlib.suppress(ValueError):
            # An attempt that is started again comes by here again; what it published then is not written again.
            wanted |= set(_names(path))
        if wanted:
            path.parent.mkdir(parents=True, exist_ok=True)
            durable.write(path, json.dumps(sorted(wanted)).encode())
            durable.sync_folder(self._folder)

    def collect(self) -> None:
        """Delete the pieces that no checkpoint needs, unless a newer attempt has begun or a list cannot be read."""
        present = {path.name for path in self._folder.glob("*")}
        if not present:
            return
        try:
            needed = {name for path in self._root.glob(f"*/*/{self._list}") for name in _names(path)}
        except (OSError, ValueError):
            return
        # What is listed above was there before the last look for newer attempts: theirs is not among it.
        for name in () if self._superseded() else present - needed:
            with contextlib.suppress(OSError):
                os.unlink(self._folder / name)
            self._known.pop(_digest(name), None)

    def _superseded(self) -> bool:
        found = [_RECORD.fullmatch(path.name) for path in self._root.glob("attempts/*")]
        return any(int(match[1]) > self._attempt for match in found if match)


def _digest(name: str) -> str:
    return name.rpartition("-")[2]


def _names(path: Path) -> list[str]:
    try:
        return [str(name) for name in json.loads(path.read_bytes())]
    except FileNotFoundError:
        return []
