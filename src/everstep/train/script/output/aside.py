"""What the run had written, moved out of the way before the script starts again.

The list is written before anything is moved. Until `done`, what lies aside counts, and what the script's replay leaves
at its place does not; so a relaunch that is killed at any moment is followed by one that finds everything again.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from everstep.train.script.output import durable
from everstep.train.script.output.place import Place

_CHUNK = 1 << 22


@dataclass
class Entry:
    """One path of the run at the crash.

    Attributes:
        path: real path.
        name: below the folder of what is aside.
        kind: ``none``, ``file``, ``folder``, or ``tail``: the file is in place, and what it has behind ``begin`` aside.
        begin: for ``tail``: bytes that stay in place.
        size: bytes at the crash.
        changed_ns: time of the last change before the crash.
        rewritten: where in the journal it says last that it was written otherwise than at its end; -1 for never.
    """

    path: str
    name: str
    kind: str
    begin: int = 0
    size: int = 0
    changed_ns: int = 0
    rewritten: int = -1


class Aside:
    """What one rank has put aside in one place: on another machine other things are in the way.

    Args:
        folder: the checkpoint folder.
        rank: of this process.
        place: where this launch runs.
    """

    def __init__(self, folder: Path, rank: int, place: Place) -> None:
        self._place = place
        self._folder = folder / f"aside-{rank}-{place.key}"
        self._list = self._folder / "list.json"
        self.entries: dict[str, Entry] = {}

    def load(self) -> bool:
        """Read the list that an unfinished relaunch left; whether there is one."""
        try:
            read = json.loads(self._list.read_text())
        except FileNotFoundError:
            return False
        entries = [Entry(**{**entry, "path": self._place.located(entry["path"])}) for entry in read["entries"]]
        self.entries = {entry.path: entry for entry in entries}
        return True

    def add(self, entry: Entry) -> None:
        """To be moved at `move`."""
        self.entries[entry.path] = entry

    def store(self, phase: str) -> None:
        """Write the list. Phases: ``moving`` (the script does not run), ``replaying``, ``restoring`` (it waits)."""
        self._folder.mkdir(parents=True, exist_ok=True)
        entries = [{**asdict(entry), "path": self._place.named(entry.path)} for entry in self.entries.values()]
        durable.write(self._list, json.dumps({"phase": phase, "entries": entries}).encode())

    def move_files(self) -> None:
        """Move every file that is not aside yet; what lies at the place of one that is, is the replay's, and goes."""
        for entry in self.entries.values():
            if not _is_folder(entry.path):
                self._put_aside(entry)

    def move_folders(self) -> None:
        """The same for folders, with what is left in them. No rank may have files of its own there any more."""
        # Deepest first: a folder is moved when what we know of it has left.
        for entry in sorted(self.entries.values(), key=lambda entry: entry.path.count(os.sep), reverse=True):
            if _is_folder(entry.path):
                self._put_aside(entry)

    def _put_aside(self, entry: Entry) -> None:
        held = self.held(entry)
        if entry.kind == "none" or os.path.lexists(held):
            if entry.kind != "tail":
                remove(entry.path)
        elif entry.kind == "tail":
            self._move_tail(entry)
        elif os.path.lexists(entry.path):
            self._move(entry.path, held)

    def _move_tail(self, entry: Entry) -> None:
        held = self.held(entry)
        temporary = held.with_suffix(".tmp")
        with open(entry.path, "rb") as source, temporary.open("wb") as target:
            source.seek(entry.begin)
            shutil.copyfileobj(source, target, _CHUNK)
        os.replace(temporary, held)
        os.truncate(entry.path, entry.begin)

    def _move(self, path: str, held: Path) -> None:
        try:
            os.rename(path, held)
        except FileNotFoundError:  # another rank was faster
            return
        except OSError:  # another file system
            temporary = held.with_suffix(".tmp")
            remove(str(temporary))
            if _is_folder(path):
                shutil.copytree(path, temporary, symlinks=True)
            else:
                shutil.copy2(path, temporary, follow_symlinks=False)
            os.rename(temporary, held)
            remove(path)

    def held(self, entry: Entry) -> Path:
        """Where the entry lies aside."""
        return self._folder / entry.name

    def done(self) -> None:
        """Everything is in its place: forget what is aside, here and in other places."""
        with contextlib.suppress(FileNotFoundError):
            self._list.unlink()
        for folder in self._folder.parent.glob(f"{self._folder.name.rpartition('-')[0]}-*"):
            shutil.rmtree(folder, ignore_errors=True)
        self.entries = {}


def _is_folder(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)


def remove(path: str) -> None:
    """Remove a file, a link, or a folder with all that is in it, if it is there."""
    if _is_folder(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def files_below(path: str, most: int = 10_000) -> Iterator[str]:
    """Files in a folder and below it."""
    for folder, _, names in os.walk(path):
        for name in names:
            most -= 1
            if most < 0:
                return
            yield os.path.join(folder, name)
