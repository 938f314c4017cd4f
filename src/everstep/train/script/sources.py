"""The user's own modules: found by where their files lie, rewritten when they are imported, remembered by digest."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import site
import sys
import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from everstep.train.script.rewrite import MARKER, Rewritten, rewrite


@dataclass(frozen=True)
class Source:
    """A user module that was loaded: its name, its file as found, the digest of what was compiled."""

    module: str
    path: str
    digest: str


class Sources:
    """Loads user modules so that their loops report.

    Args:
        roots: folders below which a file is the user's.
        marker: makes what stands under `rewrite.MARKER` in a module, from what was rewritten.
        loaded: told of each module before it runs; may refuse it.
    """

    def __init__(
        self,
        roots: Sequence[Path],
        marker: Callable[[Rewritten], Any],
        loaded: Callable[[Source], None],
    ) -> None:
        self._roots = tuple(os.path.realpath(root) + os.sep for root in roots)
        self._foreign = _foreign_roots()
        self._marker = marker
        self._loaded = loaded
        self.sources: dict[str, Source] = {}
        self.rewritten: dict[str, Rewritten] = {}
        self._modules: dict[str, ModuleType] = {}
        self._mine: dict[str, bool] = {}

    def install(self) -> None:
        """See every import from now on."""
        sys.meta_path.insert(0, _Finder(self))

    def is_mine(self, filename: str) -> bool:
        """True for a file that is the user's: below a root, and not below an installation of Python."""
        known = self._mine.get(filename)
        if known is None:
            path = os.path.realpath(filename)
            foreign = path.startswith(self._foreign) or f"{os.sep}site-packages{os.sep}" in path
            known = path.startswith(self._roots) and not foreign
            self._mine[filename] = known
        return known

    def has(self, module: str) -> bool:
        """True for the name of a user module that is loaded."""
        return module in self._modules

    def modules(self) -> dict[str, ModuleType]:
        """The user modules that are loaded, by name, in the order in which they were loaded."""
        return dict(self._modules)

    def compile(self, path: str, module: str) -> CodeType:
        """The rewritten code of a file.

        Raises:
            OSError: the file cannot be read.
            SyntaxError: as the compiler would.
        """
        rewritten = rewrite(Path(path).read_bytes(), path, module)
        self._loaded(Source(module, os.path.realpath(path), rewritten.digest))
        self.sources[module] = Source(module, os.path.realpath(path), rewritten.digest)
        self.rewritten[module] = rewritten
        return rewritten.code

    def prepare(self, module: ModuleType, name: str) -> None:
        """Give a compiled module what its loops report to."""
        self._modules[name] = module
        vars(module)[MARKER] = self._marker(self.rewritten[name])


class _Finder(importlib.abc.MetaPathFinder):
    """Finds what `importlib` would find, and loads user files with `_Loader`."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        plain = spec is not None and type(spec.loader) is importlib.machinery.SourceFileLoader
        if spec is None or not plain or spec.origin is None or not self._sources.is_mine(spec.origin):
            return None
        spec.loader = _Loader(fullname, spec.origin, self._sources)
        return spec


class _Loader(importlib.machinery.SourceFileLoader):
    """Loads a user module from its source, never from a cached ``.pyc``."""

    def __init__(self, name: str, path: str, sources: Sources) -> None:
        super().__init__(name, path)
        self._sources = sources

    def get_code(self, fullname: str) -> CodeType:
        return self._sources.compile(self.path, fullname)

    def exec_module(self, module: ModuleType) -> None:
        code = self.get_code(module.__name__)
        self._sources.prepare(module, module.__name__)
        exec(code, vars(module))


def package_folders(module: str) -> list[Path]:
    """Where the top-level package of a module lies (a namespace package in several places), or the module's own folder.

    Empty if there is no such module; nothing is imported.
    """
    spec = importlib.util.find_spec(module.partition(".")[0])
    if spec is None:
        return []
    if spec.submodule_search_locations is not None:
        return [Path(folder).resolve() for folder in spec.submodule_search_locations]
    return [] if spec.origin is None else [Path(spec.origin).resolve().parent]


def _foreign_roots() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    folders = {paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders |= {*getattr(site, "getsitepackages", list)(), site.getusersitepackages()}
    # This package itself may lie below the working folder of somebody who works on it.
    folders.add(str(Path(__file__).resolve().parents[2]))
    return tuple(os.path.realpath(folder) + os.sep for folder in sorted(folders))
