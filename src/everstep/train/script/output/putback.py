"""At the safe point: each file gets the contents of the save, from the save itself or from what lies aside."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Set
from pathlib import Path
from typing import Any

from everstep.train.script.output import events
from everstep.train.script.output.aside import Aside, Entry, files_below, remove
from everstep.train.script.output.journal import Journal, sample_digest
from everstep.train.script.output.keeping import State, matches
from everstep.train.script.output.store import Store
from everstep.train.script.refusal import refuse

_CHUNK = 1 << 22


class PutBack:
    """One relaunch's way back.

    Args:
        saved: what `Files.position` gave.
        sources: what the run had written until the crash, what everything was at first, and what was kept.
        opened: paths that this process has open for writing; their contents are changed in place.
        here: the save was made in these folders of this machine, so what lies aside is what the run wrote after it.
    """

    def __init__(
        self, saved: dict[str, Any], sources: tuple[Aside, Journal, Store], opened: Set[str], *, here: bool
    ) -> None:
        self._saved = saved
        self._aside, self._journal, self._store = sources
        self._opened = opened
        self._here = here
        self.tainted: dict[str, str] = {}
        """Files that could not be put back, and why."""

    def files(self) -> None:
        """All that the save knows."""
        for path, state in sorted(self._saved["files"].items()):
            self._one(path, state)

    def _one(self, path: str, state: State) -> None:
        entry = self._aside.entries.get(path)
        if state["kind"] == "none":
            remove(path)
        elif state["kind"] == "link":
            remove(path)
            os.symlink(state["target"], path)
        elif state["kind"] == "folder":
            os.makedirs(path, exist_ok=True)
            if entry is not None:
                self._unseen(path, entry)
        elif state["kind"] == "file":
            os.makedirs(os.path.dirname(path), exist_ok=True)
            self._file(path, entry, state)

    def _file(self, path: str, entry: Entry | None, state: State) -> None:
        if state["content"] is not None:
            self._write(path, [state["content"]], state)
        elif self._is_there(path, entry, state):
            pass
        elif state["pieces"] is not None:
            self._write(path, self._store.contents(state["pieces"], state["size"]), state)
        else:
            self._not_kept(path, entry, state)

    def _write(self, path: str, contents: Iterable[bytes], state: State) -> None:
        _write_in_place(path, contents)
        os.chmod(path, state["mode"])
        self.tainted.pop(path, None)

    def _is_there(self, path: str, entry: Entry | None, state: State) -> bool:
        """True if the file is what it was: left in place, made again by the setup, or put back from aside."""
        if entry is None or entry.kind == "none":
            trusted = entry is None and self._here and path not in self.tainted
            sure = trusted or state["pieces"] is None
            return matches(path, state) and (sure or self._store.equal(path, state["pieces"]))
        if not self._here or not self._aside.held(entry).exists():
            return False
        return entry.begin <= state["size"] <= entry.size and self._only_grown(entry, state) and self._cut(entry, state)

    def _cut(self, entry: Entry, state: State) -> bool:
        """Put back what only grew, without what came after the save."""
        held = self._aside.held(entry)
        if entry.kind == "tail":
            _append(entry.path, held, state["size"] - entry.begin)
            if matches(entry.path, state):
                return True
            os.truncate(entry.path, entry.begin)
        elif sample_digest(str(held), state["size"]) == state["sample"]:
            _place(held, entry.path, state["size"], copy=entry.path in self._opened)
            return True
        return False

    def _not_kept(self, path: str, entry: Entry | None, state: State) -> None:
        held = None if entry is None else self._aside.held(entry)
        if not self._here and held is not None and matches(str(held), state):
            _place(held, path, state["size"], copy=path in self._opened)
        elif self._here and entry is not None and held is not None and held.exists():
            self._as_at_crash(path, entry, held)
            self.tainted[path] = "it was rewritten after the save, and is too big to be kept in one"
        elif self._here and os.path.exists(path):
            self.tainted[path] = "it was written again, and otherwise"
        else:
            how = "is not what it was" if os.path.exists(path) else "is not here"
            refuse(
                f"{path} ({state['size']} bytes) {how}, and is too big to be kept in the checkpoint; copy it here from "
                "the machine that wrote it, or start afresh with another --dir"
            )

    def _as_at_crash(self, path: str, entry: Entry, held: Path) -> None:
        if entry.kind == "tail":
            _append(path, held, None)
        else:
            _place(held, path, entry.size, copy=path in self._opened)

    def _unseen(self, path: str, entry: Entry) -> None:
        """What lay in a folder of the run without having been seen: kept as it was at the crash."""
        held = str(self._aside.held(entry))
        for one in files_below(held):
            place = path + one[len(held) :]
            elsewhere = not self._here and place not in self._saved["files"]
            if elsewhere or os.path.lexists(place):
                continue
            os.makedirs(os.path.dirname(place), exist_ok=True)
            if os.lstat(one).st_mtime_ns > self._saved["at_ns"]:
                self.tainted[place] = "it was written past Python, after the save"
            shutil.move(one, place)

    def _only_grown(self, entry: Entry, state: State) -> bool:
        """Nothing but its end can have changed since the save."""
        if entry.changed_ns == state["changed_ns"] and entry.size == state["size"]:
            return True
        for handle in self._saved["open"]:
            if handle["path"] == entry.path and not handle["appends"] and handle["offset"] != state["size"]:
                return False  # it was being written in the middle
        return entry.rewritten < int(self._saved["mark"])

    def undo_later_ones(self) -> None:
        """Files that were first touched after the save, or by the replay: back to what they were before."""
        for path in sorted(self._journal.firsts.keys() - self._saved["files"].keys(), reverse=True):
            self._undo(path)

    def _undo(self, path: str) -> None:
        first = self._journal.firsts[path]
        if first.kind == "none" and events.is_events(path) and os.path.exists(path):
            events.keep_header(path)
        elif first.kind == "none":
            if os.path.islink(path) or not os.path.isdir(path):
                remove(path)
            elif not os.listdir(path):
                os.rmdir(path)
        elif first.kind == "link":
            remove(path)
            os.symlink(first.kept or "", path)
        elif first.kind == "file":
            kept = self._journal.content(first)
            if kept is not None:
                os.makedirs(os.path.dirname(path), exist_ok=True)
                _write_in_place(path, [kept.read_bytes()])
            elif os.path.isfile(path) and os.path.getsize(path) > first.size:
                os.truncate(path, first.size)


def _write_in_place(path: str, contents: Iterable[bytes]) -> None:
    """Into the file that is there: handles that are open on it see the new contents."""
    if os.path.islink(path) or (os.path.lexists(path) and not os.path.isfile(path)):
        remove(path)
    with open(path, "r+b" if os.path.exists(path) else "wb") as file:
        file.truncate(0)
        for piece in contents:
            file.write(piece)


def _append(path: str, held: Path, count: int | None) -> None:
    """The first ``count`` bytes of ``held`` (all for None) behind ``path``."""
    with open(path, "ab") as target, held.open("rb") as source:
        left = sys.maxsize if count is None else count
        while left and (chunk := source.read(min(left, _CHUNK))):
            target.write(chunk)
            left -= len(chunk)


def _place(held: Path, path: str, size: int, *, copy: bool) -> None:
    """``held``, cut to ``size``, at ``path``; copied into the file there if someone has it open."""
    if copy and os.path.exists(path):
        os.truncate(path, 0)
        _append(path, held, size)
        return
    remove(path)
    shutil.move(held, path)
    os.truncate(path, size)
