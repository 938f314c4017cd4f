"""The embedded journal: one SQLite file, one writer thread that commits in groups, readers that never block it."""

from __future__ import annotations

from everstep.store.sqlite.file import restore
from everstep.store.sqlite.store import SqliteStore, open_url

__all__ = ["SqliteStore", "open_url", "restore"]
