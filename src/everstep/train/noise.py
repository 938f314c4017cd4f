"""Random generators that a data set keeps for itself (``self.rng = np.random.default_rng(0)``): found, read and set."""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch

_DEEPEST = 6
_MOST = 64
"""So many attributes or items of one object are looked at."""


def own_generators(thing: Any) -> list[Any]:
    """Those of Python, NumPy and torch that an object holds: in its attributes, and in lists and objects there.

    Always in the same order. Those of the process are not among them.
    """
    found: dict[int, Any] = {}
    seen: set[int] = set()
    waiting = [(thing, 0)]
    while waiting:
        one, depth = waiting.pop(0)
        if id(one) in seen:
            continue
        seen.add(id(one))
        if _is_generator(one):
            found[id(one)] = one
        elif depth < _DEEPEST:
            waiting += [(part, depth + 1) for part in _parts(one)]
    return list(found.values())


def states(generators: Sequence[Any]) -> list[Any]:
    """Picklable."""
    return [_state(one) for one in generators]


def restore(generators: Sequence[Any], saved: Sequence[Any]) -> None:
    """Set them to `states` of as many."""
    for one, state in zip(generators, saved, strict=True):
        if isinstance(one, random.Random):
            one.setstate(state)
        elif isinstance(one, torch.Generator):
            one.set_state(state)
        elif hasattr(one, "bit_generator"):
            one.bit_generator.state = copy.deepcopy(state)
        else:
            one.set_state(state)


def _state(one: Any) -> Any:
    if isinstance(one, random.Random):
        return one.getstate()
    if hasattr(one, "bit_generator"):
        return copy.deepcopy(one.bit_generator.state)
    return one.get_state()


def _is_generator(one: Any) -> bool:
    if isinstance(one, random.Random):
        return not isinstance(one, random.SystemRandom) and one is not getattr(random, "_inst", None)
    if isinstance(one, torch.Generator):
        return one is not torch.default_generator
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return False
    return isinstance(one, numpy.random.Generator | numpy.random.RandomState) and one is not numpy.random.mtrand._rand


def _parts(one: Any) -> Iterator[Any]:
    if isinstance(one, list | tuple):
        yield from one[:_MOST]
    elif isinstance(one, dict):
        yield from list(one.values())[:_MOST]
    elif not isinstance(one, torch.Tensor | type):
        yield from list(getattr(one, "__dict__", {}).values())[:_MOST]
