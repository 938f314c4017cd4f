"""What SQLite says, in the words of this project."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator

from everstep.model.errors import StoreError, StoreFull, StoreUnusable

# Primary result codes, which the sqlite3 module does not export on every version.
_BUSY, _LOCKED, _READONLY, _IOERR, _CORRUPT, _FULL, _CANTOPEN, _NOTADB = 5, 6, 8, 10, 11, 13, 14, 26


def translated(error: sqlite3.Error, path: str) -> StoreError:
    """The error to raise instead; one line that names the file."""
    code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
    if code == _FULL:
        return StoreFull(f"{path}: no space is left for the journal; free some and it goes on by itself")
    if code in (_CORRUPT, _NOTADB):
        return StoreUnusable(f"{path}: the journal is damaged ({error}); restore a backup")
    if code in (_BUSY, _LOCKED):
        return StoreError(f"{path}: another process keeps the journal locked")
    if code in (_READONLY, _CANTOPEN):
        return StoreUnusable(f"{path}: the journal cannot be opened for writing ({error})")
    what = "the disk fails" if code == _IOERR else "SQLite refuses"
    return StoreError(f"{path}: {what} ({error})")


@contextlib.contextmanager
def in_our_words(path: str) -> Iterator[None]:
    """Raises ``translated`` errors in place of SQLite's."""
    try:
        yield
    except sqlite3.Error as error:
        raise translated(error, path) from error
