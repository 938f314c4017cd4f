"""The random states that a loop's items and passes depend on, noted in microseconds."""

from __future__ import annotations

import random
import sys
import types
from dataclasses import dataclass, field
from typing import Any

import torch

from everstep.train.script import mutables

_STATELESS = frozenset(["builtins", "collections", "itertools", "numpy", "torch", "tqdm"])
"""Packages whose iterables change only by being iterated; what a ``DataLoader`` holds is kept by `Batches`."""


@dataclass(frozen=True)
class States:
    """Of the generators of the process, and of those that an iterable keeps for itself, with other small state of it.

    Attributes:
        process: of python, torch, numpy and CUDA.
        own: small mutable state of the iterable, see `mutables`.
    """

    process: dict[str, Any]
    own: mutables.Saved = field(default_factory=dict)


def capture(iterable: Any) -> States:
    """The states now; ``iterable`` is searched for small state of its own. Draws nothing."""
    process: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        process["numpy"] = numpy.get_state(legacy=False)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        process["cuda"] = torch.cuda.get_rng_state_all()
    own = mutables.capture({"iterable": iterable}) if _keeps_state(iterable) else {}
    return States(process, own)


def restore(states: States, iterable: Any = None) -> None:
    """Set all generators back; ``iterable`` is what stands where the noted one stood."""
    process = states.process
    random.setstate(process["python"])
    torch.set_rng_state(process["torch"])
    numpy = sys.modules.get("numpy.random")
    if numpy is not None and "numpy" in process:
        numpy.set_state(process["numpy"])
    if "cuda" in process and torch.cuda.is_available():
        for device, state in enumerate(process["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(state, device)
    if states.own:
        mutables.restore({"iterable": iterable}, states.own)


def _keeps_state(iterable: Any) -> bool:
    """True for objects of classes of somebody's own: what these iterate over may change from one loop to the next."""
    return type(iterable).__module__.partition(".")[0] not in _STATELESS and not isinstance(
        iterable, types.GeneratorType
    )
