"""At the safe point: each file gets the contents of the save, from the save itself or from what lies aside."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Set
from pathlib import Path
from typing import Any

from everstep.train.script.output import events
from everstep.train.script.output.aside import Aside, Entry, files_below, remove
from everstep.train.script.output.journal import Journal, tail_digest

_CHUNK = 1 << 22


class PutBack:
    """One relaunch's way back.

    Args:
        saved: what `Files.position` gave.
        aside: what the run had written until the crash.
        journal: what everything was at first.
        opened: paths that this process has open for writing; their contents are changed in place.
    """

    def __init__(self, saved: dict[str, Any], aside: Aside, journal: Journal, opened: Set[str]) -> None:
        self._saved = saved
        self._aside = aside
        self._journal = journal
        self._opened = opened
        self.tainted: dict[str, str] = {}
        """Files that could not be put back, and why."""

    def files(self) -> None:
        """All that the save knows."""
        for path, state in sorted(self._saved["files"].items()):
            self._one(path, state)

    def _one(self, path: str, state: dict[str, Any]) -> None:
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
        elif state["kind"] == "file" and state["content"] is not None:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            _write_in_place(path, state["content"])
            os.chmod(path, state["mode"])
        elif state["kind"] == "file" and entry is not None:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            self._big(path, entry, state)
        elif state["kind"] == "file":
            self._left_in_place(path, state)

    def _left_in_place(self, path: str, state: dict[str, Any]) -> None:
        """A big file that the setup needs: it was never moved."""
        size = os.path.getsize(path) if os.path.isfile(path) else -1
        if size != state["size"] or tail_digest(path, size) != state["tail"]:
            self.tainted[path] = "the script's setup has written it again, and otherwise"

    def _unseen(self, path: str, entry: Entry) -> None:
        """What lay in a folder of the run without having been seen: kept as it was at the crash."""
        held = str(self._aside.held(entry))
        for one in files_below(held):
            place = path + one[len(held) :]
            if os.path.lexists(place):
                continue
            os.makedirs(os.path.dirname(place), exist_ok=True)
            if os.lstat(one).st_mtime_ns > self._saved["at_ns"]:
                self.tainted[place] = "it was written past Python, after the save"
            shutil.move(one, place)

    def _big(self, path: str, entry: Entry, state: dict[str, Any]) -> None:
        held = self._aside.held(entry)
        if not held.exists():
            self.tainted[path] = "it is not here any more, and is too big to be kept in a save"
            print(f"everstep: {path} ({state['size']} bytes): {self.tainted[path]}", file=sys.stderr, flush=True)
            return
        grown = entry.size >= state["size"] >= entry.begin and self._only_grown(entry, state)
        if entry.kind == "tail":
            _append(path, held, state["size"] - entry.begin if grown else None)
            grown = grown and tail_digest(path, state["size"]) == state["tail"]
        else:
            grown = grown and tail_digest(str(held), state["size"]) == state["tail"]
            _place(held, path, state["size"] if grown else entry.size, copy=path in self._opened)
        if not grown:
            self.tainted[path] = "it was rewritten after the save, and is too big to be kept in one"

    def _only_grown(self, entry: Entry, state: dict[str, Any]) -> bool:
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
                _write_in_place(path, kept.read_bytes())
            elif os.path.exists(path):
                os.truncate(path, first.size)


def _write_in_place(path: str, contents: bytes) -> None:
    """Into the file that is there: handles that are open on it see the new contents."""
    if os.path.islink(path) or (os.path.lexists(path) and not os.path.isfile(path)):
        remove(path)
    with open(path, "r+b" if os.path.exists(path) else "wb") as file:
        file.truncate(0)
        file.write(contents)


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
