"""The random states that a loop's items and passes depend on, noted in microseconds."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

_DEPTH = 3
_WIDTH = 64
_PLAIN = (int, float, str, bytes, bool, type(None), torch.Tensor)


@dataclass(frozen=True)
class States:
    """Of the generators of the process, and of those that an iterable keeps for itself.

    Attributes:
        process: of python, torch, numpy and CUDA.
        own: of the generators found in the iterable, in the order in which they are found.
    """

    process: dict[str, Any]
    own: tuple[Any, ...] = ()


def capture(iterable: Any) -> States:
    """The states now; ``iterable`` is searched for generators of its own, to a small depth. Draws nothing."""
    process: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        process["numpy"] = numpy.get_state(legacy=False)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        process["cuda"] = torch.cuda.get_rng_state_all()
    own = () if iterable is None else tuple(_state(generator) for generator in _generators(iterable))
    return States(process, own)


def restore(states: States, iterable: Any = None) -> None:
    """Set all generators back; ``iterable`` is what stands where the noted one stood.

    Raises:
        ValueError: it holds other generators than the noted one did.
    """
    process = states.process
    random.setstate(process["python"])
    torch.set_rng_state(process["torch"])
    numpy = sys.modules.get("numpy.random")
    if numpy is not None and "numpy" in process:
        numpy.set_state(process["numpy"])
    if "cuda" in process and torch.cuda.is_available():
        for device, state in enumerate(process["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(state, device)
    if not states.own:
        return
    for generator, state in zip(_generators(iterable), states.own, strict=True):
        _set_state(generator, state)


def _state(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, random.Random):
        return generator.getstate()
    return generator.bit_generator.state if hasattr(generator, "bit_generator") else generator.get_state()


def _set_state(generator: Any, state: Any) -> None:
    if isinstance(generator, torch.Generator):
        generator.set_state(state)
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    elif hasattr(generator, "bit_generator"):
        generator.bit_generator.state = state
    else:
        generator.set_state(state)


def _generators(thing: Any) -> Iterator[Any]:
    """Generators held by an object, its attributes and theirs, each once, in an order that only the program decides."""
    numpy: Any = sys.modules.get("numpy.random")
    kinds: tuple[type, ...] = (torch.Generator, random.Random)
    if numpy is not None:
        kinds += (numpy.Generator, numpy.RandomState)
    seen: set[int] = set()
    waiting = [(thing, 0)]
    while waiting:
        at, depth = waiting.pop()
        if isinstance(at, _PLAIN) or id(at) in seen:
            continue
        seen.add(id(at))
        if isinstance(at, kinds):
            yield at
        elif depth < _DEPTH:
            waiting += [(held, depth + 1) for held in _held(at)]


def _held(thing: Any) -> list[Any]:
    if isinstance(thing, dict):
        return list(thing.values())[:_WIDTH]
    if isinstance(thing, list | tuple):
        return list(thing[:_WIDTH])
    attributes = getattr(thing, "__dict__", None)
    return list(attributes.values())[:_WIDTH] if isinstance(attributes, dict) else []
