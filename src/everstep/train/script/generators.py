"""The states of the random generators of the process; one that is slow to get is not got again where nothing was drawn.

To give a state of 2.5 kB as objects takes Python about 10 microseconds, numpy 40 and torch 1.3, and a pass of a loop
with loops inside notes three of each, although most scripts draw rarely. So the memory of the generators is compared
with what it was when the state was got last, which takes well under one for all. It is only ever read, and what it
holds is never taken for a state. Where torch keeps it in its generators is looked up in one of our own, and believed if
each kind of draw is seen there.
"""

from __future__ import annotations

import ctypes
import random
import struct
import sys
from collections.abc import Callable
from typing import Any

import torch

from everstep.train import randomness

_modules, _cuda_is_initialized = sys.modules, torch.cuda.is_initialized
_CPYTHON = sys.implementation.name == "cpython"
_MT19937_BYTES = 624 * 4 + 4
_TORCH_HEAD = 20
"""Seed, place and the like before the numbers."""
_TORCH_BYTES = _TORCH_HEAD + 624 * 4 + 28
"""Behind them, padded, the second of two numbers from ``randn``, in single and in double precision."""
_HEAD_BYTES = object.__basicsize__
"""Reference count and type: they tell nothing about a generator."""


def states() -> dict[str, Any]:
    """Of python, torch, numpy and CUDA, as far as they are loaded; not to be changed. Draws nothing.

    The same object as the last time if nothing was drawn since, for anything but CUDA.
    """
    if not _CPYTHON:
        return randomness.capture()
    noted = _latest[0]
    if noted is None or not noted.holds():
        noted = _latest[0] = _Noted()
    if _cuda_is_initialized():  # type: ignore[no-untyped-call]
        return {**noted.process, "cuda": torch.cuda.get_rng_state_all()}
    return noted.process


class _Noted:
    """All states at one time, and whether they still are: at once, since it is asked for so often.

    Attributes:
        process: the states.
    """

    __slots__ = ("_module", "_numbers", "_numpy", "_python", "_second", "_torch", "process")

    def __init__(self) -> None:
        self.process: dict[str, Any] = {"python": _python.state(), "torch": _torch.state()}
        self._module = _modules.get("numpy")
        if self._module is not None:
            # `numpy.random` is loaded, and seeded, by being asked for.
            self.process["numpy"] = _numpy.state(self._module.random)
        self._python, self._second, self._torch = _python.seen, _python.second, _torch.seen
        self._numpy, self._numbers = _numpy.seen, _numpy.seen_numbers

    def holds(self) -> bool:
        """Whether nothing was drawn since; False, too, where that cannot be told."""
        numpy = self._module
        try:
            # A comparison without a copy: what is seen is as long as the memory, or nothing.
            return (
                random.getstate.__self__ is _python.generator  # type: ignore[attr-defined]
                and _python.generator.gauss_next is self._second
                and self._python.startswith(_python.memory)
                and torch.default_generator is _torch.generator
                and self._torch.startswith(_torch.memory)
                and _modules.get("numpy") is numpy
                and (
                    numpy is None
                    or (
                        numpy.random.get_state.__self__ is _numpy.generator
                        and _numpy.generator._bit_generator is _numpy.bits
                        and self._numpy.startswith(_numpy.memory)
                        and self._numbers.startswith(_numpy.numbers)
                    )
                )
            )
        except (AttributeError, TypeError):
            # One of them is of another kind, without a memory that could be looked at.
            return False


class _Python:
    """Python's generator: its state when that was got last, and what its memory was like then."""

    def __init__(self) -> None:
        # Kept, so that no other object comes to lie at its address.
        self.generator: Any = None
        self.memory: Any = None
        self.seen = b""
        self.second: Any = None
        self._state: Any = None

    def state(self) -> Any:
        generator: Any = getattr(random.getstate, "__self__", None)
        if not isinstance(generator, random.Random):
            return random.getstate()
        if generator is not self.generator:
            self.generator, self.seen, self.memory = generator, b"", _object(generator)
        # The numbers are in the object itself, the second of two numbers from `gauss` in an attribute.
        seen, second = self.memory.raw, generator.gauss_next
        if seen != self.seen or second != self.second:
            self._state, self.seen, self.second = random.getstate(), seen, second
        return self._state


class _Numpy:
    """The same of numpy's old generator, as long as it draws from a Mersenne twister."""

    def __init__(self) -> None:
        self.generator: Any = None
        self.bits: Any = None
        self.memory: Any = None
        self.numbers: Any = None
        self.seen = self.seen_numbers = b""
        self._state: Any = None

    def state(self, module: Any) -> Any:
        generator = getattr(module.get_state, "__self__", None)
        bits: Any = getattr(generator, "_bit_generator", None)
        if generator is not self.generator or bits is not self.bits:
            self.generator, self.bits, self.seen, self.memory, self.numbers = generator, bits, b"", None, None
            if type(bits).__name__ == "MT19937":
                self.memory, self.numbers = _object(generator), _bytes_at(bits.ctypes.state_address, _MT19937_BYTES)
        if self.memory is None:
            return module.get_state(legacy=False)
        # The object has the second of two numbers from `randn`.
        seen, numbers = self.memory.raw, self.numbers.raw
        if seen != self.seen or numbers != self.seen_numbers:
            self._state, self.seen, self.seen_numbers = module.get_state(legacy=False), seen, numbers
        return self._state


class _Torch:
    """The same of torch's generator of the CPU."""

    def __init__(self) -> None:
        self.generator: Any = None
        self.memory: Any = None
        self.seen = b""
        self._state: Any = None

    def state(self) -> Any:
        generator: Any = torch.default_generator
        if generator is not self.generator:
            self.generator, self.seen, self.memory = generator, b"", None
            if _TORCH_AT is not None and generator.device.type == "cpu":
                self.memory = _bytes_at(generator._cdata + _TORCH_AT, _TORCH_BYTES)
        if self.memory is None:
            return generator.get_state()
        seen = self.memory.raw
        if seen != self.seen:
            self._state, self.seen = generator.get_state(), seen
        return self._state


def _torch_at() -> int | None:
    """Where in one of torch's generators its Mersenne twister begins; None: it is not what is known of torch.

    The object is longer than `_TORCH_BYTES` if it holds the numbers in itself, and they are near its beginning.
    """
    generator = torch.Generator()
    numbers = _seeded(int(generator.manual_seed(5489).initial_seed()))
    address = getattr(generator, "_cdata", None)
    if not isinstance(address, int):
        return None
    found = ctypes.string_at(address, 256).find(numbers[:64])
    if found < _TORCH_HEAD:
        return None
    memory = _bytes_at(address + found - _TORCH_HEAD, _TORCH_BYTES)
    if memory.raw[_TORCH_HEAD:][: len(numbers)] != numbers:
        return None
    draws: tuple[Callable[[], object], ...] = (
        lambda: torch.rand(1, generator=generator),
        # Two at a time: the second is kept.
        lambda: torch.randn(1, generator=generator),
        lambda: torch.randn(1, generator=generator),
        lambda: torch.rand(623, generator=generator),
        lambda: generator.manual_seed(7),
    )
    return found - _TORCH_HEAD if all(_differs(memory, draw) for draw in draws) else None


def _differs(memory: Any, act: Callable[[], object]) -> bool:
    before = memory.raw
    act()
    return bool(memory.raw != before)


def _seeded(seed: int) -> bytes:
    """The numbers of a Mersenne twister that was seeded so; Matsumoto and Nishimura, ``init_genrand``."""
    numbers = [seed & 0xFFFFFFFF]
    for place in range(1, 624):
        last = numbers[-1]
        numbers.append((1812433253 * (last ^ (last >> 30)) + place) & 0xFFFFFFFF)
    return struct.pack("=624I", *numbers)


def _object(thing: Any) -> Any:
    return _bytes_at(id(thing) + _HEAD_BYTES, type(thing).__basicsize__ - _HEAD_BYTES)


def _bytes_at(address: int, size: int) -> Any:
    return (ctypes.c_char * size).from_address(address)


_TORCH_AT = _torch_at() if _CPYTHON else None
_python = _Python()
_torch = _Torch()
_numpy = _Numpy()
_latest: list[_Noted | None] = [None]
