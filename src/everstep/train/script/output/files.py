"""The files that the script writes: what they are at a save, and how a relaunch brings them back.

A save holds for each path that the run has touched whether it is there, its size and its contents: up to 1 MiB in the
save itself (16 MiB in all), of bigger ones pieces beside the checkpoints (256 MiB in all, see `keeping`). A relaunch
goes three steps: before the script starts, everything that the run wrote is put aside and the world is that of its
first start (`Files.begin`); the script's setup runs; at the safe point the contents of the save are written into the
files (`Files.restored`, see `putback`), under the handles that the setup opened.

On the same machine a file above 8 MiB that has not changed since the first save is left in place: a data set that the
setup downloads or prepares.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from everstep.train.lineage import Position
from everstep.train.script.output import events, handles, watch
from everstep.train.script.output.aside import Aside, Entry, files_below, remove
from everstep.train.script.output.journal import First, Journal, excluded, tail_digest
from everstep.train.script.output.keeping import Keeping, is_kept, look, matches, pieces_of
from everstep.train.script.output.place import Place
from everstep.train.script.output.putback import PutBack
from everstep.train.script.output.store import Damaged, Store
from everstep.train.script.refusal import refuse

LEFT_IN_PLACE = 1 << 23
"""A file of so many bytes that the first save found, and that has not changed since, is not put aside."""
_MOST_UNSEEN = 1000


def _say(text: str) -> None:
    print(f"everstep: {text}", file=sys.stderr, flush=True)


def _nowhere() -> Position:
    return Position(0, 0)


def _alone() -> None:
    pass


@dataclass(frozen=True)
class Launch:
    """What this launch of the script is.

    Attributes:
        folder: the checkpoint folder.
        rank: of this process.
        place: where it runs.
        attempt: its number.
        position: of a save that is made now.
        warn: told what a user should know.
        meet: waits for all ranks; called equally often by each.
    """

    folder: Path
    rank: int
    place: Place
    attempt: int = 0
    position: Callable[[], Position] = _nowhere
    warn: Callable[[str], None] = _say
    meet: Callable[[], None] = _alone


class Files:
    """The files of one rank."""

    def __init__(self, launch: Launch) -> None:
        folder = launch.folder
        folder.mkdir(parents=True, exist_ok=True)
        self._launch = launch
        self._folder = os.path.realpath(folder)
        self._journal = Journal(folder, launch.rank, launch.place)
        self._aside = Aside(folder, launch.rank, launch.place)
        self._store = Store(folder, launch.rank, launch.attempt)
        self._keeping = Keeping(self._store, launch.warn)
        self._pid = os.getpid()
        self._tainted: dict[str, str] = {}
        self._noted: set[str] = set()
        self._looked_at = -1
        self._in_middle: set[str] = set()
        self._saved_before = False
        self._others: dict[int, Journal] = {}

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
        # What a child noted is not forgotten at the parent's saves: it notes every time.
        if how in ("write", "update", "replace") and (path not in self._noted or os.getpid() != self._pid):
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

    def is_here(self, saved: Mapping[str, Any]) -> bool:
        """True if the save was made in these folders of this machine."""
        return self._launch.place.is_here(saved.get("place"))

    # --- before the script starts -----------------------------------------------------------------------------------

    def begin(self, saved: dict[str, Any] | None) -> None:
        """Make the world that of the run's first start, and watch from now on."""
        self._journal.load()
        self._journal.mend()
        of_replay = self._aside.load()
        wanted = {} if saved is None else self._not_kept(saved)
        for number, first in self._movable():
            # Somebody may have brought what the last relaunch had refused to go on without.
            brought = first.path in wanted and matches(first.path, wanted[first.path])
            if brought or first.path not in self._aside.entries:
                self._aside.add(self._entry(first, f"{number}", of_replay=of_replay and not brought))
        if self._aside.entries:
            self._aside.store("moving")
            self._aside.move_files()
        # Several ranks write into the same folders: each takes its own files out first.
        self._launch.meet()
        if self._aside.entries:
            self._aside.move_folders()
            for path in self._aside.entries:
                self._first_state(self._journal.firsts[path])
            self._aside.store("replaying")
        if saved is None:
            self._aside.done()
        self._saved_before = saved is not None
        if saved is not None:
            self._store.adopt(pieces_of(saved["files"]))
        # No rank's script may see what another one is still putting aside.
        self._launch.meet()
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
        if settled is None or first.kind != "none" or settled[0] < LEFT_IN_PLACE:
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
        elif os.path.isfile(first.path) and os.path.getsize(first.path) >= first.size:
            os.truncate(first.path, first.size)
        else:
            self._tainted[first.path] = "the run has overwritten what it was at its first start"

    # --- at a save --------------------------------------------------------------------------------------------------

    def position(self) -> dict[str, Any]:
        """What the files are now. Picklable. What is kept beside the save is durable when this returns."""
        events.flush()
        self._journal.load()
        fds = handles.written_fds(self._journal.firsts)
        handles.flush(fds)
        opened = handles.describe(fds)
        paths = [*self._journal.firsts, *self._unseen()]
        files = self._keeping.states(paths, self._rewritten(opened), self._launch.position())
        if not self._saved_before:
            self._settle(files)
        self._noted.clear()
        self._looked_at = self._journal.mark
        return {
            "place": self._launch.place.described(),
            "files": files,
            "open": opened,
            "mark": self._journal.mark,
            "at_ns": time.time_ns(),
        }

    def sync(self) -> None:
        """Make the journal durable, as far as it goes now."""
        self._journal.sync()

    def _rewritten(self, opened: list[dict[str, Any]]) -> Callable[[str], bool]:
        """Whether a file may have changed elsewhere than at its end since the last save."""
        before, self._in_middle = self._in_middle, {one["path"] for one in opened if not one["appends"]}
        free, journal, since = before | self._in_middle, self._journal, self._looked_at
        return lambda path: path in free or path not in journal.firsts or journal.rewritten.get(path, -1) >= since

    def _unseen(self) -> list[str]:
        """Files that were written past Python, in folders that the run has made."""
        firsts = self._journal.firsts
        folders = [path for path, first in firsts.items() if first.kind == "none" and os.path.isdir(path)]
        outer = [path for path in folders if not os.path.islink(path) and os.path.dirname(path) not in firsts]
        below = (path for folder in outer for path in files_below(folder) if path not in firsts)
        found = [*islice((path for path in below if not excluded(path, self._folder)), _MOST_UNSEEN)]
        if not found:
            return []
        # Each file is kept by one rank: by the one that has seen it, or else the lowest that has made its folder.
        others = self._journals_of_others()
        seen = {path for journal in others.values() for path in journal.firsts}
        lower = [journal.firsts for rank, journal in others.items() if rank < self._launch.rank]
        made = tuple(path + os.sep for firsts in lower for path, first in firsts.items() if first.kind == "none")
        return [path for path in found if path not in seen and not path.startswith(made)]

    def _journals_of_others(self) -> dict[int, Journal]:
        for found in self._launch.folder.glob("files-*.jsonl"):
            rank = int(found.stem.rpartition("-")[2])
            if rank != self._launch.rank and rank not in self._others:
                self._others[rank] = Journal(self._launch.folder, rank, self._launch.place)
        for journal in self._others.values():
            journal.load()
        return self._others

    def _settle(self, files: dict[str, Any]) -> None:
        self._saved_before = True
        for path, state in files.items():
            if state["kind"] == "file" and path in self._journal.firsts and state["size"] >= LEFT_IN_PLACE:
                self._journal.settle(path, state["size"], state["changed_ns"])
        self._journal.load()

    # --- at the safe point ------------------------------------------------------------------------------------------

    def restored(self, saved: dict[str, Any]) -> None:
        """Put every file to what it was at the save; open handles go on in them."""
        self.unwatch()
        here = self.is_here(saved)
        saved = self._located(saved)
        self._journal.load()
        fds = handles.written_fds(self._journal.firsts)
        handles.flush(fds)
        if self._aside.load():
            self._aside.store("restoring")
        put_back = PutBack(saved, (self._aside, self._journal, self._store), set(fds.values()), here=here)
        try:
            put_back.files()
        except Damaged as error:
            refuse(f"a file of the run cannot be put back: {error}; start afresh with another --dir")
        self._tainted.update(put_back.tainted)
        handles.rejoin(fds, saved["open"])
        put_back.undo_later_ones()
        self._journal.restored(self._tainted)
        # A rank that is ahead may write to what another one is still putting back.
        self._launch.meet()
        self._aside.done()
        self._keeping.forget()
        self._noted.clear()
        for path in fds.values():
            if path in self._tainted:
                refuse(f"{path} is open for writing, but {self._tainted[path]}")
        watch.listen(self)

    def _located(self, saved: dict[str, Any]) -> dict[str, Any]:
        """The same with the paths of this launch."""
        move = self._launch.place.mover(saved.get("place"))
        if move is None:
            return saved
        files = {
            move(path): {**state, "target": move(state["target"])} if state["kind"] == "link" else state
            for path, state in saved["files"].items()
        }
        return {**saved, "files": files, "open": [{**one, "path": move(one["path"])} for one in saved["open"]]}

    def _not_kept(self, saved: dict[str, Any]) -> dict[str, dict[str, Any]]:
        return {path: state for path, state in self._located(saved)["files"].items() if not is_kept(state)}

    def unwatch(self) -> None:
        """What is written from now on is not the script's."""
        events.flush()
        watch.listen(None)


def damage(launch: Launch, saved: Mapping[str, Any]) -> str:
    """What keeps the files of a save from being put back here, "" for nothing. Reads what would be needed."""
    if launch.place.is_here(saved.get("place")):
        return ""  # they are here themselves
    store = Store(launch.folder, launch.rank, launch.attempt)
    try:
        for state in saved["files"].values():
            for _ in store.contents(state.get("pieces") or (), state.get("size", 0)):
                pass  # reading it is the check
    except Damaged as error:
        return str(error)
    return ""
