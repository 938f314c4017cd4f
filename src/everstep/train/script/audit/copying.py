"""The working folder of an audit: a copy of the run's, as it was when the run first started.

Small files are copied, large ones are links; what the run has touched since its first start is undone in the copy, by
the journal of the run. Files that the run downloaded or prepared before its first save stay, as in a relaunch.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from everstep.train.script.output.aside import remove
from everstep.train.script.output.files import LEFT_IN_PLACE
from everstep.train.script.output.journal import First, Journal, tail_digest
from everstep.train.script.output.place import Place

_COPIED_FILE = 1 << 24
_COPIED_IN_ALL = 1 << 30
_MOST_FILES = 50_000
_LEFT_OUT = frozenset({"__pycache__", ".everstep", ".pytest_cache", ".mypy_cache", ".ruff_cache"})
_LINKED_WHOLE = frozenset({".git", ".hg", ".svn", "node_modules", ".tox", ".nox"})


class Impossible(Exception):
    """No such copy can be made; the text says why."""


def copy_folder(source: Path, target: Path, but: Path) -> None:
    """Make ``target`` a copy of ``source`` as it is now, without what is in ``but``.

    Raises:
        Impossible: it holds more files than a script's folder does.
    """
    target.mkdir()
    room, files = _COPIED_IN_ALL, 0
    for path in _walk(source, but):
        copy = target / path.relative_to(source)
        try:
            found = path.lstat()
            if stat.S_ISLNK(found.st_mode):
                _link(path, copy, source)
            elif stat.S_ISDIR(found.st_mode):
                if _is_whole(path):
                    copy.symlink_to(path)
                else:
                    copy.mkdir()
            elif stat.S_ISREG(found.st_mode):
                if found.st_size <= min(_COPIED_FILE, room):
                    shutil.copy2(path, copy)
                    room -= found.st_size
                else:
                    copy.symlink_to(path)
        except FileNotFoundError:
            continue  # the run has removed it meanwhile; the journal says what it was
        files += 1
        if files > _MOST_FILES:
            raise Impossible(f"{source} holds more than {_MOST_FILES:,} files")


def undo(journal: Journal, source: str, target: str) -> None:
    """Make the copy of ``source`` at ``target`` what it was before the run first touched it.

    Raises:
        Impossible: what a file was is not known any more.
    """
    for first in journal.firsts.values():
        if first.path.startswith(source + os.sep) and not _stays(journal, first):
            _undo(journal, first, target + first.path[len(source) :])


def moved_place(roots: Mapping[str, str], target: str) -> Place:
    """The folders of a launch in the copy: those below the working folder move with it."""
    work = roots["work"]
    inside = {
        name: target + path[len(work) :] for name, path in roots.items() if (path + os.sep).startswith(work + os.sep)
    }
    return Place({**roots, **inside})


def _walk(source: Path, but: Path) -> Iterator[Path]:
    for folder, inner, names in os.walk(source):
        here = Path(folder)
        inner[:] = [name for name in sorted(inner) if name not in _LEFT_OUT and here / name != but]
        for name in list(inner):
            yield here / name
            if _is_whole(here / name):
                inner.remove(name)
        yield from (here / name for name in sorted(names) if not name.endswith(".pyc"))


def _is_whole(folder: Path) -> bool:
    return folder.name in _LINKED_WHOLE or (folder / "pyvenv.cfg").exists()


def _link(path: Path, copy: Path, source: Path) -> None:
    """A link inside of the folder stays one inside; one that leads out leads to the same."""
    text = os.readlink(path)
    inside = os.path.realpath(path).startswith(str(source) + os.sep)
    copy.symlink_to(text if inside and not os.path.isabs(text) else os.path.realpath(path))


def _stays(journal: Journal, first: First) -> bool:
    """True for what a relaunch leaves in place: see `output.files`."""
    settled = journal.settled.get(first.path)
    if first.kind == "none" and os.path.isdir(first.path):
        below = [path for path in journal.settled if path.startswith(first.path + os.sep)]
        return any(_stays(journal, journal.firsts[path]) for path in below if path in journal.firsts)
    if settled is None or first.kind != "none" or settled[0] < LEFT_IN_PLACE:
        return False
    try:
        found = os.lstat(first.path)
    except FileNotFoundError:
        return False
    return (found.st_size, found.st_mtime_ns) == settled


def _undo(journal: Journal, first: First, copy: str) -> None:
    if first.kind == "other":
        return
    if first.kind == "folder":
        os.makedirs(copy, exist_ok=True)
        return
    remove(copy)
    if first.kind == "link":
        os.symlink(first.kept or "", copy)
    elif first.kind == "file":
        os.makedirs(os.path.dirname(copy), exist_ok=True)
        kept = journal.content(first)
        if kept is not None and kept.exists():
            shutil.copyfile(kept, copy)
        else:
            _beginning(first, copy)
        os.chmod(copy, first.mode)


def _beginning(first: First, copy: str) -> None:
    """The file has only grown: its first bytes are what it was."""
    if not os.path.isfile(first.path) or os.path.getsize(first.path) < first.size:
        raise Impossible(f"what {first.path} was at the first start is not known any more")
    if tail_digest(first.path, first.size) != first.tail:
        raise Impossible(f"what {first.path} was at the first start is not known any more")
    with open(first.path, "rb") as source, open(copy, "wb") as target:
        shutil.copyfileobj(source, target)
        target.truncate(first.size)
