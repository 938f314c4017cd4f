"""States as bytes, quickly and small. Only code of the same shape reads them: ``shape_stamp`` tells which it was."""

from __future__ import annotations

import functools
import hashlib
import io
import pickle
import typing
import zlib
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from operator import attrgetter
from typing import Any

from everstep.brain.pools import PoolBook
from everstep.model.job import JobState

_LEVEL = 1


def pack(state: JobState) -> bytes:
    """A job's state."""
    held = io.BytesIO()
    pickler = pickle.Pickler(held, protocol=5)
    # What dataclasses with slots do by themselves looks up every field by name, both ways: ten times slower.
    pickler.dispatch_table = _reducers()
    pickler.dump(state)
    return zlib.compress(held.getbuffer(), _LEVEL)


def unpack(data: bytes) -> JobState:
    """What ``pack`` was given."""
    state: JobState = pickle.loads(zlib.decompress(data))
    return state


@functools.cache
def shape_stamp() -> str:
    """Names the shape of ``JobState`` and all it holds: a snapshot of another shape is thrown away."""
    text = "\n".join(sorted(_shapes().values()))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@functools.cache
def _shapes() -> dict[type, str]:
    seen: dict[type, str] = {}
    _describe(JobState, seen)
    _describe(PoolBook, seen)
    return seen


def _describe(hint: object, seen: dict[type, str]) -> None:
    for part in typing.get_args(hint):
        _describe(part, seen)
    if not isinstance(hint, type) or hint in seen or not is_dataclass(hint):
        return
    seen[hint] = f"{hint.__qualname__}: {[(f.name, str(f.type)) for f in fields(hint)]}"
    for kind in typing.get_type_hints(hint).values():
        _describe(kind, seen)


@functools.cache
def _reducers() -> dict[type, Callable[[Any], tuple[Any, ...]]]:
    return {cls: _reducer(cls) for cls in _shapes()}


def _reducer(cls: type) -> Callable[[Any], tuple[Any, ...]]:
    names = [f.name for f in fields(cls)]
    values = attrgetter(*names)
    if len(names) == 1:
        return lambda value: (cls, (values(value),))
    return lambda value: (cls, values(value))
