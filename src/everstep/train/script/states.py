"""The random states that a loop's items and passes depend on, noted in microseconds."""

from __future__ import annotations

import gc
import itertools
import types
from dataclasses import dataclass, field
from typing import Any

from everstep.train import randomness
from everstep.train.script import generators, mutables

_DEPTH = 4
_WRAPPERS = (enumerate, zip, map, filter, reversed, itertools.islice, itertools.chain)
_PLAIN = frozenset([range, list, tuple, dict, set, str])
_NONE: mutables.Saved = {}
_STATELESS = frozenset(["builtins", "collections", "itertools", "numpy", "torch"])
"""Packages whose iterables change only by being iterated; what a ``DataLoader`` holds is kept by `Batches`."""


# Not frozen: making one that is takes three times as long, at each pass of a loop.
@dataclass
class States:
    """Of the generators of the process, and of those that an iterable keeps for itself, with other small state of it.
    Never changed.

    Attributes:
        process: of python, torch, numpy and CUDA.
        own: small mutable state of the iterable, see `mutables`.
    """

    process: dict[str, Any]
    own: mutables.Saved = field(default_factory=dict)


_latest = [States({}, _NONE)]


def capture(iterable: Any) -> States:
    """The states now; ``iterable`` is searched for small state of its own. Draws nothing."""
    process = generators.states()
    if iterable is None or type(iterable) in _PLAIN or not (roots := _roots(iterable)):
        latest = _latest[0]
        if latest.process is not process:
            latest = _latest[0] = States(process, _NONE)
        return latest
    return States(process, mutables.capture(roots))


def restore(states: States, iterable: Any = None) -> None:
    """Set all generators back; ``iterable`` is what stands where the noted one stood, None to leave its state alone."""
    randomness.restore(states.process)
    if states.own and iterable is not None:
        mutables.restore(_roots(iterable), states.own)


def _roots(iterable: Any) -> dict[str, Any]:
    """What may change from one loop over an iterable to the next, by its place: objects of somebody's own classes, and
    the arguments of generator functions, also beneath ``enumerate`` and the like."""
    found: dict[str, Any] = {}
    waiting = [(iterable, 0)]
    while waiting:
        thing, depth = waiting.pop()
        place = f"iterable {len(found)}"
        if isinstance(thing, types.GeneratorType):
            if thing.gi_frame is not None:
                found[place] = dict(thing.gi_frame.f_locals)
        elif isinstance(thing, _WRAPPERS) and depth < _DEPTH:
            waiting += [(beneath, depth + 1) for beneath in gc.get_referents(thing)]
        elif type(thing).__module__.partition(".")[0] == "tqdm" and depth < _DEPTH:
            waiting.append((getattr(thing, "iterable", None), depth + 1))
        elif type(thing).__module__.partition(".")[0] not in _STATELESS:
            found[place] = thing
    return found
