"""Calls around the first import of a module, without importing it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

Call = Callable[[], object]


def around_import(name: str, before: Call, after: Call) -> None:
    """Have ``before`` and ``after`` called when ``name`` is imported for the first time; at once if it was."""
    if name in sys.modules:
        before()
        after()
    else:
        sys.meta_path.insert(0, _Around(name, before, after))


class _Around(MetaPathFinder):
    """Finds one module as the others do, and lets its loader call."""

    def __init__(self, name: str, before: Call, after: Call) -> None:
        self._name = name
        self._before = before
        self._after = after
        self._looking = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of the others, with a loader that calls."""
        if fullname != self._name or self._looking:
            return None
        self._looking = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._looking = False
        if spec is not None and spec.loader is not None:
            self._watch(spec.loader)
        return spec

    def _watch(self, loader: object) -> None:
        execute = loader.exec_module  # type: ignore[attr-defined]

        def exec_module(module: ModuleType) -> None:
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            self._before()
            execute(module)
            self._after()

        # On this one loader alone, so that its type and all else stay what they are.
        loader.exec_module = exec_module  # type: ignore[attr-defined]
