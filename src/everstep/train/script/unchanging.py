"""Whether what a dotted name stands for in a running function can have changed. Runs no code of the user's."""

from __future__ import annotations

import argparse
import builtins
import datetime
import decimal
import enum
import fractions
import inspect
import pathlib
import sys
import types
from collections.abc import Container
from types import FrameType
from typing import Any

import torch

from everstep.train.script.stores import ANYTHING

_ATOMS = (
    bool, int, float, complex, str, bytes, types.NoneType, range, torch.device, torch.dtype, torch.Size,
    datetime.date, datetime.timedelta, decimal.Decimal, fractions.Fraction, pathlib.PurePath,
)  # fmt: skip
_CONSTANT_MODULES = frozenset(["math", "numpy", "os", "torch"])
_PLAIN_OWNERS = (argparse.Namespace, types.SimpleNamespace)
_PLAIN_BASES = frozenset(["abc", "builtins", "typing"])
_DEEPEST = 5
MISSING = object()


def root(frame: FrameType, name: str) -> Any:
    """What a name stands for; `MISSING` if for nothing."""
    for space in (frame.f_locals, frame.f_globals, vars(builtins)):
        if name in space:
            return space[name]
    return MISSING


def never_changes(value: Any, depth: int = 0) -> bool:
    """Whether it is of a kind that nobody can change: numbers, text, tuples of such, and the like."""
    kind = type(value)
    if kind in _ATOMS or (isinstance(value, pathlib.PurePath) and kind.__module__.partition(".")[0] == "pathlib"):
        return True
    if kind in (tuple, frozenset):
        return depth < _DEEPEST and all(never_changes(part, depth + 1) for part in value)
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        return _is_plain(kind, tuple) and all(never_changes(part, depth + 1) for part in tuple.__iter__(value))
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.generic) and not isinstance(value, numpy.void)


def looked_into(frame: FrameType, path: tuple[str, ...], rebound: Container[str]) -> bool:
    """Whether the text, or the value, of what a dotted name stands for is what it was.

    Args:
        rebound: names of variables of modules that are given more than one value.
    """
    value = _followed(frame, path, rebound, strict=True)
    return value is not MISSING and never_changes(value)


def passed_on(frame: FrameType, path: tuple[str, ...], rebound: Container[str]) -> bool:
    """Whether a dotted name stands for the object that it stood for."""
    value = _followed(frame, path, rebound, strict=False)
    if value is MISSING or len(path) == 1:
        return value is not MISSING
    return not never_changes(value) or looked_into(frame, path, rebound)


def _followed(frame: FrameType, path: tuple[str, ...], rebound: Container[str], *, strict: bool) -> Any:
    name, *attributes = path
    value = root(frame, name)
    if value is not MISSING and name not in frame.f_locals and ANYTHING in rebound and name in frame.f_globals:
        return MISSING
    for attribute in attributes:
        if value is MISSING:
            break
        value = _attribute(value, attribute, rebound, strict=strict)
    return value


def _attribute(owner: Any, name: str, rebound: Container[str], *, strict: bool) -> Any:
    if isinstance(owner, types.ModuleType):
        is_mine = "__everstep__" in vars(owner)
        if name in rebound or (is_mine and ANYTHING in rebound):
            return MISSING
        known = is_mine or not strict or owner.__name__.partition(".")[0] in _CONSTANT_MODULES
        return vars(owner).get(name, MISSING) if known else MISSING
    kind = type(owner)
    if isinstance(owner, enum.Enum) and name in ("name", "value"):
        return vars(owner).get(f"_{name}_", MISSING)
    if isinstance(owner, type):
        found = inspect.getattr_static(owner, name, MISSING)
        return MISSING if strict and not _is_mine(owner) else found
    plain = not strict or isinstance(owner, tuple) or _is_plain(kind, *_PLAIN_OWNERS)
    if not plain or inspect.getattr_static(kind, "__getattribute__") is not object.__dict__["__getattribute__"]:
        return MISSING
    of_class = inspect.getattr_static(kind, name, MISSING)
    if isinstance(of_class, types.MemberDescriptorType) or type(of_class).__name__ == "_tuplegetter":
        return getattr(owner, name, MISSING)  # runs no code of the user's
    if hasattr(type(of_class), "__set__"):
        return MISSING  # a property
    own = getattr(owner, "__dict__", None)
    if isinstance(own, dict):
        if name in own:
            return own[name]
        if isinstance(owner, torch.nn.Module) and not strict and name in own.get("_modules", ()):
            return own["_modules"][name]
    return MISSING if hasattr(type(of_class), "__get__") else of_class


def _is_mine(kind: type) -> bool:
    return "__everstep__" in vars(sys.modules.get(kind.__module__, builtins))


def _is_plain(kind: type, *more: type) -> bool:
    """Whether no library assigns to its attributes."""
    return all(_is_mine(c) or c in more or c.__module__ in _PLAIN_BASES for c in kind.__mro__)
