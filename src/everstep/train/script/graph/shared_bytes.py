"""Byte arrays, arrays of the standard library and those of ctypes under which a tensor lies (``torch.frombuffer``).

A relaunch would give each of them memory of its own. What NumPy arrays and tensors share is kept, see `memory`.
"""

from __future__ import annotations

import array
import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from everstep.train.script.graph.memory import Claims

KINDS: tuple[Any, ...] = (bytearray, array.array, ctypes.Array, ctypes.Structure)
_WHY = "it shares its memory with a tensor or an array, which a relaunch cannot do; let both be NumPy arrays or tensors"


def mark(things: Sequence[object], memory: Claims, problem: Callable[[int, object, str], None]) -> None:
    """Tell of those whose memory is claimed.

    Args:
        things: of the graph, by number.
        memory: of its tensors and arrays.
        problem: told number, thing and reason.
    """
    held = [(number, *_range(thing)) for number, thing in enumerate(things) if issubclass(type(thing), KINDS)]
    if held:
        pieces = [piece.memory for piece in memory.pieces() if piece.memory[0] == "cpu"]
        for number, start, length in held:
            if any(first < start + length and start < first + size for _, first, size in pieces):
                problem(number, things[number], _WHY)


def _range(thing: Any) -> tuple[int, int]:
    """Address and length in bytes."""
    if isinstance(thing, bytearray):
        if not thing:
            return 0, 0
        return ctypes.addressof((ctypes.c_char * len(thing)).from_buffer(thing)), len(thing)
    if isinstance(thing, array.array):
        address, items = thing.buffer_info()
        return address, items * thing.itemsize
    return ctypes.addressof(thing), ctypes.sizeof(thing)
