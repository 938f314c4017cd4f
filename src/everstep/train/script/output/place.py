"""Where a launch runs. Its folders have other names on another machine: paths below them are kept relative to them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from typing import Any


class Place:
    """The folders of one launch, and which machine's they are.

    Args:
        roots: folders by a name that is the same in every launch, such as ``work`` for the one in which the run began.
            Of two that are the same folder, the first counts.
    """

    def __init__(self, roots: Mapping[str, str | os.PathLike[str]]) -> None:
        found: dict[str, str] = {}
        for name, folder in roots.items():
            real = os.path.realpath(folder)
            if real != os.sep and real not in found.values():
                found[name] = real
        self._roots = dict(sorted(found.items(), key=lambda root: -len(root[1])))
        self._identity = [os.uname().nodename, *map(_identity, self._roots.values())]

    @property
    def key(self) -> str:
        """Stands for these folders of this machine in names of files."""
        return hashlib.sha256("/".join(self._identity).encode()).hexdigest()[:8]

    def described(self) -> dict[str, Any]:
        """For `is_here` and `mover` of a later launch. Plain data that goes through JSON unchanged."""
        return {"roots": dict(self._roots), "identity": list(self._identity)}

    def is_here(self, described: Mapping[str, Any] | None) -> bool:
        """True if that launch ran in these very folders of this machine. None, of an older save: yes."""
        return described is None or described["identity"] == self._identity

    def named(self, path: str) -> str:
        """A real path, as ``ROOT:RELATIVE`` where it lies below a root."""
        for name, folder in self._roots.items():
            if path == folder or path.startswith(folder + os.sep):
                return f"{name}:{path[len(folder) + 1 :]}"
        return path

    def located(self, name: str) -> str:
        """The path here of what `named` gave anywhere."""
        root, colon, relative = name.partition(":")
        if name.startswith(os.sep) or not colon or root not in self._roots:
            return name
        return os.path.join(self._roots[root], relative) if relative else self._roots[root]

    def mover(self, described: Mapping[str, Any] | None) -> Callable[[str], str] | None:
        """What gives for a path of that launch the one here; None if all of them are the same."""
        before: Mapping[str, str] = {} if described is None else described["roots"]
        pairs = [(old, self._roots[name]) for name, old in before.items() if name in self._roots]
        if all(old == new for old, new in pairs):
            return None
        pairs.sort(key=lambda pair: -len(pair[0]))

        def move(path: str) -> str:
            for old, new in pairs:
                if path == old or path.startswith(old + os.sep):
                    return new + path[len(old) :]
            return path

        return move


def _identity(folder: str) -> str:
    found = os.stat(folder)
    return f"{found.st_dev}:{found.st_ino}"
