"""The states of the random generators of the process; one that is slow to get is not got again where nothing was drawn.

Python needs about 10 microseconds and numpy 40 to give a state of 2.5 kB as objects, at every pass of a loop with loops
inside, although most scripts draw from torch alone. So the memory of these two generators is compared with what it was
when the state was got last, which takes less than half of one. It is only ever read, and nothing is concluded from its
layout.
"""

from __future__ import annotations

import ctypes
import random
import sys
from typing import Any

import torch

from everstep.train import randomness

_CPYTHON = sys.implementation.name == "cpython"
_MT19937_BYTES = 624 * 4 + 4
_HEAD_BYTES = object.__basicsize__
"""Reference count and type: they tell nothing about a generator."""


def states() -> dict[str, Any]:
    """Of python, torch, numpy and CUDA, as far as they are loaded; not to be changed. Draws nothing."""
    if not _CPYTHON:
        return randomness.capture()
    process: dict[str, Any] = {"python": _python.state(), "torch": torch.default_generator.get_state()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        # `numpy.random` is loaded, and seeded, by being asked for.
        process["numpy"] = _numpy.state(numpy.random)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        process["cuda"] = torch.cuda.get_rng_state_all()
    return process


class _Python:
    """Python's generator: its state when that was got last, and what its memory was like then."""

    def __init__(self) -> None:
        # Kept, so that no other object comes to lie at its address.
        self._generator: Any = None
        self._memory: Any = None
        self._seen = b""
        self._second: Any = None
        self._state: Any = None

    def state(self) -> Any:
        generator: Any = getattr(random.getstate, "__self__", None)
        if not isinstance(generator, random.Random):
            return random.getstate()
        if generator is not self._generator:
            self._generator, self._seen, self._memory = generator, b"", _object(generator)
        # The numbers are in the object itself, the second of two numbers from `gauss` in an attribute.
        seen, second = self._memory.raw, generator.gauss_next
        if seen != self._seen or second != self._second:
            self._state, self._seen, self._second = random.getstate(), seen, second
        return self._state


class _Numpy:
    """The same of numpy's old generator, as long as it draws from a Mersenne twister."""

    def __init__(self) -> None:
        self._generator: Any = None
        self._bits: Any = None
        self._places: tuple[Any, Any] | None = None
        self._seen = self._numbers = b""
        self._state: Any = None

    def state(self, module: Any) -> Any:
        generator = getattr(module.get_state, "__self__", None)
        bits: Any = getattr(generator, "_bit_generator", None)
        if generator is not self._generator or bits is not self._bits:
            self._generator, self._bits, self._seen, self._places = generator, bits, b"", None
            if type(bits).__name__ == "MT19937":
                self._places = _object(generator), _bytes_at(bits.ctypes.state_address, _MT19937_BYTES)
        if self._places is None:
            return module.get_state(legacy=False)
        # The object has the second of two numbers from `randn`.
        mine, its = self._places
        seen, numbers = mine.raw, its.raw
        if seen != self._seen or numbers != self._numbers:
            self._state, self._seen, self._numbers = module.get_state(legacy=False), seen, numbers
        return self._state


def _object(thing: Any) -> Any:
    return _bytes_at(id(thing) + _HEAD_BYTES, type(thing).__basicsize__ - _HEAD_BYTES)


def _bytes_at(address: int, size: int) -> Any:
    return (ctypes.c_char * size).from_address(address)


_python = _Python()
_numpy = _Numpy()
