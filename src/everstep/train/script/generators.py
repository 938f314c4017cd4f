"""The states of the random generators of the process; one that is slow to get is not got again where nothing was drawn.

Python needs about 10 microseconds and numpy 40 to give a state of 2.5 kB as objects, at every pass of a loop with loops
inside, although most scripts draw from torch alone. So the memory of these two generators is compared with what it was
when the state was got last, which takes less than one. It is only ever read, and nothing is concluded from its layout.
"""

from __future__ import annotations

import ctypes
import random
import sys
from collections.abc import Callable
from typing import Any

import torch

_MT19937_BYTES = 624 * 4 + 4
_HEAD_BYTES = object.__basicsize__
"""Reference count and type: they tell nothing about a generator."""


def states() -> dict[str, Any]:
    """Of python, torch, numpy and CUDA, as far as they are loaded; not to be changed. Draws nothing."""
    process: dict[str, Any] = {"python": _python.state(), "torch": torch.default_generator.get_state()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        # `numpy.random` is loaded, and seeded, by being asked for.
        process["numpy"] = _numpy.state(numpy.random)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        process["cuda"] = torch.cuda.get_rng_state_all()
    return process


class _Watched:
    """A generator, its state when that was got last, and what its memory was like then.

    Args:
        get: gives the state, from the generator's module.
        look: all memory that the state is in; None where that is not known.
    """

    def __init__(self, get: Callable[[Any], Any], look: Callable[[Any], Any]) -> None:
        self._get = get
        self._look = look
        self._seen: Any = None
        self._state: Any = None

    def state(self, module: Any = random) -> Any:
        seen = self._look(module)
        if seen is None or seen != self._seen:
            self._state, self._seen = self._get(module), seen
        return self._state


def _memory(thing: Any) -> bytes:
    return ctypes.string_at(id(thing) + _HEAD_BYTES, type(thing).__basicsize__ - _HEAD_BYTES)


def _look_at_python(module: Any) -> Any:
    if sys.implementation.name != "cpython":
        return None
    generator = module.getstate.__self__
    # The numbers are in the object itself, the second of two numbers from `gauss` in an attribute.
    return _memory(generator), generator.gauss_next


def _look_at_numpy(module: Any) -> Any:
    generator = getattr(module.get_state, "__self__", None)
    bits: Any = getattr(generator, "_bit_generator", None)
    if sys.implementation.name != "cpython" or type(bits).__name__ != "MT19937":
        return None
    # The object has the second of two numbers from `randn`, and which bit generator it draws from.
    return _memory(generator), ctypes.string_at(bits.ctypes.state_address, _MT19937_BYTES)


_python = _Watched(lambda module: module.getstate(), _look_at_python)
_numpy = _Watched(lambda module: module.get_state(legacy=False), _look_at_numpy)
