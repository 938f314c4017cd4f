"""What stands in the frames of `reentrant` generators where the interpreter would keep something on its stack.

In ordinary life a holder passes everything on. A generator that is entered by a relaunch gets a holder that gives a
stand-in once; what it has to hold is written into it when the objects of the script are restored.
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

import torch
from torch.utils.data import DataLoader

ENTERED = "_everstep_with_"
"""How the names of variables begin that hold a manager."""


class Held:
    """The iterator of a ``for`` loop.

    Attributes:
        inner: the iterator itself.
        source: the loader that it goes over, which nobody else may keep; None for anything else.
    """

    __slots__ = ("inner", "source")

    def __init__(self, inner: Any, source: Any = None) -> None:
        self.inner = inner
        self.source = source

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self.inner)


class Lines:
    """The lines of a text file, as its own iterator gives them; but that one does not tell where in the file it is."""

    __slots__ = ("file",)

    def __init__(self, file: io.TextIOWrapper) -> None:
        self.file = file

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self.file.readline()
        if not line:
            raise StopIteration
        return line


class Delegate(Held):
    """What ``yield from`` delegates to: values and exceptions that are sent in are passed on where it takes them."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class Manager(Held):
    """The manager of a ``with``."""

    __slots__ = ()

    def __enter__(self) -> Any:
        return type(self.inner).__enter__(self.inner)

    def __exit__(self, *how: Any) -> Any:
        return type(self.inner).__exit__(self.inner, *how)


class Entered:
    """What a hidden variable of a function that is no generator holds for a ``with``, see `withs`.

    Attributes:
        manager: what was entered.
        is_own: it is of a class, or made by a generator function, of the script's own, and so part of a save.
        restored: what a relaunch takes it for.
    """

    __slots__ = ("is_own", "manager", "restored")

    def __init__(self, manager: Any, *, is_own: bool) -> None:
        self.manager = manager
        self.is_own = is_own
        self.restored: Any = None


class _StandIn:
    """A manager that does nothing."""

    def __init__(self, entered: Any) -> None:
        self._entered = entered

    def __enter__(self) -> Any:
        return self._entered

    def __exit__(self, *how: object) -> None:
        """Nothing."""


class Entrances:
    """What a rewritten module asks for in its generators.

    Attributes:
        entering: number of the ``yield`` at which the generator that starts now is entered; 0: it starts as ever.
    """

    __slots__ = ()
    entering: ClassVar[int] = 0

    def held(self, iterable: Iterable[Any]) -> Iterator[Any]:
        """What a ``for`` in a generator goes over instead of ``iterable``."""
        if torch.compiler.is_compiling():
            return iter(iterable)
        if type(iterable) is io.TextIOWrapper:
            return Held(Lines(iterable))
        return Held(iter(iterable), iterable if isinstance(iterable, DataLoader) else None)

    def delegated(self, iterable: Iterable[Any]) -> Iterable[Any]:
        """What a ``yield from`` delegates to instead of ``iterable``."""
        if torch.compiler.is_compiling():
            return iterable
        return Delegate(iter(iterable), iterable if isinstance(iterable, DataLoader) else None)

    def managed(self, manager: Any) -> Any:
        """What a ``with`` in a generator enters instead of ``manager``."""
        if torch.compiler.is_compiling() or not hasattr(type(manager), "__enter__"):
            return manager
        return Manager(manager)

    def entered(self, manager: Any) -> Entered:
        """What holds a manager that a ``with`` is about to enter."""
        if torch.compiler.is_compiling():
            return Entered(manager, is_own=False)
        seen = vars(manager)["thing"] if type(manager) is contextlib.closing else manager
        if type(manager) is contextlib._GeneratorContextManager:
            names = getattr(manager.func, "__globals__", {})
        else:
            names = vars(sys.modules.get(type(seen).__module__, contextlib))
        return Entered(manager, is_own="__everstep__" in names)

    def holding(self, stand_in: Any) -> Held:
        """As `held` where the generator is entered."""
        return Held(iter((stand_in,)))

    def delegating(self, stand_in: Any) -> Delegate:
        """As `delegated` where the generator is entered."""
        return Delegate(iter((stand_in,)))

    def managing(self, stand_in: Any) -> Manager:
        """As `managed` where the generator is entered."""
        return Manager(_StandIn(stand_in))
