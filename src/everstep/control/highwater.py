"""How far the journal once was, kept beside it: a journal that is shorter was put back to an earlier hour."""

from __future__ import annotations

import os
from pathlib import Path


class HighWater:
    """One number in a file of its own, which a restored database does not bring back.

    It is a hint, not a record: written without fsync, and a file that cannot be read or written says nothing. Agents
    that know of a newer attempt tell the same (see ``AgentDesk``).

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        """See the class."""
        self._path = path
        self.folder = path.parent
        self._kept = self.read()

    def read(self) -> int:
        """The highest sequence number kept so far, 0 if none is known."""
        try:
            return int(self._path.read_text())
        except (OSError, ValueError):
            return 0

    def keep(self, seq: int) -> None:
        """Takes note of a sequence number if it is higher than before."""
        if seq <= self._kept:
            return
        self._kept = seq
        temporary = self._path.with_suffix(".new")
        try:
            temporary.write_text(f"{seq}\n")
            os.replace(temporary, self._path)
        except OSError:
            return  # a full disk: the journal itself says so
