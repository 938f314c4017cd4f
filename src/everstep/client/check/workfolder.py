"""A fresh working folder for each run: the user's folder as it is, without ever writing into it.

Files up to 16 MiB are copied. Larger ones, and all once 1 GiB is copied, are symbolic links to the originals; before
the script writes to such a link, the witness in its process replaces it by a copy. `Original.disturbed` tells whether
one was written to all the same, by a program that goes round Python. Version control, virtual environments and the like
are linked as whole folders; caches, and everstep's own folder, are left out.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from everstep.model.errors import EverstepError

_COPIED_FILE = 16 << 20
_COPIED_IN_ALL = 1 << 30
_MOST_FILES = 100_000
_LEFT_OUT = frozenset({"__pycache__", ".everstep", ".pytest_cache", ".mypy_cache", ".ruff_cache"})
_LINKED_WHOLE = frozenset({".git", ".hg", ".svn", "node_modules", ".tox", ".nox"})

_Stamp = tuple[int, int]


def _stamp(path: Path) -> _Stamp:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


@dataclass(frozen=True, slots=True)
class WorkFolder:
    """One run's folder.

    Attributes:
        path: the folder.
        linked: relative paths of the files that are links.
        began_with: size and time of the copied files as the run found them.
    """

    path: Path
    linked: tuple[str, ...]
    began_with: dict[str, _Stamp]

    def written(self) -> dict[str, Path]:
        """Files that the run made or changed, by relative path; without byte code and everstep's own checkpoints."""
        found: dict[str, Path] = {}
        for path in sorted(_files(self.path, frozenset({"__pycache__"}))):
            name = path.relative_to(self.path).as_posix()
            if not path.is_symlink() and path.is_file() and self.began_with.get(name) != _stamp(path):
                found[name] = path
        return found

    def missing(self) -> tuple[str, ...]:
        """Copied files that the run deleted."""
        return tuple(name for name in self.began_with if not (self.path / name).exists())


class Original:
    """The folder in which the user typed the command.

    Args:
        folder: its path.
        apart: a folder that is not part of it, wherever it lies: the report's.

    Raises:
        EverstepError: it holds more files than a script's folder does.
    """

    def __init__(self, folder: Path, apart: Path) -> None:
        self._folder = folder
        self._files: dict[str, _Stamp] = {}
        self._whole: list[str] = []
        for path in self._walk(apart):
            name = path.relative_to(folder).as_posix()
            if path.is_dir():
                self._whole.append(name)
            elif path.is_file():
                self._files[name] = _stamp(path)
            if len(self._files) > _MOST_FILES:
                fix = "run it in the folder of the script, and keep data sets of many files elsewhere"
                raise EverstepError(f"{folder} holds more than {_MOST_FILES:,} files; {fix}")

    def _walk(self, apart: Path) -> Iterator[Path]:
        for folder, inner, names in os.walk(self._folder):
            here = Path(folder)
            inner[:] = [name for name in sorted(inner) if name not in _LEFT_OUT and here / name != apart]
            for name in list(inner):
                whole = name in _LINKED_WHOLE or (here / name / "pyvenv.cfg").exists() or (here / name).is_symlink()
                if whole:
                    inner.remove(name)
                    yield here / name
            yield from (here / name for name in sorted(names) if not name.endswith(".pyc"))

    def make(self, path: Path) -> WorkFolder:
        """A working folder at ``path``, which must not exist."""
        path.mkdir(parents=True)
        linked: list[str] = []
        began_with: dict[str, _Stamp] = {}
        copied = 0
        for name in self._whole:
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).symlink_to((self._folder / name).resolve())
        for name, (size, _) in self._files.items():
            source, target = self._folder / name, path / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if size <= _COPIED_FILE and copied + size <= _COPIED_IN_ALL:
                shutil.copy2(source, target)
                copied += size
                began_with[name] = _stamp(target)
            else:
                target.symlink_to(source.resolve())
                linked.append(name)
        return WorkFolder(path, tuple(linked), began_with)

    def disturbed(self) -> str | None:
        """The first of the user's files that is no longer what it was; None if all are."""
        for name, stamp in self._files.items():
            path = self._folder / name
            if not path.exists() or _stamp(path) != stamp:
                return name
        return None


def _files(folder: Path, left_out: frozenset[str]) -> Iterator[Path]:
    for here, inner, names in os.walk(folder):
        inner[:] = [name for name in inner if name not in left_out and not _is_checkpoint_folder(Path(here) / name)]
        yield from (Path(here) / name for name in names)


def _is_checkpoint_folder(path: Path) -> bool:
    """Whether `everstep.train` keeps its checkpoints there: they carry times and numbers of attempts."""
    return (path / "attempts").is_dir() and any((path / "attempts").glob("[0-9]*.json"))


def sha256(path: Path) -> str:
    """Of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
