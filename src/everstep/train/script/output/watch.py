"""Sees every file before this process changes it or reads it: an audit hook, and a word before ``torch.save``.

Audit hooks cannot be taken back; there is one per process, which passes on to whoever listens (`listen`).
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, Protocol

import torch

from everstep.train.script import descriptors


class Listener(Protocol):
    """Told before it happens, with real paths."""

    def changes(self, path: str, how: str) -> None:
        """``how``: ``write`` (from empty), ``append``, ``update`` (in place), ``replace`` (by another file),
        ``remove``, ``folder`` (made)."""

    def reads(self, path: str) -> None:
        """The contents are about to be read; the path is as the program gave it."""

    def moves(self, source: str, target: str) -> None:
        """A file or folder gets another name."""


_listener: Listener | None = None
_guard: Listener | None = None
_hooked = False
_busy = threading.local()


def listen(listener: Listener | None) -> None:
    """Let ``listener`` be told from now on; None for nobody."""
    global _listener
    _listener = listener
    _begin()


def guard(listener: Listener) -> None:
    """Let ``listener`` be told before the other, and for good: also of what we change ourselves."""
    global _guard
    _guard = listener
    _begin()


def _begin() -> None:
    global _hooked
    if not _hooked:
        _hooked = True
        sys.addaudithook(_hook)
    _announce_torch(_listener is not None or _guard is not None)


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    # At the end of the interpreter, when modules are emptied, it is called all the same.
    handle = _EVENTS.get(event) if _EVENTS else None
    if handle is None or (_listener is None and _guard is None):
        return
    if getattr(_busy, "now", False):  # what the listener itself opens
        return
    _busy.now = True
    try:
        for listener in (_guard, _listener):
            if listener is not None:
                handle(listener, *arguments)
    finally:
        _busy.now = False


def _open(listener: Listener, path: Any, mode: Any, flags: Any) -> None:
    if isinstance(path, int):
        descriptors.wrapped(path)
    if isinstance(path, int) or path is None or not isinstance(flags, int):
        return
    if not flags & (os.O_WRONLY | os.O_RDWR):
        listener.reads(os.fsdecode(path))
        return
    text = _text(path)
    if text is None:
        return
    if flags & os.O_TRUNC or (flags & os.O_CREAT and flags & os.O_EXCL):
        listener.changes(text, "write")
    else:
        listener.changes(text, "append" if flags & os.O_APPEND else "update")


def _rename(listener: Listener, source: Any, target: Any, source_fd: Any = -1, target_fd: Any = -1) -> None:
    one, other = _name(source, source_fd), _name(target, target_fd)
    if one is not None and other is not None:
        listener.moves(one, other)


def _linked(listener: Listener, source: Any, target: Any, source_fd: Any = -1, target_fd: Any = -1) -> None:
    _symlinked(listener, source, target, target_fd)


def _symlinked(listener: Listener, source: Any, target: Any, folder_fd: Any = -1) -> None:
    text = _name(target, folder_fd)
    if text is not None:
        listener.changes(text, "write")


def _remove(listener: Listener, path: Any, folder_fd: Any = -1) -> None:
    text = _name(path, folder_fd)
    if text is not None:
        listener.changes(text, "remove")


def _truncate(listener: Listener, path: Any, length: Any) -> None:
    text = _of_fd(path) if isinstance(path, int) else _text(path)
    if text is not None:
        listener.changes(text, "update")


def _mkdir(listener: Listener, path: Any, mode: Any, folder_fd: Any = -1) -> None:
    text = _name(path, folder_fd)
    if text is not None:
        listener.changes(text, "folder")


def _mmap(listener: Listener, fd: Any, length: Any, access: Any, *more: Any) -> None:
    text = _of_fd(fd)
    if text is not None and access != 1:  # not ACCESS_READ
        listener.changes(text, "update")


def _sqlite(listener: Listener, database: Any, *more: Any) -> None:
    text = _text(database)
    if text is not None and text != ":memory:" and not text.startswith("file:"):
        listener.changes(text, "update")


_EVENTS: dict[str, Callable[..., None]] = {
    "open": _open,
    "os.rename": _rename,
    "os.link": _linked,
    "os.symlink": _symlinked,
    "os.remove": _remove,
    "os.rmdir": _remove,
    "os.truncate": _truncate,
    "os.mkdir": _mkdir,
    "mmap.__new__": _mmap,
    "sqlite3.connect": _sqlite,
}


def _text(path: Any) -> str | None:
    """The path, unless it is an open file's number."""
    if isinstance(path, int) or path is None:
        return None
    try:
        return os.path.realpath(os.fsdecode(path))
    except (TypeError, ValueError, OSError):
        return None


def _name(path: Any, folder_fd: Any = -1) -> str | None:
    """As `_text`, but a link is itself, not what it points to; relative to an open folder (as in `shutil.rmtree`)."""
    try:
        # -1 stands for none. A path that is absolute wins.
        base = _of_fd(folder_fd) if isinstance(folder_fd, int) and folder_fd >= 0 else None
        folder, name = os.path.split(os.path.abspath(os.path.join(base or "", os.fsdecode(path))))
        return os.path.join(os.path.realpath(folder), name)
    except (TypeError, ValueError, OSError):
        return None


def _of_fd(fd: Any) -> str | None:
    try:
        path = os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return None
    return path if path.startswith("/") else None


# --- torch ------------------------------------------------------------------------------------------------------------

_writers: dict[tuple[Any, str], Callable[..., Any]] = {(torch, "save"): torch.save, (torch.jit, "save"): torch.jit.save}


def _announce_torch(on: bool) -> None:
    """``torch.save`` writes in C++, which no audit hook sees."""
    for (module, name), plain in _writers.items():
        setattr(module, name, _announcing(plain) if on else plain)


def _announcing(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def save(thing: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(f, (str, os.PathLike)):
            _hook("open", (f, "wb", os.O_WRONLY | os.O_CREAT | os.O_TRUNC))
        return plain(thing, f, *args, **kwargs)

    return save
