"""The attributes of an object, in its ``__dict__`` and slots, read and written without running code of its class."""

from __future__ import annotations

import sys
import types
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from everstep.train.script.graph.records import MISSING

_POINTER = 8
_MANAGED_DICT = 1 << 4
_OBJECT_SIZE = object.__basicsize__


@dataclass(frozen=True)
class State:
    """Names of the attributes that were set: those in ``__dict__``, in their order, and those in slots."""

    names: tuple[str, ...]
    slots: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.names) + len(self.slots)

    def values(self, thing: Any) -> list[object]:
        """The values of these names in an object, MISSING where it has none."""
        attributes = getattr_dict(thing)
        found = [attributes.get(name, MISSING) for name in self.names] if attributes is not None else []
        found += [MISSING] * (len(self.names) - len(found))
        if self.slots:
            slots = slots_of(type(thing))
            found += [_slot(slots[name], thing) if name in slots else MISSING for name in self.slots]
        return found

    def write(self, thing: Any, values: Sequence[Any]) -> None:
        """Set these attributes, and no others stay."""
        attributes = getattr_dict(thing)
        if attributes is not None:
            attributes.clear()
            attributes.update(zip(self.names, values, strict=False))
        for name, slot in slots_of(type(thing)).items():
            if name in self.slots:
                slot.__set__(thing, values[len(self.names) + self.slots.index(name)])
            elif _slot(slot, thing) is not MISSING:
                slot.__delete__(thing)

    def step(self, position: int) -> str:
        """The attribute at this position, for an access path."""
        return "." + (*self.names, *self.slots)[position]


_NONE = State((), ())
_STATES: dict[tuple[tuple[str, ...], tuple[str, ...]], State] = {}
_SLOTS: dict[type, dict[str, types.MemberDescriptorType]] = {}
_PLAIN: dict[type, bool] = {}


def state_of(thing: Any) -> tuple[State, list[object]]:
    """The names of an object's attributes, and their values."""
    attributes = getattr_dict(thing)
    slots = slots_of(type(thing))
    if not slots:
        if not attributes:
            return _NONE, []
        return _shared(tuple(attributes), ()), list(attributes.values())
    found = {name: value for name, slot in slots.items() if (value := _slot(slot, thing)) is not MISSING}
    attributes = attributes or {}
    return _shared(tuple(attributes), tuple(found)), [*attributes.values(), *found.values()]


def getattr_dict(thing: Any) -> dict[str, Any] | None:
    """The ``__dict__`` of an object, even if its class has an attribute of that name."""
    if type(thing).__dictoffset__ == 0:
        return None
    try:
        found = object.__getattribute__(thing, "__dict__")
    except AttributeError:
        return None
    return found if type(found) is dict else None


def slots_of(cls: type) -> dict[str, types.MemberDescriptorType]:
    """The slots of a class, by (mangled) name."""
    slots = _SLOTS.get(cls)
    if slots is None:
        slots = _SLOTS[cls] = {
            f"{owner.__qualname__}.{name}" if name.startswith("__") else name: member
            for owner in reversed(cls.__mro__)
            if "__slots__" in owner.__dict__
            for name, member in owner.__dict__.items()
            if type(member) is types.MemberDescriptorType
        }
    return slots


def has_plain_state(cls: type) -> bool:
    """Whether ``__dict__`` and slots are all there is: no state in C. The rule that `object.__reduce_ex__` uses."""
    plain = _PLAIN.get(cls)
    if plain is None:
        size = _OBJECT_SIZE + _POINTER * len(slots_of(cls))
        managed = sys.version_info >= (3, 11) and bool(cls.__flags__ & _MANAGED_DICT)
        if cls.__dictoffset__ and not managed:
            size += _POINTER
        if cls.__weakrefoffset__ > 0:
            size += _POINTER
        plain = _PLAIN[cls] = cls.__basicsize__ <= size and cls.__itemsize__ == 0 and cls is not object
    return plain


def _slot(slot: types.MemberDescriptorType, thing: Any) -> object:
    try:
        found: object = slot.__get__(thing)
    except AttributeError:
        return MISSING
    return found


def _shared(names: tuple[str, ...], slots: tuple[str, ...]) -> State:
    key = (names, slots)
    state = _STATES.get(key)
    if state is None:
        if len(_STATES) > 10_000:
            _STATES.clear()
        state = _STATES[key] = State(names, slots)
    return state
