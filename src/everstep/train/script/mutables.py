"""The small mutable state of an object: random generators and plain attributes, found by walking it.

Samplers change while they are iterated (a generator, an epoch counter, a list that is shuffled in place), data sets
change in their workers (a generator of their own, a flag that the main process set before the worker was started).
What is found is keyed by the way to it, so that it can be put into an equal object of another process.

Not seen: state in C extensions, in generators that are suspended, in containers above 256 entries (except flat lists of
numbers up to 20,000), deeper than eight attributes; `capture` says so where it meets a suspended generator.
"""

from __future__ import annotations

import collections
import enum
import pickle
import random
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from everstep.train.script.graph import Poison

Way = tuple[Any, ...]
Saved = dict[Way, tuple[str, Any]]

_MAX_NODES = 4000
_MAX_DEPTH = 8
_MAX_ENTRIES = 256
_MAX_NUMBERS = 20_000
_MAX_BYTES = 1 << 20
_ATOMS = (int, float, complex, str, bytes, bool, type(None))
_MACHINERY = ("everstep", "multiprocessing", "threading", "queue", "subprocess", "logging")
"""Packages whose objects are bound to their process; `Batches` is one of them, and has its own way back."""
_OURS = ("torch", "numpy", "everstep", "torchvision", "builtins")


def capture(roots: Mapping[str, object], *, arrays: bool = False, beside: object = None) -> Saved:
    """The state reachable from ``roots``, picklable and independent of later changes.

    Args:
        roots: named starting points; equal names at capture and `restore`.
        arrays: tensors and arrays up to 1 MiB too.
        beside: an object that is not walked (the data set that a sampler knows).
    """
    saved: Saved = {}
    for way, thing, _ in _walk(roots, beside):
        kept = _keep(thing, arrays)
        if kept is not None:
            saved[way] = kept
    return saved


def restore(roots: Mapping[str, object], saved: Saved) -> None:
    """Write what `capture` found into the objects at the same places. What is not there any more is left out."""
    done: set[Way] = set()
    # A container that had nothing at a place may get a random generator there; what is below does not need a walk.
    for way, thing, put in list(_walk(roots)):
        if way in saved:
            done.add(way)
            _put_back(thing, put, *saved[way])
    owners = {way: thing for way, thing, _ in _walk(roots)}
    for way in saved.keys() - done:
        owner = owners.get(way[:-1])
        if owner is not None and way[-1][0] in (".", "["):
            _setter(owner, way[-1])(_rebuilt(*saved[way]))


def opaque(roots: Mapping[str, object]) -> str | None:
    """The way to a suspended generator or iterator that an attribute holds, or None."""
    for way, thing, _ in _walk(roots):
        if isinstance(thing, types.GeneratorType) or type(thing).__module__ == "itertools":
            return str(way[0]) + "".join(f".{key}" if kind == "." else f"[{key!r}]" for kind, key in way[1:])
    return None


# --- walking ----------------------------------------------------------------------------------------------------------


def _walk(
    roots: Mapping[str, object], beside: object = None
) -> Iterator[tuple[Way, Any, Callable[[Any], None] | None]]:
    """All places, breadth first, each object once: the way to it, the object, how to put another one there."""
    queue: collections.deque[tuple[Way, Any, Callable[[Any], None] | None]] = collections.deque(
        ((name,), root, None) for name, root in roots.items()
    )
    seen: set[int] = {id(beside)}
    nodes = 0
    while queue and nodes < _MAX_NODES:
        way, thing, put = queue.popleft()
        if type(thing) is Poison:
            continue
        atom = isinstance(thing, _ATOMS)
        if not atom:
            if id(thing) in seen:
                continue
            seen.add(id(thing))
        nodes += 1
        yield way, thing, put
        if not atom and len(way) <= _MAX_DEPTH and not _is_generator(thing):
            queue.extend((*_step, child, _setter(thing, _step[0][-1])) for *_step, child in _children(way, thing))


def _children(way: Way, thing: Any) -> Iterator[tuple[Way, Any]]:
    if isinstance(thing, dict):
        if len(thing) <= _MAX_ENTRIES:
            yield from (((*way, ("[", key)), value) for key, value in list(thing.items()) if isinstance(key, _ATOMS))
    elif isinstance(thing, (list, tuple, collections.deque)):
        if len(thing) <= _MAX_ENTRIES and not _flat(thing):
            yield from (((*way, ("[", index)), value) for index, value in enumerate(list(thing)))
    elif isinstance(thing, types.FunctionType):
        for name, cell in zip(thing.__code__.co_freevars, thing.__closure__ or (), strict=True):
            try:
                yield (*way, ("cell", name)), cell.cell_contents
            except ValueError:
                continue
        yield from _module_generators(way, thing.__module__)
    elif isinstance(thing, types.MethodType):
        yield (*way, (".", "__self__")), thing.__self__
        yield (*way, (".", "__func__")), thing.__func__
    elif type(thing).__module__.partition(".")[0] in _MACHINERY:
        return
    elif not isinstance(thing, (type, types.ModuleType, types.BuiltinFunctionType, torch.Tensor)):
        yield from (((*way, (".", key)), value) for key, value in list(_attributes(thing).items()))
        yield from _module_generators(way, type(thing).__module__)


def _attributes(thing: Any) -> dict[str, Any]:
    found = dict(getattr(thing, "__dict__", None) or {})
    for owner in type(thing).__mro__:
        slots = owner.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(thing, name):
                found[name] = getattr(thing, name)
    if hasattr(thing, "func") and hasattr(thing, "keywords"):  # functools.partial keeps them in C
        found.update(func=thing.func, args=thing.args, keywords=thing.keywords)
    return found


def _module_generators(way: Way, name: str | None) -> Iterator[tuple[Way, Any]]:
    """Random generators that a module of the user keeps as globals."""
    package = (name or "").partition(".")[0]
    module = sys.modules.get(name or "")
    if module is None or package in _OURS or package in sys.stdlib_module_names - {"__main__"}:
        return
    for key, value in list(vars(module).items()):
        if _is_generator(value):
            yield (*way, ("global", key)), value


def _setter(owner: Any, step: tuple[str, Any]) -> Callable[[Any], None]:
    kind, key = step

    def put(value: Any) -> None:
        if kind == "[" and not isinstance(owner, tuple):
            owner[key] = value
        elif kind == "cell":
            owner.__closure__[owner.__code__.co_freevars.index(key)].cell_contents = value
        elif kind == ".":
            # Past a __setattr__ of the user or of DataLoader, which may forbid it.
            object.__setattr__(owner, key, value)

    return put


# --- kinds ------------------------------------------------------------------------------------------------------------


def _flat(thing: Any) -> bool:
    return len(thing) > 0 and all(isinstance(entry, (int, float)) for entry in thing)


def _is_generator(thing: Any) -> bool:
    cls = type(thing)  # not its __class__: to ask a `Poison` would be to use it
    if issubclass(cls, (torch.Generator, random.Random)):
        return True
    numpy = sys.modules.get("numpy")
    return numpy is not None and issubclass(cls, (numpy.random.Generator, numpy.random.RandomState))


def _keep(thing: Any, arrays: bool) -> tuple[str, Any] | None:
    if type(thing) in _ATOMS or isinstance(thing, enum.Enum):
        return "atom", thing
    if isinstance(thing, torch.Generator):
        return "torch", thing.get_state()
    if _is_generator(thing):
        return "random", pickle.dumps(thing)
    if isinstance(thing, list) and len(thing) <= _MAX_NUMBERS and (not thing or _flat(thing)):
        return "list", list(thing)
    if arrays and isinstance(thing, torch.Tensor) and thing.numel() * thing.element_size() <= _MAX_BYTES:
        return "tensor", thing.detach().clone()
    numpy = sys.modules.get("numpy")
    if arrays and numpy is not None and isinstance(thing, numpy.ndarray) and thing.nbytes <= _MAX_BYTES:
        return "array", thing.copy()
    return None


def _put_back(thing: Any, put: Callable[[Any], None] | None, kind: str, value: Any) -> None:
    if kind == "torch" and isinstance(thing, torch.Generator):
        thing.set_state(value)
    elif kind == "random" and _is_generator(thing) and not isinstance(thing, torch.Generator):
        _copy_random(pickle.loads(value), thing, put)
    elif kind == "list" and isinstance(thing, list):
        thing[:] = value
    elif kind == "tensor" and isinstance(thing, torch.Tensor) and thing.shape == value.shape:
        with torch.no_grad():
            thing.copy_(value)
    elif kind == "array" and getattr(thing, "shape", None) == value.shape:
        thing[...] = value
    elif put is not None and not (kind == "atom" and type(thing) is type(value) and thing == value):
        put(_rebuilt(kind, value))


def _copy_random(source: Any, target: Any, put: Callable[[Any], None] | None) -> None:
    """In place, since others may hold the same generator."""
    if isinstance(source, random.Random):
        target.setstate(source.getstate())
    elif hasattr(source, "bit_generator"):
        target.bit_generator.state = source.bit_generator.state
    else:
        target.set_state(source.get_state())


def _rebuilt(kind: str, value: Any) -> Any:
    if kind == "torch":
        generator = torch.Generator()
        generator.set_state(value)
        return generator
    if kind == "random":
        return pickle.loads(value)
    return value
