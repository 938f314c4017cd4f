"""What each file was before the run first touched it: kept over all relaunches in ``DIR/files-RANK.jsonl``.

Paths are written relative to the folders of the launch (`Place.named`): a relaunch on another machine finds its own.
A line is written before the file is touched, by a single ``write``, so that forked children may add theirs. A torn last
line belongs to a file that was not touched yet.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from everstep.model import handshake
from everstep.train.script.output import durable
from everstep.train.script.output.place import Place

SMALL = 1 << 20
"""Files up to so many bytes are kept whole."""
_COPIED = 1 << 26
_TAIL = 1 << 16
_SAMPLES = 64


@dataclass(frozen=True)
class First:
    """A path before the run first touched it.

    Attributes:
        path: real path.
        kind: ``none``, ``file``, ``folder``, ``link``, or ``other`` (a device, a pipe: never touched by us).
        size: bytes of the file.
        mode: permission bits.
        kept: name of the copy below the journal's folder, None if there is none; where a link points to.
        tail: digest of the last 64 KiB.
    """

    path: str
    kind: str
    size: int = 0
    mode: int = 0o644
    kept: str | None = None
    tail: str | None = None


class Journal:
    """The journal of one rank. Opened for appending at first use.

    Args:
        folder: the checkpoint folder.
        rank: of this process.
        place: where this launch runs.
    """

    def __init__(self, folder: Path, rank: int, place: Place) -> None:
        self._place = place
        self._path = folder / f"files-{rank}.jsonl"
        self._kept = folder / f"files-{rank}"
        self._read = 0
        self.firsts: dict[str, First] = {}
        self.rewritten: dict[str, int] = {}
        """Where in the journal it says last that a file was written otherwise than at its end."""
        self.settled: dict[str, tuple[int, int]] = {}
        """Files as they were at the first save of the run: size, nanoseconds of the last change."""

    def load(self) -> None:
        """Read what was added since, by earlier processes and by children."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._read)
                lines = file.read().splitlines(keepends=True)
        except FileNotFoundError:
            return
        for line in lines:
            if not line.endswith(b"\n"):
                break
            self._take(line)
            self._read += len(line)

    def mend(self) -> None:
        """End a line that was torn, so that the next one is read."""
        if self._path.exists() and self._path.stat().st_size > self._read:
            os.truncate(self._path, self._read)

    def _take(self, line: bytes) -> None:
        try:
            entry = json.loads(line)
        except ValueError:
            return
        path = entry["path"] = self._place.located(entry["path"])
        if "kind" in entry:
            if entry["kind"] == "link":
                entry["kept"] = self._place.located(entry["kept"])
            self.firsts.setdefault(path, First(**entry))
        elif "settled" in entry:
            self.settled[path] = tuple(entry["settled"])
        elif "restored" in entry:
            self.rewritten.clear()
        else:
            self.rewritten[path] = self._read

    def first_touch(self, path: str, how: str) -> None:
        """Note what ``path`` is, before it is changed."""
        first = self._look(path, how)
        link = first.kind == "link" and first.kept is not None
        self._append({**asdict(first), "kept": self._place.named(first.kept or "") if link else first.kept})
        self.firsts.setdefault(path, first)

    def rewrite(self, path: str) -> None:
        """Note that ``path`` is about to be written otherwise than at its end."""
        self._append({"path": path})

    def settle(self, path: str, size: int, changed_ns: int) -> None:
        """Note what ``path`` is at the first save of the run."""
        self._append({"path": path, "settled": [size, changed_ns]})

    def restored(self, but: Iterable[str]) -> None:
        """Note that everything is as at the save that was resumed, but for these paths."""
        self._append({"path": "", "restored": True})
        for path in but:
            self.rewrite(path)

    @property
    def mark(self) -> int:
        """How far it has been read: what is rewritten later stands behind it."""
        return self._read

    def sync(self) -> None:
        """Make it durable. Nothing was touched if there is none."""
        with contextlib.suppress(OSError):
            durable.sync_folder(self._path)

    def content(self, first: First) -> Path | None:
        """Where the first contents are kept."""
        return None if first.kept is None else self._kept / first.kept

    def _append(self, entry: dict[str, Any]) -> None:
        line = json.dumps({**entry, "path": self._place.named(entry["path"])}).encode() + b"\n"
        fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            os.write(fd, line)
        finally:
            os.close(fd)

    def _look(self, path: str, how: str) -> First:
        try:
            found = os.lstat(path)
        except OSError:
            return First(path, "none")
        if stat.S_ISDIR(found.st_mode):
            return First(path, "folder")
        if stat.S_ISLNK(found.st_mode):
            return First(path, "link", kept=os.readlink(path))
        if not stat.S_ISREG(found.st_mode):
            return First(path, "other")
        kept = self._keep(path, found.st_size, how)
        return First(path, "file", found.st_size, stat.S_IMODE(found.st_mode), kept, tail_digest(path, found.st_size))

    def _keep(self, path: str, size: int, how: str) -> str | None:
        name = hashlib.sha1(self._place.named(path).encode()).hexdigest()
        target = self._kept / name
        self._kept.mkdir(parents=True, exist_ok=True)
        if size > SMALL and how == "append":
            return None  # it is cut back
        if size > SMALL and how in ("remove", "replace"):
            try:
                os.link(path, target)
            except OSError:
                return None
            return name
        if size > _COPIED:
            return None
        shutil.copyfile(path, target)
        return name


def tail_digest(path: str, size: int) -> str:
    """A digest of the last 64 KiB before byte ``size`` of a file."""
    hashed = hashlib.sha256()
    with open(path, "rb") as file:
        file.seek(max(0, size - _TAIL))
        hashed.update(file.read(min(size, _TAIL)))
    return hashed.hexdigest()


def sample_digest(path: str, size: int) -> str:
    """A digest of up to 64 blocks of 64 KiB, spread evenly over the first ``size`` bytes of a file, its end included.

    Tells apart what programs write; it is no proof that the rest is equal.
    """
    hashed = hashlib.sha256(str(size).encode())
    last = max(0, size - _TAIL)
    with open(path, "rb") as file:
        for at in sorted({last * number // (_SAMPLES - 1) for number in range(_SAMPLES)}):
            file.seek(at)
            hashed.update(file.read(min(_TAIL, size - at)))
    return hashed.hexdigest()


def excluded(path: str, folder: str) -> bool:
    """Files that are not the script's output: ours, the system's, caches that other processes use too."""
    if path == folder or path.startswith((folder + os.sep, *_system())):
        return True
    parts = path.split(os.sep)
    return path.endswith(".pyc") or any(part == "__pycache__" or part.startswith(_CACHES) for part in parts)


_CACHES = ("torchinductor_", "pymp-", "torch_extensions")


def _system() -> Iterator[str]:
    yield from ("/dev/", "/proc/", "/sys/")
    yield os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache/")
    reports = os.environ.get(handshake.ENV_REPORT_DIR)
    if reports:
        yield os.path.realpath(reports) + os.sep
