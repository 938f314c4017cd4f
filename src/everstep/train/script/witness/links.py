"""Large files of the user's stand in the working folder of a check as links, and become copies before a write."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Sequence
from typing import Any

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_TRUNC


class Links:
    """The symbolic links in a working folder.

    Args:
        work: the folder.
        linked: their paths, relative to it.
    """

    def __init__(self, work: str, linked: Sequence[str]) -> None:
        self._linked = {os.path.join(os.path.realpath(work), path) for path in linked}

    def guard(self) -> None:
        """From now on a link becomes a copy before this process opens it for writing through Python."""
        if self._linked:
            # A hook costs a little at every file and import: only where there is something to guard.
            sys.addaudithook(self._look)

    def guard_torch_save(self, torch: Any) -> None:
        """The same for ``torch.save``, which opens files beside Python."""
        if not self._linked:
            return
        save = torch.save

        def guarded(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
            self._own(f)
            return save(obj, f, *args, **kwargs)

        guarded.__doc__ = save.__doc__
        torch.save = guarded

    def _look(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            if isinstance(args[2], int) and args[2] & _WRITING:
                self._own(args[0])
        elif event in ("os.truncate", "os.chmod", "os.utime", "sqlite3.connect"):
            self._own(args[0])

    def _own(self, path: object) -> None:
        if not isinstance(path, (str, bytes, os.PathLike)):
            return
        name = os.fsdecode(path)
        place = os.path.join(os.path.realpath(os.path.dirname(name) or "."), os.path.basename(name))
        if place not in self._linked:
            return
        # First out of the set: the copy opens files too.
        self._linked.discard(place)
        with contextlib.suppress(OSError):
            target = os.path.realpath(place)
            if os.path.islink(place):
                shutil.copy2(target, f"{place}.everstep-copy")
                os.replace(f"{place}.everstep-copy", place)
