"""The files that the script writes: what they are at a save, and how a relaunch brings them back.

A save holds for each path that the run has touched whether it is there, its size, and its whole contents up to 1 MiB
(16 MiB in all, the newest first; else a digest of its end). A relaunch goes three steps: before the script starts,
everything that the run wrote is put aside and the world is that of its first start (`Files.begin`); the script's setup
runs; at the safe point the contents of the save are written into the files (`Files.restored`, see `putback`), under the
handles that the setup opened.

A file above 8 MiB that has not changed since the first save is left in place: a data set that the setup downloads or
prepares.
"""

from __future__ import annotations

import os
import shutil
import stat
import time
from pathlib import Path
from typing import Any

from everstep.train.script.output import events, handles, watch
from everstep.train.script.output.aside import Aside, Entry, files_below, remove
from everstep.train.script.output.journal import SMALL, First, Journal, excluded, tail_digest
from everstep.train.script.output.putback import PutBack
from everstep.train.script.refusal import refuse

_ALL_KEPT = 1 << 24
_LEFT_IN_PLACE = 1 << 23
_RACY_NS = 50_000_000
"""A file that changed so shortly before it was looked at may change again without its time telling."""


class Files:
    """The files of one rank.

    Args:
        folder: the checkpoint folder.
        rank: of this process.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = os.path.realpath(folder)
        self._journal = Journal(folder, rank)
        self._aside = Aside(folder / f"aside-{rank}")
        self._pid = os.getpid()
        self._tainted: dict[str, str] = {}
        self._noted: set[str] = set()
        self._states: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {}
        self._saved_before = False

    # --- told by the audit hook -------------------------------------------------------------------------------------

    def changes(self, path: str, how: str) -> None:
        """See `watch.Listener`."""
        if excluded(path, self._folder) or self._folder.startswith(path + os.sep):
            return
        if how in ("append", "update"):
            self.reads(path)
        else:
            self._tainted.pop(path, None)
        if path not in self._journal.firsts:
            self._journal.first_touch(path, how)
        if how in ("write", "update", "replace") and path not in self._noted:
            self._journal.rewrite(path)
            self._noted.add(path)

    def reads(self, path: str) -> None:
        """See `watch.Listener`."""
        why = self._tainted.get(os.path.realpath(path)) if self._tainted else None
        if why is None:
            return
        text = f"{path} is needed, but {why}; let the script write it before it reads it"
        if os.getpid() != self._pid:
            raise RuntimeError(f"everstep: {text}")  # in a loader's worker: it comes up in the training process
        refuse(text)

    def moves(self, source: str, target: str) -> None:
        """See `watch.Listener`."""
        self.reads(source)
        folder = os.path.isdir(source) and not os.path.islink(source)
        for path in [*files_below(source)] if folder else ():
            self.changes(path, "remove")
            self.changes(target + path[len(source) :], "replace")
        self.changes(source, "remove")
        self.changes(target, "folder" if folder else "replace")

    # --- before the script starts -----------------------------------------------------------------------------------

    def begin(self, saved: dict[str, Any] | None) -> None:
        """Make the world that of the run's first start, and watch from now on."""
        self._journal.load()
        self._journal.mend()
        of_replay = self._aside.load()
        for number, first in self._movable():
            if first.path not in self._aside.entries:
                self._aside.add(self._entry(first, f"{number}", of_replay=of_replay))
        if self._aside.entries:
            self._aside.store("moving")
            self._aside.move()
            for path in self._aside.entries:
                self._first_state(self._journal.firsts[path])
            self._aside.store("replaying")
        if saved is None:
            self._aside.done()
        self._saved_before = saved is not None
        watch.listen(self)

    def _movable(self) -> list[tuple[int, First]]:
        """What is put aside, each with its number in the journal."""
        firsts = list(enumerate(self._journal.firsts.values()))
        left = {first.path for _, first in firsts if self._is_left(first)}
        return [
            (number, first)
            for number, first in firsts
            if first.kind not in ("folder", "other")
            and first.path not in left
            and not any(path.startswith(first.path + os.sep) for path in left)
        ]

    def _is_left(self, first: First) -> bool:
        settled = self._journal.settled.get(first.path)
        if settled is None or first.kind != "none" or settled[0] < _LEFT_IN_PLACE:
            return False
        found = look(first.path)
        return found is not None and (found.st_size, found.st_mtime_ns) == settled

    def _entry(self, first: First, name: str, *, of_replay: bool) -> Entry:
        found = look(first.path)
        if found is None or (of_replay and first.kind == "none"):
            # What an unfinished replay made was not there at the crash.
            return Entry(first.path, name, "none")
        if stat.S_ISDIR(found.st_mode):
            return Entry(first.path, name, "folder")
        appended = (
            first.kind == "file"
            and first.kept is None
            and found.st_size >= first.size
            and tail_digest(first.path, first.size) == first.tail
        )
        rewritten = self._journal.rewritten.get(first.path, -1)
        kind, begin = ("tail", first.size) if appended else ("file", 0)
        return Entry(first.path, name, kind, begin, found.st_size, found.st_mtime_ns, rewritten)

    def _first_state(self, first: First) -> None:
        """Put what was there before the run to its first contents."""
        if first.kind == "link":
            remove(first.path)
            os.symlink(first.kept or "", first.path)
        if first.kind != "file":
            return
        kept = self._journal.content(first)
        if kept is not None and kept.exists():
            os.makedirs(os.path.dirname(first.path), exist_ok=True)
            shutil.copyfile(kept, first.path)
            os.chmod(first.path, first.mode)
        elif os.path.exists(first.path):
            os.truncate(first.path, first.size)
        else:
            self._tainted[first.path] = "the run has overwritten what it was at its first start"

    # --- at a save --------------------------------------------------------------------------------------------------

    def position(self) -> dict[str, Any]:
        """What the files are now. Picklable."""
        events.flush()
        self._journal.load()
        fds = handles.written_fds(self._journal.firsts)
        handles.flush(fds)
        room = _ALL_KEPT
        files: dict[str, Any] = {}
        for path in sorted(self._journal.firsts, key=_changed_ns, reverse=True):
            files[path] = state = self._state(path, room)
            room -= len(state.get("content") or b"")
        if not self._saved_before:
            self._settle(files)
        self._noted.clear()
        return {"files": files, "open": handles.describe(fds), "mark": self._journal.mark, "at_ns": time.time_ns()}

    def _settle(self, files: dict[str, Any]) -> None:
        self._saved_before = True
        for path, state in files.items():
            if state["kind"] == "file" and state["size"] >= _LEFT_IN_PLACE:
                self._journal.settle(path, state["size"], state["changed_ns"])
        self._journal.load()

    def _state(self, path: str, room: int) -> dict[str, Any]:
        found = look(path)
        if found is None:
            return {"kind": "none"}
        if stat.S_ISLNK(found.st_mode):
            return {"kind": "link", "target": os.readlink(path)}
        if not stat.S_ISREG(found.st_mode):
            return {"kind": "folder" if stat.S_ISDIR(found.st_mode) else "other"}
        whole = found.st_size <= min(SMALL, room)
        key = found.st_size, found.st_mtime_ns, found.st_ino, whole
        known = self._states.get(path)
        if known is not None and known[0] == key:
            return known[1]
        state = {
            "kind": "file",
            "size": found.st_size,
            "changed_ns": found.st_mtime_ns,
            "mode": stat.S_IMODE(found.st_mode),
            "tail": tail_digest(path, found.st_size),
            "content": Path(path).read_bytes() if whole else None,
        }
        if time.time_ns() - found.st_mtime_ns > _RACY_NS:
            self._states[path] = key, state
        return state

    # --- at the safe point ------------------------------------------------------------------------------------------

    def restored(self, saved: dict[str, Any]) -> None:
        """Put every file to what it was at the save; open handles go on in them."""
        self.unwatch()
        self._journal.load()
        fds = handles.written_fds(self._journal.firsts)
        handles.flush(fds)
        if self._aside.load():
            self._aside.store("restoring")
        put_back = PutBack(saved, self._aside, self._journal, set(fds.values()))
        put_back.files()
        self._tainted.update(put_back.tainted)
        handles.rejoin(fds, saved["open"])
        put_back.undo_later_ones()
        self._journal.restored(self._tainted)
        self._aside.done()
        self._states.clear()
        self._noted.clear()
        for path in fds.values():
            if path in self._tainted:
                refuse(f"{path} is open for writing, but {self._tainted[path]}")
        watch.listen(self)

    def unwatch(self) -> None:
        """What is written from now on is not the script's."""
        events.flush()
        watch.listen(None)


def look(path: str) -> os.stat_result | None:
    """What is at ``path`` (a link is itself), None for nothing."""
    try:
        return os.lstat(path)
    except OSError:
        return None


def _changed_ns(path: str) -> int:
    found = look(path)
    return 0 if found is None else found.st_mtime_ns
