"""Objects in general: by their attributes, in place; or the way they pickle; or a problem."""

from __future__ import annotations

import copyreg
import itertools
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from everstep.train.script.graph import kinds
from everstep.train.script.graph.kinds import Filling, Hopeless, Kind, Saving, Taken
from everstep.train.script.graph.kinds_containers import padded
from everstep.train.script.graph.records import MISSING
from everstep.train.script.graph.state import State, has_plain_state, state_of

_PROTOCOL = 4
_WRAPPERS = frozenset([enumerate, zip, itertools.islice])
"""What a loop may go over that knows its place by itself."""


class _ObjectKind(Kind):
    """Objects whose state is their attributes, in place: class first, then the attributes."""

    name = "object"

    def take(self, thing: Any, saving: Saving) -> Taken:
        state, values = state_of(thing)
        return state, [type(thing), *values]

    def align(self, extra: Any, refs: list[Any], fresh: Any) -> Sequence[object] | None:
        state: State = extra
        return [type(fresh), *state.values(fresh)]

    def first(self, extra: Any, refs: list[Any]) -> list[Any]:
        return refs[:1]

    def make(self, extra: Any, refs: list[Any], filling: Filling) -> Any:
        return object.__new__(filling.value(refs[0]))

    def fill(self, thing: Any, extra: Any, refs: list[Any], filling: Filling) -> None:
        state: State = extra
        state.write(thing, [filling.value(code) for code in refs[1:]])

    def step(self, extra: Any, refs: list[Any], position: int) -> str:
        state: State = extra
        return state.step(position - 1) if position else ".__class__"


class _SentinelKind(Kind):
    """Bare objects, which are only compared by `is`: a module's own by its name there."""

    name = "sentinel"

    def take(self, thing: Any, saving: Saving) -> Taken:
        for module in list(sys.modules.values()):
            for name, value in list(getattr(module, "__dict__", {}).items()):
                if value is thing:
                    return (module.__name__, name), ()
        return None, ()

    def find(self, extra: Any) -> object:
        return MISSING if extra is None else getattr(sys.modules.get(extra[0]), extra[1], MISSING)

    def align(self, extra: Any, refs: list[Any], fresh: Any) -> Sequence[object] | None:
        return ()

    def make(self, extra: Any, refs: list[Any], filling: Filling) -> Any:
        return object()


class _ReducedKind(Kind):
    """Objects that say themselves how they are made (`__reduce_ex__`): function, arguments, state, items.

    Unlike a pickle inside a pickle, their parts are part of the graph, so that aliasing stays.
    """

    name = "reduced"
    whole = True
    calls = True

    def take(self, thing: Any, saving: Saving | None) -> Taken:
        if type(thing) in _WRAPPERS and saving is not None and saving.settings.in_loop(thing):
            raise Hopeless("a loop that is going on advances it by itself")
        reduced = _reduction(thing)
        if isinstance(reduced, str):
            return ("name", type(thing).__module__, reduced), ()
        function, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
        items, pairs = list(items or ()), list(pairs or ())
        parts = [function, *arguments, state, *items, *(part for pair in pairs for part in pair)]
        return ("call", len(arguments), len(items)), parts

    def find(self, extra: Any) -> object:
        from everstep.train.script.graph.kinds_code import named

        return named(extra[1], extra[2]) if extra[0] == "name" else MISSING

    def align(self, extra: Any, refs: list[Any], fresh: Any) -> Sequence[object] | None:
        try:
            extra_fresh, parts = self.take(fresh, None)
        except Hopeless:
            return None
        return padded(parts, len(refs)) if extra_fresh == extra else None

    def first(self, extra: Any, refs: list[Any]) -> list[Any]:
        return refs[: 1 + extra[1]] if extra[0] == "call" else []

    def make(self, extra: Any, refs: list[Any], filling: Filling) -> Any:
        if extra[0] == "name":
            raise Hopeless(f"there is no {extra[2]} in {extra[1]}")
        function, *arguments = (filling.value(code) for code in refs[: 1 + extra[1]])
        return function(*arguments)

    def fill(self, thing: Any, extra: Any, refs: list[Any], filling: Filling) -> None:
        if extra[0] == "name":
            return
        state, *rest = (filling.value(code) for code in refs[1 + extra[1] :])
        items, pairs = rest[: extra[2]], rest[extra[2] :]
        if items:
            thing.extend(items)
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            thing[key] = value
        if state is not None:
            _set_state(thing, state)

    def step(self, extra: Any, refs: list[Any], position: int) -> str:
        return f".__reduce__()[{position}]"


def _reduction(thing: Any) -> Any:
    try:
        by_table = copyreg.dispatch_table.get(type(thing))
        with _iterators_pickle():
            return by_table(thing) if by_table is not None else thing.__reduce_ex__(_PROTOCOL)
    except Exception as error:
        raise Hopeless(
            f"it does not pickle ({_first_line(error)}); make it anew in the loop, or keep it out of it"
        ) from None


@contextmanager
def _iterators_pickle() -> Iterator[None]:
    """Copying iterators of itertools is deprecated from 3.12 on; from 3.14 on it raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def _set_state(thing: Any, state: Any) -> None:
    # The rules of pickle's BUILD.
    setter = getattr(thing, "__setstate__", None)
    if setter is not None:
        with _iterators_pickle():
            setter(state)
        return
    slots = None
    if isinstance(state, tuple) and len(state) == 2:
        state, slots = state
    if state:
        thing.__dict__.update(state)
    for name, value in (slots or {}).items():
        setattr(thing, name, value)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _raw(cls: Any) -> bool:
    # A class without attributes of its own beside its slots that says how it pickles means it (paths, dates).
    if not has_plain_state(cls):
        return False
    ways = (cls.__reduce__ is object.__reduce__, cls.__reduce_ex__ is object.__reduce_ex__)
    return cls.__dictoffset__ != 0 or all(ways)


def install() -> None:
    """Make these kinds known, as the last ones."""
    kinds.add(_SentinelKind(), kinds.exactly(object))
    kinds.add(_ObjectKind(), _raw)
    kinds.add(_ReducedKind(), lambda cls: True)
