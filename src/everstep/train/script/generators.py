"""The states of the random generators of the process; one that is slow to get is not got again where nothing was drawn.

Python needs about 10 microseconds, numpy 40 and torch 1.3 to give a state of a few kB as objects, and at each pass of a
loop with loops inside all are noted several times. So their memory is compared with what it was when the states were
got last, which takes a third of a microsecond for all. It is only ever read, and nothing is concluded from its layout.
"""

from __future__ import annotations

import ctypes
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from everstep.train import randomness

_CPYTHON = sys.implementation.name == "cpython"
_MT19937_BYTES = 624 * 4 + 4
_MOST_BYTES = 2 * _MT19937_BYTES
_HEAD_BYTES = object.__basicsize__
"""Reference count and type: they tell nothing about a generator."""


def states() -> dict[str, Any]:
    """Of python, torch, numpy and CUDA, as far as they are loaded; not to be changed. Draws nothing.

    Where nothing was drawn since the last call it is the same dictionary.
    """
    global _watch
    if not _CPYTHON:
        return randomness.capture()
    watch, numpy = _watch, sys.modules.get("numpy")
    # Generators may be replaced, and numpy come late.
    if watch is None or watch.python_get is not random.getstate or watch.numpy is not numpy or watch.other_bits():
        watch = _watch = _Watch(numpy)
    seen = b"".join(watch.views)
    # The second of two numbers from Python's `gauss` is in an attribute.
    second = getattr(watch.generator, "gauss_next", None)
    process = watch.found if seen == watch.seen and second == watch.second else watch.get(seen, second)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return {**process, "cuda": torch.cuda.get_rng_state_all()}
    return process


@dataclass(frozen=True)
class _Part:
    """One generator.

    Attributes:
        name: of its state.
        get: gives it.
        memory: what changes whenever the state does; None: it is got each time.
        keeps: objects whose addresses must not be given to others.
    """

    name: str
    get: Callable[[], Any]
    memory: tuple[memoryview, ...] | None
    keeps: tuple[Any, ...] = ()


class _Watch:
    """The generators as they are set up now: their states when these were got last, and what their memory was then.

    Attributes:
        numpy: the module, as far as it was loaded.
        python_get: what gave Python's state.
        views: of the memory.
        generator: Python's.
        seen: what the memory was; None: unlike anything.
        second: what Python's generator keeps beside it.
        found: the states.
    """

    def __init__(self, numpy: Any) -> None:
        self.numpy = numpy
        self.python_get: Any = random.getstate
        self._parts = [_python(), _torch()]
        if numpy is not None:
            # `numpy.random` is loaded, and seeded, by being asked for.
            self._parts.append(_numpy(numpy.random))
        legacy: Any = None if numpy is None else getattr(numpy.random.get_state, "__self__", None)
        self._legacy = legacy if hasattr(legacy, "_bit_generator") else None
        self._bits: Any = getattr(legacy, "_bit_generator", None)
        self.views: list[memoryview] = []
        self._places: list[slice] = []
        at = 0
        for part in self._parts:
            self.views += part.memory or ()
            size = sum(view.nbytes for view in part.memory or ())
            self._places.append(slice(at, at + size))
            at += size
        # Never equal to what is seen, as long as one is not watched.
        self._watched = all(part.memory is not None for part in self._parts)
        self.generator: Any = getattr(self.python_get, "__self__", None)
        self._before = b""
        self.seen: bytes | None = None
        self.second: Any = None
        self.found: dict[str, Any] = {}

    def other_bits(self) -> bool:
        """Whether numpy draws from something else now, whose memory is not the one that is watched."""
        return self._legacy is not None and self._legacy._bit_generator is not self._bits

    def get(self, seen: bytes, second: Any) -> dict[str, Any]:
        """The states, of which some have changed: the memory is ``seen`` now."""
        before, found = self._before, {}
        for part, place in zip(self._parts, self._places, strict=True):
            same = part.memory is not None and part.name in self.found and seen[place] == before[place]
            same = same and (part.name != "python" or second == self.second)
            found[part.name] = self.found[part.name] if same else part.get()
        self.found, self.second, self._before = found, second, seen
        if self._watched:
            self.seen = seen
        return found


def _python() -> _Part:
    generator: Any = getattr(random.getstate, "__self__", None)
    # The numbers are in the object itself.
    memory = (_object(generator),) if isinstance(generator, random.Random) else None
    return _Part("python", random.getstate, memory, (generator,))


def _numpy(module: Any) -> _Part:
    """Numpy's old generator; watched as long as it draws from a Mersenne twister."""
    generator = getattr(module.get_state, "__self__", None)
    bits: Any = getattr(generator, "_bit_generator", None)
    memory = None
    if type(bits).__name__ == "MT19937":
        # The object has the second of two numbers from `randn`.
        memory = _object(generator), _bytes_at(bits.ctypes.state_address, _MT19937_BYTES)
    return _Part("numpy", lambda: module.get_state(legacy=False), memory, (generator, bits))


def _torch() -> _Part:
    generator: Any = torch.default_generator
    size = _torch_bytes()
    memory = (_bytes_at(generator._cdata, size),) if size else None
    return _Part("torch", generator.get_state, memory, (generator,))


def _torch_bytes() -> int:
    """Size of one of torch's generators; 0 if its state is not seen to change there, or nobody tells the size."""
    try:
        size_of = ctypes.CDLL(None).malloc_usable_size
        size_of.argtypes, size_of.restype = [ctypes.c_void_p], ctypes.c_size_t
        one: Any = torch.Generator()
        default: Any = torch.default_generator
        size = int(size_of(one._cdata))
        if size != size_of(default._cdata) or not _MT19937_BYTES <= size <= _MOST_BYTES:
            return 0
    except (AttributeError, OSError):
        return 0
    memory = _bytes_at(one._cdata, size)
    numbers = torch.empty(1, device="cpu"), torch.empty(624, device="cpu")
    for draw in (
        lambda: one.manual_seed(1),
        lambda: numbers[0].random_(generator=one),
        # The second of two such numbers comes from the same draw as the first.
        lambda: numbers[0].normal_(generator=one),
        lambda: numbers[0].normal_(generator=one),
        lambda: numbers[1].uniform_(generator=one),
    ):
        before = memory.tobytes()
        draw()
        if memory.tobytes() == before:
            return 0
    return size


def _object(thing: Any) -> memoryview:
    return _bytes_at(id(thing) + _HEAD_BYTES, type(thing).__basicsize__ - _HEAD_BYTES)


def _bytes_at(address: int, size: int) -> memoryview:
    return memoryview((ctypes.c_char * size).from_address(address)).cast("B")


_watch: _Watch | None = None
