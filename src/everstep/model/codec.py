"""Frozen dataclasses to JSON-ready dicts and back, by their type annotations.

Only what the vocabulary uses is understood: dataclasses, enums, str/int/float/bool/None, ``X | None``,
``tuple[X, ...]``, ``tuple[X, Y]``, ``dict[str, X]`` and NewTypes of str. Fields equal to their default are
written all the same, so that a reader never depends on the defaults of the day; unknown keys are ignored, missing
ones take the default (old journals).
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Hashable
from enum import Enum
from typing import Any, TypeVar, cast

Decode = Callable[[Any], Any]
T = TypeVar("T")


def to_dict(value: Any) -> Any:
    """JSON-ready form of a value of the vocabulary."""
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, tuple | list):
        return [to_dict(v) for v in value]
    if isinstance(value, dict):
        return {str(k): to_dict(v) for k, v in value.items()}
    if dataclasses.is_dataclass(value):
        return {name: to_dict(getattr(value, name)) for name in _field_names(cast(Hashable, type(value)))}
    raise TypeError(f"{type(value).__name__} is not part of the vocabulary")


def from_dict(cls: type[T], data: Any) -> T:
    """The value of type ``cls`` that ``to_dict`` wrote.

    Raises:
        TypeError, ValueError, KeyError: the data does not fit the type.
    """
    return cast(T, _decoder(cast(Hashable, cls))(data))


@functools.cache
def _field_names(cls: Hashable) -> tuple[str, ...]:
    return tuple(f.name for f in dataclasses.fields(cast("type[Any]", cls)))


@functools.cache
def _decoder(hint: Hashable) -> Decode:
    if isinstance(hint, typing.NewType):
        return _decoder(hint.__supertype__)
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return _optional(hint)
    if origin is tuple:
        return _tuple(typing.get_args(hint))
    if origin is dict:
        value = _decoder(typing.get_args(hint)[1])
        return lambda data: {k: value(v) for k, v in data.items()}
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint
    if dataclasses.is_dataclass(hint):
        return _dataclass(cast("type[Any]", hint))
    if hint is float:
        return float
    return lambda data: data


def _optional(hint: Any) -> Decode:
    inner = [a for a in typing.get_args(hint) if a is not type(None)]
    if len(inner) != 1:
        raise TypeError(f"cannot decode {hint}")
    decode = _decoder(inner[0])
    return lambda data: None if data is None else decode(data)


def _tuple(args: tuple[Any, ...]) -> Decode:
    if len(args) == 2 and args[1] is Ellipsis:
        item = _decoder(args[0])
        return lambda data: tuple(item(v) for v in data)
    items = [_decoder(a) for a in args]
    return lambda data: tuple(decode(v) for decode, v in zip(items, data, strict=True))


def _dataclass(cls: type[Any]) -> Decode:
    hints = typing.get_type_hints(cls)
    # Decoders of fields are looked up lazily: the vocabulary may be recursive.
    fields = [(f.name, hints[f.name]) for f in dataclasses.fields(cls) if f.init]

    def decode(data: Any) -> Any:
        return cls(**{name: _decoder(hint)(data[name]) for name, hint in fields if name in data})

    return decode
