"""A quick look at values and at random states: to notice that something is not what it was.

Not a digest: of a large tensor 256 elements are looked at.
"""

from __future__ import annotations

import ctypes
import pickle
import random
import sys
import zlib
from typing import Any

import torch

_SAMPLE = 256
_DEPTH = 6


def glance(thing: Any, check: int = 0) -> int:
    """A checksum chained onto ``check``. Equal values have equal ones in every process.

    Tensors and arrays by type, shape and up to 256 elements; containers by their entries; numbers and text by value;
    other objects by their type and attributes, six levels deep.
    """
    with torch._C.DisableTorchFunction():  # a mode of the script's must not see this
        return zlib.crc32("\n".join(_look(thing, _DEPTH)).encode("utf-8", "surrogatepass"), check)


def glance_random(state: dict[str, Any]) -> tuple[Any, ...]:
    """The random states of a worker as one value that can be compared."""
    legacy = state.get("numpy")
    numpy = None if legacy is None else (legacy[1].tobytes(), *legacy[2:])
    return state["python"], state["torch"].numpy().tobytes(), numpy


def _look(thing: Any, depth: int) -> list[str]:
    name = type(thing).__qualname__
    if isinstance(thing, torch.Tensor):
        return [name, str(thing.dtype), str(tuple(thing.shape)), *_tensor(thing)]
    if isinstance(thing, (int, float, complex, str, bytes, bool, type(None))):
        return [name, repr(thing)]
    if depth == 0:
        return [name]
    if isinstance(thing, (list, tuple)):
        return [name, str(len(thing)), *(line for entry in thing[:_SAMPLE] for line in _look(entry, depth - 1))]
    if isinstance(thing, dict):
        entries = list(thing.items())[:_SAMPLE]
        return [name, str(len(thing)), *(line for entry in entries for line in _look(entry, depth - 1))]
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(thing, (numpy.ndarray, numpy.generic)):
        step = max(1, thing.size // _SAMPLE)
        return [name, str(thing.dtype), str(thing.shape), repr(thing.reshape(-1)[::step].tolist())]
    attributes = getattr(thing, "__dict__", None)
    return [name, *(_look(attributes, depth - 1) if isinstance(attributes, dict) else ())]


def _tensor(thing: torch.Tensor) -> list[str]:
    if thing.layout is not torch.strided or thing.device.type == "meta" or thing.is_quantized:
        return []
    flat = thing.detach().reshape(-1)
    sample = flat[:: max(1, flat.numel() // _SAMPLE)].cpu().resolve_conj().resolve_neg().contiguous()
    return [sample.view(torch.uint8).numpy().tobytes().hex()]


class Draws:
    """Notices that something draws from the global random states in turns with the rest of the program.

    Call `before` and `after` around each of its steps.
    """

    def __init__(self) -> None:
        self.interleaved = False
        """A step drew after the rest of the program had drawn since the first step: not to be repeated in a row."""
        self._others_drew = False
        self._last: tuple[Any, ...] | None = None

    def before(self) -> None:
        """A step begins."""
        self._start = _states()
        if self._last is not None and not self._others_drew:
            self._others_drew = not _same(self._start, self._last)

    def after(self) -> None:
        """It ended."""
        self._last = _states()
        if self._others_drew and not _same(self._start, self._last):
            self.interleaved = True


def _states() -> tuple[Any, ...]:
    return random.getstate(), torch.get_rng_state(), _numpy_state()


def _numpy_state() -> bytes | None:
    """The Mersenne twister of ``numpy.random``: 624 words and a position. Read in place: asking for it takes 40 us."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    bits = numpy.random.get_bit_generator() if hasattr(numpy.random, "get_bit_generator") else None
    if type(bits).__name__ == "MT19937":
        return ctypes.string_at(bits.ctypes.state_address, 625 * 4)  # type: ignore[union-attr]
    return pickle.dumps(numpy.random.get_state())


def _same(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    return one[0] == other[0] and torch.equal(one[1], other[1]) and one[2] == other[2]
