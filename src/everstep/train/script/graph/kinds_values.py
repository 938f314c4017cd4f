"""Objects of the standard library that do not pickle and have no state of their own beside what they were made from.

Each is kept where the relaunch made it from the very same parts (a ``csv.writer`` on the file that stays in place), and
made anew otherwise.
"""

from __future__ import annotations

import csv
import functools
import gc
import re
import struct
import types
from collections.abc import Callable, Sequence
from typing import Any

from everstep.train.script.graph import kinds
from everstep.train.script.graph.kinds import Filling, Hopeless, Kind, Saving, Taken

_Apart = Callable[[Any], Taken]
_Together = Callable[..., Any]
_DIALECT = (
    "delimiter",
    "doublequote",
    "escapechar",
    "lineterminator",
    "quotechar",
    "quoting",
    "skipinitialspace",
    "strict",
)


class _ValueKind(Kind):
    """Plain data and parts say all; `apart` gives both, `together` makes an equal one of them."""

    whole = True
    calls = True

    def __init__(self, name: str, apart: _Apart, together: _Together) -> None:
        self.name = name  # type: ignore[misc]
        self._apart = apart
        self._together = together

    def take(self, thing: Any, saving: Saving) -> Taken:
        return self._apart(thing)

    def align(self, extra: Any, refs: list[Any], fresh: Any) -> Sequence[object] | None:
        try:
            plain, parts = self._apart(fresh)
        except Hopeless:
            return None
        return parts if plain == extra and len(parts) == len(refs) else None

    def make(self, extra: Any, refs: list[Any], filling: Filling) -> Any:
        return self._together(extra, *(filling.value(code) for code in refs))


def _dialect(dialect: Any) -> dict[str, Any]:
    return {name: getattr(dialect, name) for name in _DIALECT}


def _writer(writer: Any) -> Taken:
    """A ``csv.writer`` keeps the ``write`` of its file, and nothing between two rows."""
    for part in gc.get_referents(writer):
        owner = getattr(part, "__self__", None)
        if owner is not None and getattr(part, "__name__", "") == "write":
            return _dialect(writer.dialect), [owner]
    raise Hopeless("it is a csv.writer on something that has no method `write`; write rows into a file")


def _view(view: Any) -> Taken:
    [mapping] = gc.get_referents(view)
    if "__doc__" in mapping:
        raise Hopeless("it is the namespace of a class, which is not to be written; keep the class")
    return None, [mapping]


def _compared(key: Any) -> Taken:
    """What `functools.cmp_to_key` gives: the function, and the object if there is one already."""
    with_object = hasattr(key, "obj")
    held = [key.obj] if with_object else []
    functions = [part for part in gc.get_referents(key) if not any(part is one for one in (type(key), *held))]
    if len(functions) != 1:
        raise Hopeless("it is a key of functools.cmp_to_key that compares its own function")
    return with_object, [*functions, *held]


def _key(with_object: bool, compare: Any, *held: Any) -> Any:
    key = functools.cmp_to_key(compare)
    return key(*held) if with_object else key


def _found(match: Any) -> Taken:
    return (match.pos, match.endpos, match.regs), [match.re, match.string]


def _match(extra: tuple[int, int, Any], pattern: re.Pattern[Any], text: Any) -> Any:
    """The match that the same pattern finds again in the same text."""
    pos, endpos, regs = extra
    for match in (pattern.fullmatch(text, pos, endpos), *pattern.finditer(text, pos, endpos)):
        if match is not None and match.regs == regs:
            return match
    raise Hopeless("the pattern does not find it again; keep match.group() instead of the match")


def install() -> None:
    """Make these kinds known."""
    dialect: Any = type(csv.get_dialect("excel"))
    writer: Any = type(csv.writer(_NoFile()))
    made: list[tuple[Any, _Apart, _Together]] = [
        (writer, _writer, lambda form, file: csv.writer(file, **form)),
        (dialect, lambda one: (_dialect(one), ()), lambda form: dialect(None, **form)),
        (struct.Struct, lambda one: (one.format, ()), struct.Struct),
        (types.MappingProxyType, _view, lambda _, of: types.MappingProxyType(of)),
        (type(functools.cmp_to_key(_NoFile.write)), _compared, _key),
        (re.Match, _found, _match),
    ]
    for cls, apart, together in made:
        kinds.add(_ValueKind(f"{cls.__module__}.{cls.__qualname__}", apart, together), kinds.exactly(cls))


class _NoFile:
    def write(self, text: str) -> int:
        """Nothing is written."""
        return len(text)
