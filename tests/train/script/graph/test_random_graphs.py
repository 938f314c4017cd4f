"""Any graph of objects comes back as it was, whatever the fresh objects look like."""

from __future__ import annotations

import pickle
import types
from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.train.script import graph


class Plain:
    pass


class Slim:
    __slots__ = ("a", "b")


class Kept(list[Any]):
    pass


@dataclass(frozen=True)
class Frozen:
    a: Any
    b: Any

    def __hash__(self) -> int:
        return hash((type(self), repr(self.b)))


ATOMS = [None, True, 0, -1, 1 << 70, 0.5, -0.0, "", "text", b"raw", 1j, ...]
MAKERS = [
    "list",
    "dict",
    "tuple",
    "plain",
    "slim",
    "kept",
    "deque",
    "ordered",
    "frozen",
    "tensor",
    "view",
    "set",
    "cell",
]
# Each object: what it is, and the numbers of the earlier objects (or atoms) that it is made of.
OBJECTS = st.lists(
    st.tuples(st.sampled_from(MAKERS), st.lists(st.integers(0, 40), max_size=4)), min_size=1, max_size=25
)
LATER = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=6)


def made(kind: str, parts: list[Any], tensors: list[torch.Tensor]) -> Any:
    if kind in ("list", "kept", "deque", "tuple"):
        return {"list": list, "kept": Kept, "deque": deque, "tuple": tuple}[kind](parts)
    if kind in ("dict", "ordered"):
        return {"dict": dict, "ordered": OrderedDict}[kind](enumerate(parts))
    if kind == "set":
        return {part for part in parts if isinstance(part, (int, str, Frozen, Plain, float, bytes))}
    if kind == "cell":
        return types.CellType(parts)
    if kind == "tensor" or (kind == "view" and not tensors):
        tensors.append(torch.full((len(parts) + 2,), float(len(tensors))))
        return tensors[-1]
    if kind == "view":
        return tensors[len(parts) % len(tensors)][1:]
    if kind == "frozen":
        return Frozen(parts, len(parts))
    thing: Any = Plain() if kind == "plain" else Slim()
    for name, part in zip("ab", parts, strict=False):
        setattr(thing, name, part)
    return thing


def build(recipe: list[tuple[str, list[int]]], later: list[tuple[int, int]]) -> dict[str, Any]:
    """Objects over earlier objects, then references to later ones, which makes cycles."""
    things: list[Any] = list(ATOMS)
    tensors: list[torch.Tensor] = []
    for kind, numbers in recipe:
        things.append(made(kind, [things[number % len(things)] for number in numbers], tensors))
    for holder, part in later:
        thing, value = things[holder % len(things)], things[part % len(things)]
        if isinstance(thing, (list, deque)):
            thing.append(value)
        elif isinstance(thing, dict):
            thing[len(thing)] = value
        elif isinstance(thing, (Plain, Slim)):
            thing.a = value
    return {f"x{number}": thing for number, thing in enumerate(things[-6:])}


@settings(max_examples=300, deadline=None)
@given(OBJECTS, LATER, OBJECTS, LATER)
def test_any_graph_comes_back_into_any_other(
    recipe: list[tuple[str, list[int]]],
    later: list[tuple[int, int]],
    fresh: list[tuple[str, list[int]]],
    fresh_later: list[tuple[int, int]],
) -> None:
    captured = graph.capture([graph.Space("module m", build(recipe, later))])
    assert captured.problems == []
    for target in (build(fresh, fresh_later), build(recipe, []), {}):
        [restored] = graph.restore(pickle.loads(pickle.dumps(captured)), [graph.Space("module m", target)])
        assert set(restored.gone) == set(target) - set(restored.values)
        again = graph.capture([graph.Space("module m", dict(restored.values))])
        assert graph.difference(captured, again) is None
        assert graph.digest(captured) == graph.digest(again)


@settings(max_examples=100, deadline=None)
@given(OBJECTS, LATER)
def test_equal_graphs_keep_their_objects(recipe: list[tuple[str, list[int]]], later: list[tuple[int, int]]) -> None:
    captured = graph.capture([graph.Space("module m", build(recipe, later))])
    target = build(recipe, later)
    [restored] = graph.restore(captured, [graph.Space("module m", dict(target))])
    for name, thing in target.items():
        if isinstance(thing, (list, dict, deque, Plain, Slim, torch.Tensor, tuple)):
            assert restored.values[name] is thing
