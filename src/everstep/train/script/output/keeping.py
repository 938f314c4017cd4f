"""What a save holds of each file that the run has touched: a small one itself, of a bigger one pieces in the store."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everstep.train.lineage import Position
from everstep.train.script.output.journal import SMALL, sample_digest
from everstep.train.script.output.store import PIECE, Store

IN_SAVE = 1 << 24
"""So many bytes of small files are in the save itself."""
IN_STORE = 1 << 28
"""So many bytes of the files of one save are in the store, those changed last first."""
_MOST_FILES = 1000
_RACY_NS = 50_000_000
"""A file that changed so shortly before it was looked at may change again without its time telling."""

State = dict[str, Any]
"""Of one path: ``kind`` is ``none``, ``link``, ``folder``, ``other`` or ``file``. A file has size, time of
change, mode, a sample (`sample_digest`), and its ``content``, or names of its ``pieces``, or neither: not kept."""


class Keeping:
    """Describes files, and keeps what is in them; what did not change since the last save is not read again.

    Args:
        store: for files that are not small.
        warn: told once of each file that is not kept.
    """

    def __init__(self, store: Store, warn: Callable[[str], None]) -> None:
        self._store = store
        self._warn = warn
        self._described: dict[str, tuple[tuple[int, ...], State]] = {}
        self._kept: dict[str, _Kept] = {}
        self._told: set[str] = set()

    def forget(self) -> None:
        """The files have been changed by us."""
        self._described.clear()
        self._kept.clear()

    def states(self, paths: Iterable[str], rewritten: Callable[[str], bool], position: Position) -> dict[str, State]:
        """What the files are now.

        Args:
            paths: real paths; need not exist.
            rewritten: whether one may have changed elsewhere than at its end since the last call.
            position: of the save; what is in the store for it stays as long as the save.
        """
        self._store.collect()
        in_save, in_store, files = IN_SAVE, IN_STORE, 0
        found: dict[str, State] = {}
        for path in sorted(paths, key=changed_ns, reverse=True):
            inode, state = self._describe(path, in_save)
            if state["kind"] == "file" and state["content"] is None:
                room = in_store if files < _MOST_FILES else 0
                pieces = self._pieces(path, inode, state, rewritten(path)) if state["size"] <= room else None
                state = {**state, "pieces": pieces}
                in_store -= state["size"] if pieces is not None else 0
                files += 1
            in_save -= len(state.get("content") or b"")
            found[path] = state
        try:
            self._store.refer(position, pieces_of(found))
        except OSError as error:
            self._warn(f"the script's bigger files are not kept in the checkpoint: {error.strerror or error}")
            found = {path: {**state, "pieces": None} for path, state in found.items()}
        self._tell(found)
        return found

    def _describe(self, path: str, room: int) -> tuple[int, State]:
        """(inode, what the save says); ``room``: bytes that are left in the save."""
        now = look(path)
        if now is None:
            return 0, {"kind": "none"}
        if stat.S_ISLNK(now.st_mode):
            return now.st_ino, {"kind": "link", "target": os.readlink(path)}
        if not stat.S_ISREG(now.st_mode):
            return now.st_ino, {"kind": "folder" if stat.S_ISDIR(now.st_mode) else "other"}
        whole = now.st_size <= min(SMALL, room)
        key = now.st_size, now.st_mtime_ns, now.st_ino, int(whole)
        known = self._described.get(path)
        if known is not None and known[0] == key:
            return now.st_ino, known[1]
        state = {
            "kind": "file",
            "size": now.st_size,
            "changed_ns": now.st_mtime_ns,
            "mode": stat.S_IMODE(now.st_mode),
            "sample": sample_digest(path, now.st_size),
            "content": Path(path).read_bytes() if whole else None,
            "pieces": None,
        }
        if time.time_ns() - now.st_mtime_ns > _RACY_NS:
            self._described[path] = key, state
        return now.st_ino, state

    def _pieces(self, path: str, inode: int, state: State, rewritten: bool) -> list[str] | None:
        """Names of the pieces of a file; None, and it is not kept, where the disk does not take them."""
        size, changed_ns = state["size"], state["changed_ns"]
        kept = self._kept.get(path)
        if kept is not None and not (kept.inode == inode and self._store.has(kept.pieces)):
            kept = None
        if kept is not None and (kept.size, kept.changed_ns) == (size, changed_ns) and path in self._described:
            return kept.pieces
        try:
            grown = kept is not None and not rewritten and _begins_with(path, size, kept)
            pieces = kept.pieces[: kept.size // PIECE] if kept is not None and grown else []
            with open(path, "rb") as file:
                for begin in range(len(pieces) * PIECE, size, PIECE):
                    file.seek(begin)
                    pieces.append(self._store.put(file.read(min(PIECE, size - begin))))
        except OSError as error:
            self._warn(f"{path} is not kept in the checkpoint: {error.strerror or error}")
            return None
        self._kept[path] = _Kept(inode, size, changed_ns, state["sample"], pieces)
        return pieces

    def _tell(self, found: Mapping[str, State]) -> None:
        left = [path for path, state in found.items() if not is_kept(state) and path not in self._told]
        if not left:
            return
        self._told.update(left)
        more = f" and {len(left) - 1} more files" if len(left) > 1 else ""
        size = found[left[0]]["size"]
        self._warn(
            f"{left[0]} ({size} bytes){more} not kept in the checkpoints, which hold {IN_STORE >> 20} MiB of files: "
            "on another machine the script must make the same again, or you copy it there"
        )


@dataclass(frozen=True)
class _Kept:
    """What is in the store of a file as it was."""

    inode: int
    size: int
    changed_ns: int
    sample: str
    pieces: list[str]


def _begins_with(path: str, size: int, kept: _Kept) -> bool:
    # Cutting a file by its handle is announced to nobody.
    return kept.size <= size and sample_digest(path, kept.size) == kept.sample


def is_kept(state: State) -> bool:
    """False for a file whose contents are not in the checkpoint."""
    return state["kind"] != "file" or state["content"] is not None or state["pieces"] is not None


def pieces_of(states: Mapping[str, State]) -> list[str]:
    """The pieces in the store of all these files."""
    return [name for state in states.values() for name in state.get("pieces") or ()]


def matches(path: str, state: State) -> bool:
    """True if the file is what it was, as far as its size and its sample tell."""
    size: int = state["size"]
    sample: str = state["sample"]
    return os.path.isfile(path) and os.path.getsize(path) == size and sample_digest(path, size) == sample


def look(path: str) -> os.stat_result | None:
    """What is at ``path`` (a link is itself), None for nothing."""
    try:
        return os.lstat(path)
    except OSError:
        return None


def changed_ns(path: str) -> int:
    """When the file changed last; 0 for nothing."""
    found = look(path)
    return 0 if found is None else found.st_mtime_ns
