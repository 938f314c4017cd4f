"""Fills sets so that they are iterated in the order that they had, where a program can depend on that order at all."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from typing import Any

_NUMBERS = (int, float, complex, bool)
_SHUFFLES = 50
# A table grows fourfold when it is filled to 3/5, and what was taken out counts: above this no room is left.
_ROOM = 0.44


_EMPTY_BYTES = sys.getsizeof(set())
_ENTRY_BYTES = 16


class _Filler:
    """Takes room in a table for a moment, at a place where no value wants to stand."""

    def __init__(self, slot: int) -> None:
        self._slot = slot

    def __hash__(self) -> int:
        return self._slot


def fill_set(thing: set[Any], values: list[Any], size: int) -> bool:
    """Let the set hold these values; False if their order, which is reproducible, could not be had.

    Where a value stands depends on the size of the table and on the order in which it came. Sets of objects are in the
    order of their addresses, and sets of text in one that changes with every process unless PYTHONHASHSEED is set:
    nothing is promised about them.

    Args:
        thing: any set.
        values: in the order of the iteration.
        size: `sys.getsizeof` of the set that was saved.
    """
    if not all(_reproducible(value) for value in values):
        set.clear(thing)
        set.update(thing, values)
        return True
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
