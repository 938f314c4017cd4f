"""numpy arrays and the random generators of numpy and Python; numpy is never imported here."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from everstep.train.script.graph import kinds
from everstep.train.script.graph.kinds import Filling, Hopeless, Kind, Saving, Taken
from everstep.train.script.graph.memory import Place, Standing
from everstep.train.script.graph.records import MISSING


@dataclass(frozen=True)
class Layout:
    """An array without its bytes; strides count bytes, ``first`` is the offset of its first element in its place."""

    place: Place
    dtype: Any
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    first: int
    writeable: bool


_NOWHERE = Place(0, 0, 0)


class _ArrayKind(Kind):
    """numpy arrays of plain numbers, in place; views share memory as they did, with tensors too."""

    name = "array"

    def pick(self, thing: Any) -> Kind:
        if thing.dtype.hasobject:
            return kinds.by_name("object array")
        return kinds.by_name("mapped array") if type(thing).__name__ == "memmap" and _maps_file(thing) else self

    def take(self, thing: Any, saving: Saving) -> Taken:
        low, high = _bounds(thing)
        base, holder = _owner(thing)
        claim = saving.memory.range("cpu", base, (low - base, high - low), holder)
        place = Place(claim, low - base, high - low)
        first = thing.__array_interface__["data"][0] - low
        return Layout(place, thing.dtype, thing.shape, thing.strides, first, thing.flags.writeable), [type(thing)]

    def align(self, extra: Any, refs: list[Any], fresh: Any) -> Sequence[object] | None:
        form: Layout = extra
        same = (fresh.dtype, fresh.shape, fresh.strides) == (form.dtype, form.shape, form.strides)
        return [type(fresh)] if same and fresh.flags.writeable and form.writeable else None

    def shown(self, extra: Any) -> tuple[Any, Place | None]:
        form: Layout = extra
        return replace(form, place=_NOWHERE), form.place

    def seat(self, extra: Any, fresh: Any, filling: Filling) -> bool:
        """Whether the partner can stay where it is: an array cannot be moved."""
        form: Layout = extra
        low, high = _bounds(fresh)
        return filling.memory.offer(form.place, Standing("cpu", low, *_owner_range(fresh, low, high), fresh))

    def first(self, extra: Any, refs: list[Any]) -> list[Any]:
        return refs[:1]

    def make(self, extra: Any, refs: list[Any], filling: Filling) -> Any:
        form: Layout = extra
        numpy = sys.modules["numpy"]
        target, inside = filling.memory.storage(form.place)
        made = numpy.ndarray(form.shape, form.dtype, _buffer(target), inside + form.first, form.strides)
        cls = filling.value(refs[0])
        made = made if cls is numpy.ndarray else made.view(cls)
        made.flags.writeable = form.writeable
        return made


class _ObjectArrayKind(Kind):
    """numpy arrays of objects, in place."""

    name = "object array"

    def take(self, thing: Any, saving: Saving) -> Taken:
        if thing.dtype.names is not None or type(thing).__name__ != "ndarray":
            raise Hopeless("arrays with objects in fields are not supported")
        return thing.shape, list(thing.flat)

    def align(self, extra: Any, refs: list[Any], fresh: Any) -> Sequence[object] | None:
        return list(fresh.flat) if fresh.dtype.kind == "O" and fresh.shape == extra else None

    def make(self, extra: Any, refs: list[Any], filling: Filling) -> Any:
        return sys.modules["numpy"].empty(extra, dtype=object)

    def fill(self, thing: Any, extra: Any, refs: list[Any], filling: Filling) -> None:
        for position, code in enumerate(refs):
            thing.flat[position] = filling.value(code)

    def step(self, extra: Any, refs: list[Any], position: int) -> str:
        return f".flat[{position}]"


class _MappedArrayKind(Kind):
    """Files that numpy maps into memory to be read: the file stays where it is."""

    name = "mapped array"
    whole = True

    def take(self, thing: Any, saving: Saving) -> Taken:
        if thing.mode not in ("r", "c"):
            raise Hopeless("it writes into a file through a memory map; write the file in another way")
        if thing.mode == "c":
            raise Hopeless("it may hold changes of a memory map that are not in the file; use mode 'r'")
        root = thing
        while type(root.base).__name__ == "memmap":
            root = root.base
        first = thing.__array_interface__["data"][0] - root.__array_interface__["data"][0]
        return (str(thing.filename), thing.dtype, thing.shape, thing.strides, root.offset + first), ()

    def align(self, extra: Any, refs: list[Any], fresh: Any) -> Sequence[object] | None:
        return () if type(fresh).__name__ == "memmap" and self.take(fresh, None)[0] == extra else None  # type: ignore[arg-type]

    def make(self, extra: Any, refs: list[Any], filling: Filling) -> Any:
        filename, dtype, shape, strides, offset = extra
        numpy = sys.modules["numpy"]
        whole = numpy.memmap(filename, dtype="u1", mode="r")
        return numpy.ndarray(shape, dtype, whole, offset, strides).view(numpy.memmap)


class _RandomStateKind(Kind):
    """numpy's generators, old and new, and their bit generators: the state in place.

    Parts: the state, the seed sequence (which counts its children), the old generator's own state, the bit generator.
    """

    name = "numpy random"
    calls = True

    def take(self, thing: Any, saving: Saving) -> Taken:
        bits = _bit_generator(thing)
        legacy = thing.get_state(legacy=False) if hasattr(thing, "get_state") else None
        return _random_form(thing), [bits.state, getattr(bits, "seed_seq", None), legacy, *_shared_bits(thing)]

    def align(self, extra: Any, refs: list[Any], fresh: Any) -> Sequence[object] | None:
        if _random_form(fresh) != extra:
            return None
        return [MISSING, getattr(_bit_generator(fresh), "seed_seq", MISSING), MISSING, *_shared_bits(fresh)]

    def first(self, extra: Any, refs: list[Any]) -> list[Any]:
        return refs[3:] or refs[1:2]

    def make(self, extra: Any, refs: list[Any], filling: Filling) -> Any:
        maker = getattr(sys.modules["numpy"].random, extra[1 if len(refs) == 3 else 0])
        return maker(filling.value(refs[3] if len(refs) > 3 else refs[1]))

    def fill(self, thing: Any, extra: Any, refs: list[Any], filling: Filling) -> None:
        _bit_generator(thing).state = filling.value(refs[0])
        if refs[2] is not None:
            thing.set_state(filling.value(refs[2]))

    def step(self, extra: Any, refs: list[Any], position: int) -> str:
        return (".state", ".seed_seq", ".state", ".bit_generator")[position]


class _SeedKind(Kind):
    """numpy's seed sequences: they count the children that they gave."""

    name = "numpy seed"

    def take(self, thing: Any, saving: Saving) -> Taken:
        return (_seed_form(thing), thing.n_children_spawned), ()

    def align(self, extra: Any, refs: list[Any], fresh: Any) -> Sequence[object] | None:
        return () if _seed_form(fresh) == extra[0] and fresh.n_children_spawned <= extra[1] else None

    def make(self, extra: Any, refs: list[Any], filling: Filling) -> Any:
        entropy, key, pool_size = extra[0]
        return sys.modules["numpy"].random.SeedSequence(entropy, spawn_key=key, pool_size=pool_size)

    def fill(self, thing: Any, extra: Any, refs: list[Any], filling: Filling) -> None:
        thing.spawn(extra[1] - thing.n_children_spawned)


class _RandomKind(Kind):
    """`random.Random`, in place."""

    name = "random"

    def take(self, thing: Any, saving: Saving) -> Taken:
        return thing.getstate(), ()

    def align(self, extra: Any, refs: list[Any], fresh: Any) -> Sequence[object] | None:
        return ()

    def make(self, extra: Any, refs: list[Any], filling: Filling) -> Any:
        return random.Random(0)

    def fill(self, thing: Any, extra: Any, refs: list[Any], filling: Filling) -> None:
        thing.setstate(extra)


def _bounds(array: Any) -> tuple[int, int]:
    """Addresses of the first byte and behind the last one."""
    low = high = array.__array_interface__["data"][0]
    if array.size == 0:
        return low, low
    for count, stride in zip(array.shape, array.strides, strict=True):
        reach = (count - 1) * stride
        low, high = (low + reach, high) if stride < 0 else (low, high + reach)
    return low, high + array.itemsize


def _root(array: Any) -> Any:
    root = array
    while hasattr(root.base, "__array_interface__") and type(root.base).__module__.startswith("numpy"):
        root = root.base
    return root


def _owner(array: Any) -> tuple[int, Any]:
    """(address that names the buffer, what keeps it alive)."""
    root = _root(array)
    return root.__array_interface__["data"][0], root


def _owner_range(array: Any, low: int, high: int) -> tuple[int, int]:
    root = _root(array)
    if isinstance(root.base, torch.Tensor):
        storage = root.base.untyped_storage()
        return storage.data_ptr(), storage.data_ptr() + storage.nbytes()
    start, end = _bounds(root)
    return min(start, low), max(end, high)


def _buffer(target: torch.Tensor) -> Any:
    return target.numpy() if target.numel() else bytearray()


def _maps_file(array: Any) -> bool:
    return getattr(array, "_mmap", None) is not None and getattr(array, "filename", None) is not None


def _bit_generator(thing: Any) -> Any:
    if hasattr(thing, "bit_generator"):
        return thing.bit_generator
    return getattr(thing, "_bit_generator", thing)


def _random_form(thing: Any) -> tuple[Any, ...]:
    bits = _bit_generator(thing)
    return type(thing).__name__, type(bits).__name__, _seed_form(getattr(bits, "seed_seq", None))


def _seed_form(seed: Any) -> Any:
    if not hasattr(seed, "entropy"):
        return None
    entropy = seed.entropy
    return entropy if isinstance(entropy, (int, type(None))) else tuple(entropy), tuple(seed.spawn_key), seed.pool_size


def _shared_bits(thing: Any) -> list[Any]:
    bits = _bit_generator(thing)
    return [] if bits is thing else [bits]


def _is_numpy(*names: str) -> Any:
    def applies(cls: type) -> bool:
        return any(c.__name__ in names and c.__module__.partition(".")[0] == "numpy" for c in cls.__mro__)

    return applies


def install() -> None:
    """Make these kinds known."""
    kinds.add(_ArrayKind(), _is_numpy("ndarray"))
    kinds.add(_ObjectArrayKind())
    kinds.add(_MappedArrayKind())
    kinds.add(_RandomStateKind(), _is_numpy("Generator", "RandomState", "BitGenerator"))
    kinds.add(_SeedKind(), _is_numpy("SeedSequence"))
    kinds.add(_RandomKind(), kinds.exactly(random.Random, random.SystemRandom))
