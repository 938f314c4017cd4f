"""Lists, dicts, sets, tuples and what is derived from them; cells; weak references."""

from __future__ import annotations

import array
import sys
import types
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Sequence
from typing import Any, cast

from everstep.train.script import frames
from everstep.train.script.graph import kinds
from everstep.train.script.graph.kinds import Filling, Hopeless, Kind, Saving, Taken
from everstep.train.script.graph.memory import Place
from everstep.train.script.graph.records import INLINE, MISSING
from everstep.train.script.graph.sets import Table, fill_set, table_of
from everstep.train.script.graph.state import State, state_of


def padded(parts: Sequence[object], count: int) -> list[object]:
    """As many parts as the save has."""
    return [*parts[:count], *[MISSING] * (count - len(parts))]


class _ListKind(Kind):
    """Lists, in place."""

    name = "list"

    def take(self, thing: Any, saving: Saving) -> Taken:
        return None, list.copy(thing)

    def align(self, extra: Any, refs: list[Any], fresh: Any) -> Sequence[object] | None:
        return padded(list.copy(fresh), len(refs))

    def make(self, extra: Any, refs: list[Any], filling: Filling) -> Any:
        return []

    def fill(self, thing: Any, extra: Any, refs: list[Any], filling: Filling) -> None:
        list.__setitem__(thing, slice(None), [filling.value(code) for code in refs])

    def step(self, extra: Any, refs: list[Any], position: int) -> str:
        return f"[{position}]"


class _DequeKind(_ListKind):
    """Deques, in place when the maximal length is the same."""

    name = "deque"

    def take(self, thing: Any, saving: Saving) -> Taken:
        return thing.maxlen, list(deque.__iter__(thing))

    def align(self, extra: Any, refs: list[Any], fresh: Any) -> Sequence[object] | None:
        return padded(list(deque.__iter__(fresh)), len(refs)) if fresh.maxlen == extra else None

    def make(self, extra: Any, refs: list[Any], filling: Filling) -> Any:
        return deque(maxlen=extra)

    def fill(self, thing: Any, extra: Any, refs: list[Any], filling: Filling) -> None:
        deque.clear(thing)
        deque.extend(thing, [filling.value(code) for code in refs])


class _TupleKind(Kind):
    """Tuples."""

    name = "tuple"
    whole = True

    def take(self, thing: Any, saving: Saving) -> Taken:
        return None, tuple.__getitem__(thing, slice(None))

    def align(self, extra: Any, refs: list[Any], fresh: Any) -> Sequence[object] | None:
        return list(tuple.__iter__(fresh)) if len(fresh) == len(refs) else None

    def make(self, extra: Any, refs: list[Any], filling: Filling) -> Any:
        return tuple(filling.value(code) for code in refs)

    def step(self, extra: Any, refs: list[Any], position: int) -> str:
        return f"[{position}]"


class _DictKind(Kind):
    """Dicts, in place; the references are keys and values in turn."""

    name = "dict"
    base: type[dict[Any, Any]] = dict
    lead = 0

    def pick(self, thing: Any) -> Kind:
        return kinds.by_name("globals") if "__name__" in thing and _module_of(thing) is not None else self

    def take(self, thing: Any, saving: Saving) -> Taken:
        return None, [part for item in self.base.items(thing) for part in item]

    def align(self, extra: Any, refs: list[Any], fresh: Any) -> Sequence[object] | None:
        parts: list[object] = [MISSING] * len(refs)
        for position in range(self.lead, len(refs), 2):
            code = refs[position]
            if type(code) is int or (type(code) is tuple and len(code) > 1):
                continue
            parts[position + 1] = self.base.get(fresh, code[0] if type(code) is tuple else code, MISSING)
        return parts

    def make(self, extra: Any, refs: list[Any], filling: Filling) -> Any:
        return self.base()

    def fill(self, thing: Any, extra: Any, refs: list[Any], filling: Filling) -> None:
        values = [filling.value(code) for code in refs[self.lead :]]
        self.base.clear(thing)
        for key, value in zip(values[::2], values[1::2], strict=True):
            self.base.__setitem__(thing, key, value)

    def step(self, extra: Any, refs: list[Any], position: int) -> str:
        at = (position - self.lead) // 2 * 2 + self.lead
        key = refs[at]
        text = f"key {at // 2}" if type(key) is int else repr(key[0] if type(key) is tuple and len(key) == 1 else key)
        return f"[{text}]" if position != at else f".keys()[{at // 2}]"


class _OrderedDictKind(_DictKind):
    """Ordered dicts keep an order of their own."""

    name = "OrderedDict"
    base = OrderedDict

    def pick(self, thing: Any) -> Kind:
        return self


class _DefaultDictKind(_DictKind):
    """Default dicts: the factory comes first."""

    name = "defaultdict"
    base = defaultdict
    lead = 1

    def pick(self, thing: Any) -> Kind:
        return self

    def take(self, thing: Any, saving: Saving) -> Taken:
        return None, [thing.default_factory, *super().take(thing, saving)[1]]

    def align(self, extra: Any, refs: list[Any], fresh: Any) -> Sequence[object] | None:
        parts = list(super().align(extra, refs, fresh) or ())
        parts[0] = fresh.default_factory
        return parts

    def fill(self, thing: Any, extra: Any, refs: list[Any], filling: Filling) -> None:
        thing.default_factory = filling.value(refs[0])
        super().fill(thing, extra, refs, filling)

    def step(self, extra: Any, refs: list[Any], position: int) -> str:
        return ".default_factory" if position == 0 else super().step(extra, refs, position)


class _GlobalsKind(Kind):
    """The dict of a module's globals: it is the module's, whose names are a space of their own."""

    name = "globals"

    def take(self, thing: Any, saving: Saving) -> Taken:
        return thing["__name__"], ()

    def find(self, extra: Any) -> object:
        module = sys.modules.get(extra)
        return MISSING if module is None else module.__dict__


class _SetKind(Kind):
    """Sets, in place; they are iterated in the same order where that order is reproducible at all."""

    name = "set"

    def take(self, thing: Any, saving: Saving) -> Taken:
        return table_of(thing), list(set.__iter__(thing))

    def shown(self, extra: Any) -> tuple[Any, Place | None]:
        return None, None

    def align(self, extra: Any, refs: list[Any], fresh: Any) -> Sequence[object] | None:
        return [MISSING] * len(refs)

    def make(self, extra: Any, refs: list[Any], filling: Filling) -> Any:
        return set()

    def fill(self, thing: Any, extra: Any, refs: list[Any], filling: Filling) -> None:
        # Saves of earlier versions have the size only.
        table = extra if isinstance(extra, Table) else Table(extra)
        if not fill_set(thing, [filling.value(code) for code in refs], table):
            raise Hopeless(
                "this set of numbers cannot be brought into the order it is iterated in; use a list or a dict"
            )

    def step(self, extra: Any, refs: list[Any], position: int) -> str:
        return "{...}"


class _FrozenSetKind(Kind):
    """Frozen sets."""

    name = "frozenset"
    whole = True

    def take(self, thing: Any, saving: Saving) -> Taken:
        return None, list(frozenset.__iter__(thing))

    def align(self, extra: Any, refs: list[Any], fresh: Any) -> Sequence[object] | None:
        return [MISSING] * len(refs)

    def make(self, extra: Any, refs: list[Any], filling: Filling) -> Any:
        return frozenset([filling.value(code) for code in refs])

    def step(self, extra: Any, refs: list[Any], position: int) -> str:
        return "{...}"


class _ByteArrayKind(Kind):
    """Byte arrays and arrays of the standard library, in place."""

    name = "bytearray"

    def take(self, thing: Any, saving: Saving) -> Taken:
        return (getattr(thing, "typecode", None), bytes(thing)), ()

    def align(self, extra: Any, refs: list[Any], fresh: Any) -> Sequence[object] | None:
        return () if getattr(fresh, "typecode", None) == extra[0] else None

    def make(self, extra: Any, refs: list[Any], filling: Filling) -> Any:
        return bytearray() if extra[0] is None else array.array(extra[0])

    def fill(self, thing: Any, extra: Any, refs: list[Any], filling: Filling) -> None:
        thing[:] = extra[1] if extra[0] is None else array.array(extra[0], extra[1])


class _DerivedKind(Kind):
    """A user's class derived from a container: class, attributes, then what the container has."""

    def __init__(self, base: Kind, maker: type) -> None:
        self._base = base
        self._maker = maker
        self.name = f"derived {base.name}"  # type: ignore[misc]
        self.whole = base.whole  # type: ignore[misc]

    def take(self, thing: Any, saving: Saving) -> Taken:
        state, values = state_of(thing)
        extra, parts = self._base.take(thing, saving)
        return (state, extra), [type(thing), *values, *parts]

    def align(self, extra: Any, refs: list[Any], fresh: Any) -> Sequence[object] | None:
        state: State = extra[0]
        parts = self._base.align(extra[1], refs[1 + len(state) :], fresh)
        return None if parts is None else [type(fresh), *state.values(fresh), *parts]

    def first(self, extra: Any, refs: list[Any]) -> list[Any]:
        return [refs[0], *refs[1 + len(extra[0]) :]] if self.whole else refs[:1]

    def make(self, extra: Any, refs: list[Any], filling: Filling) -> Any:
        cls = filling.value(refs[0])
        if self.whole:
            return cast(Any, self._maker).__new__(cls, self._base.make(extra[1], refs[1 + len(extra[0]) :], filling))
        made = cast(Any, self._maker).__new__(cls)
        if self._maker is deque:
            deque.__init__(made, (), extra[1])
        return made

    def fill(self, thing: Any, extra: Any, refs: list[Any], filling: Filling) -> None:
        state: State = extra[0]
        self._base.fill(thing, extra[1], refs[1 + len(state) :], filling)
        state.write(thing, [filling.value(code) for code in refs[1 : 1 + len(state)]])

    def step(self, extra: Any, refs: list[Any], position: int) -> str:
        state: State = extra[0]
        if position <= len(state):
            return ".__class__" if position == 0 else state.step(position - 1)
        return self._base.step(extra[1], refs[1 + len(state) :], position - 1 - len(state))


class _CellKind(Kind):
    """Cells of closures, in place.

    Those of a suspended generator's own variables come from that generator, which is made anew: plain data is the
    variable's name, None for all others; the last reference is the generator. See `own_cells`.
    """

    name = "cell"

    def take(self, thing: Any, saving: Saving) -> Taken:
        return None, _content(thing)

    def align(self, extra: Any, refs: list[Any], fresh: Any) -> Sequence[object] | None:
        content = _content(fresh)
        return padded(content, len(refs)) if extra is None else [*padded(content, len(refs) - 1), MISSING]

    def anew(self, extra: Any) -> bool:
        return extra is not None

    def first(self, extra: Any, refs: list[Any]) -> list[Any]:
        return [] if extra is None else refs[-1:]

    def make(self, extra: Any, refs: list[Any], filling: Filling) -> Any:
        return types.CellType() if extra is None else (frames.cells(filling.value(refs[-1])) or {})[extra]

    def fill(self, thing: Any, extra: Any, refs: list[Any], filling: Filling) -> None:
        refs = refs if extra is None else refs[:-1]
        if refs:
            thing.cell_contents = filling.value(refs[0])
        elif _content(thing):
            del thing.cell_contents

    def step(self, extra: Any, refs: list[Any], position: int) -> str:
        return ".cell_contents"


class _WeakRefKind(Kind):
    """Weak references: the referent, if it lives, and the callback."""

    name = "weakref"
    whole = True

    def take(self, thing: Any, saving: Saving) -> Taken:
        if type(thing) is not weakref.ref:
            raise Hopeless("it is a weak reference of a class of its own")
        return None, [thing(), thing.__callback__]

    def align(self, extra: Any, refs: list[Any], fresh: Any) -> Sequence[object] | None:
        return [fresh(), fresh.__callback__]

    def make(self, extra: Any, refs: list[Any], filling: Filling) -> Any:
        referent, callback = filling.value(refs[0]), filling.value(refs[1])
        if refs[0] is None:
            return weakref.ref(_Mortal())
        return weakref.ref(referent) if callback is None else weakref.ref(referent, callback)

    def step(self, extra: Any, refs: list[Any], position: int) -> str:
        return ("()", ".__callback__")[position]


class _WeakContainerKind(Kind):
    """Weak dicts and sets of the standard library, in place."""

    name = "weak container"

    def take(self, thing: Any, saving: Saving) -> Taken:
        if isinstance(thing, weakref.WeakSet):
            return "WeakSet", list(thing)
        return type(thing).__name__, [part for item in thing.items() for part in item]

    def align(self, extra: Any, refs: list[Any], fresh: Any) -> Sequence[object] | None:
        return [MISSING] * len(refs) if type(fresh).__name__ == extra else None

    def make(self, extra: Any, refs: list[Any], filling: Filling) -> Any:
        return getattr(weakref, extra)()

    def fill(self, thing: Any, extra: Any, refs: list[Any], filling: Filling) -> None:
        values = [filling.value(code) for code in refs]
        thing.clear()
        thing.update(values if extra == "WeakSet" else dict(zip(values[::2], values[1::2], strict=True)))

    def step(self, extra: Any, refs: list[Any], position: int) -> str:
        return f"<weak item {position}>"


class _Mortal:
    """Something that a dead weak reference once pointed to."""


def _content(cell: types.CellType) -> list[object]:
    try:
        return [cell.cell_contents]
    except ValueError:
        return []


def _module_of(names: dict[str, Any]) -> types.ModuleType | None:
    name = names["__name__"]
    module = sys.modules.get(name) if isinstance(name, str) else None
    return module if module is not None and getattr(module, "__dict__", None) is names else None


_CONTAINERS: tuple[tuple[type, Kind], ...] = (
    (list, _ListKind()),
    (deque, _DequeKind()),
    (tuple, _TupleKind()),
    (defaultdict, _DefaultDictKind()),
    (OrderedDict, _OrderedDictKind()),
    (dict, _DictKind()),
    (set, _SetKind()),
    (frozenset, _FrozenSetKind()),
)


def install() -> None:
    """Make these kinds known."""
    for cls, kind in _CONTAINERS:
        kinds.add(kind, kinds.exactly(cls))
    kinds.add(_GlobalsKind())
    kinds.add(_ByteArrayKind(), kinds.exactly(bytearray, array.array))
    kinds.add(_CellKind(), kinds.exactly(types.CellType))
    kinds.add(_WeakRefKind(), kinds.below(weakref.ref))
    weak = (weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet)
    kinds.add(_WeakContainerKind(), kinds.exactly(*weak))


def install_derived() -> None:
    """Make the classes derived from containers known; what has a kind of its own must be known before."""
    for cls, kind in _CONTAINERS:
        kinds.add(_DerivedKind(kind, cls), _made_in_python(cls))


def _made_in_python(container: type) -> Any:
    # Struct sequences and torch.Size are tuples made in C: they pickle instead.
    def applies(cls: type) -> bool:
        if not issubclass(cls, container):
            return False
        solid = next(c for c in cls.__mro__ if not _by_class_statement(c))
        return solid in _BUILTIN

    return applies


def _by_class_statement(cls: type) -> bool:
    return bool(cls.__flags__ & (1 << 9)) and not any(
        isinstance(value, types.BuiltinFunctionType) for value in (cls.__dict__.get("__new__"),)
    )


_BUILTIN = frozenset({cls for cls, _ in _CONTAINERS})
assert INLINE.isdisjoint(_BUILTIN)
