"""Fills sets so that they are iterated in the order that they had, where a program can depend on that order at all.

Where the next value of a set goes, and which one ``pop`` takes, depends also on what was taken out before. So the table
of a set is put back place by place (``Objects/setobject.c`` of CPython) where it is laid out as we know it.
"""

from __future__ import annotations

import ctypes
import os
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

_NUMBERS = (int, float, complex, bool)
_SHUFFLES = 50
# A table grows fourfold when it is filled to 3/5, and what was taken out counts: above this no room is left.
_ROOM = 0.44


_EMPTY_BYTES = sys.getsizeof(set())
_ENTRY_BYTES = 16


@dataclass(frozen=True)
class Table:
    """How a set lies in memory.

    Attributes:
        size: `sys.getsizeof` of it.
        mask: number of places less one; -1 if nothing of the following is known.
        places: of the values, in the order of the iteration.
        left: places that were left, and look taken to whoever searches.
        finger: where ``pop`` goes on.
    """

    size: int
    mask: int = -1
    places: Sequence[int] = ()
    left: Sequence[int] = ()
    finger: int = 0


class _Set(ctypes.Structure):
    """``PySetObject``."""

    _fields_ = (
        ("refcount", ctypes.c_ssize_t),
        ("type", ctypes.c_void_p),
        ("fill", ctypes.c_ssize_t),
        ("used", ctypes.c_ssize_t),
        ("mask", ctypes.c_ssize_t),
        ("table", ctypes.c_void_p),
        ("hash", ctypes.c_ssize_t),
        ("finger", ctypes.c_ssize_t),
    )


def _keys(at: _Set) -> Any:
    """The keys of the table as addresses, 0 for none, and their hashes in turn."""
    words = (ctypes.c_ssize_t * (2 * (at.mask + 1))).from_address(at.table)
    return memoryview(words).cast("B").cast("q")


def _gone() -> int:
    """The address that stands where a value was taken out; 0 if sets lie in memory otherwise than we know."""
    if sys.implementation.name != "cpython" or not getattr(sys, "_is_gil_enabled", lambda: True)():
        return 0
    one, two, three = 1, 2, 3
    sample = {one, two, three}
    sample.discard(two)
    at = _Set.from_address(id(sample))
    if (at.refcount, at.fill, at.used, at.mask, at.hash) != (sys.getrefcount(sample) - 1, 3, 2, 7, -1):
        return 0
    keys = _keys(at).tolist()
    known = keys[2:4] == [id(one), 1] and keys[5:8] == [-1, id(three), 3] and not any(keys[8:]) and not any(keys[:2])
    return int(keys[4]) if known else 0


_GONE = _gone()


def table_of(thing: set[Any]) -> Table:
    """How a set lies in memory."""
    size = sys.getsizeof(thing)
    if not _GONE:
        return Table(size)
    at = _Set.from_address(id(thing))
    keys = _keys(at)[::2].tolist()
    left = [place for place, key in enumerate(keys) if key == _GONE] if at.fill != at.used else []
    places = [place for place, key in enumerate(keys) if key and key != _GONE]
    return Table(size, at.mask, places, left, at.finger)


def _lay(thing: set[Any], values: list[Any], table: Table) -> None:
    """Put values at their places."""
    set.clear(thing)
    at = _Set.from_address(id(thing))
    if table.mask != at.mask:
        allocate = ctypes.pythonapi.PyMem_Calloc
        allocate.restype, allocate.argtypes = ctypes.c_void_p, (ctypes.c_size_t, ctypes.c_size_t)
        memory = allocate(table.mask + 1, _ENTRY_BYTES)
        if memory is None:
            raise MemoryError
        at.table, at.mask = memory, table.mask
    words = _keys(at)
    for place in table.left:
        words[2 * place], words[2 * place + 1] = _GONE, -1
    for place, value in zip(table.places, values, strict=True):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))
        words[2 * place], words[2 * place + 1] = id(value), hash(value)
    at.fill, at.used, at.finger = len(values) + len(table.left), len(values), table.finger


class _Filler:
    """Takes room in a table for a moment, at a place where no value wants to stand."""

    def __init__(self, slot: int) -> None:
        self._slot = slot

    def __hash__(self) -> int:
        return self._slot


def fill_set(thing: set[Any], values: list[Any], table: Table) -> bool:
    """Let the set hold these values; False if their order, which is reproducible, could not be had.

    Where a value stands depends on the size of the table and on the order in which it came. Sets of objects are in the
    order of their addresses, and sets of text in one that changes with every process unless PYTHONHASHSEED is set:
    nothing is promised about them.

    Args:
        thing: any set.
        values: in the order of the iteration.
        table: of the set that was saved.
    """
    if not all(_reproducible(value) for value in values):
        set.clear(thing)
        set.update(thing, values)
        return True
    if _GONE and table.mask >= 0:
        _lay(thing, values, table)
        return True
    size = table.size
    for order in _orders(values):
        set.clear(thing)
        if len(values) < _ROOM * (size - _EMPTY_BYTES) // _ENTRY_BYTES:
            _grow(thing, values, size)
        for value in order:
            set.add(thing, value)
        if all(a is b for a, b in zip(values, set.__iter__(thing), strict=True)):
            return True
    return False


def _orders(values: list[Any]) -> Iterator[list[Any]]:
    """Orders in which the values may have come."""
    yield values
    yield sorted(values, key=hash)
    yield values[::-1]
    chance = random.Random(0)
    for _ in range(_SHUFFLES if len(values) < 1000 else 0):
        yield chance.sample(values, len(values))


def _grow(thing: set[Any], values: list[Any], size: int) -> None:
    """Give the table its size, if the values alone would not."""
    slots = (size - _EMPTY_BYTES) // _ENTRY_BYTES
    if slots <= 0:
        return
    wanted = {hash(value) % slots for value in values}
    free = iter([slot for slot in range(slots) if slot not in wanted])
    room = []
    while sys.getsizeof(thing) < size and (slot := next(free, None)) is not None:
        room.append(_Filler(slot))
        set.add(thing, room[-1])
    for filler in room:
        set.discard(thing, filler)


def _reproducible(value: Any) -> bool:
    if type(value) is tuple:
        return all(_reproducible(part) for part in value)
    if type(value) in (str, bytes):
        return os.environ.get("PYTHONHASHSEED", "random") != "random"
    return type(value) in _NUMBERS
