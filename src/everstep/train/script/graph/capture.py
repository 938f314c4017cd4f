"""Takes an object graph apart, breadth first, into plain data."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from everstep.train.script.graph import kinds_live, shared_bytes
from everstep.train.script.graph.addresses import DIGITS, HIGHEST, LOWEST, Addresses
from everstep.train.script.graph.kinds import Hopeless, by_name, kind_of
from everstep.train.script.graph.kinds_generators import mark_own_cells
from everstep.train.script.graph.memory import Claims, Piece, digest_of
from everstep.train.script.graph.paths import path_of
from everstep.train.script.graph.records import (
    INLINE,
    Captured,
    Made,
    Memory,
    Problem,
    Settings,
    Space,
    is_dunder,
)
from everstep.train.script.graph.state import getattr_dict
from everstep.train.script.unseen import unseen


def capture(spaces: Sequence[Space], settings: Settings | None = None) -> Captured:
    """A consistent copy of all objects that the spaces reach.

    What cannot be rebuilt is in ``problems``, and `restore` puts a `Poison` in its place; nothing is left out silently.
    Memory is copied once, however many tensors share it, or not at all (``Settings.live``).
    """
    with undisturbed():
        return _Walk(settings or Settings(), spaces).run(spaces)


def setup_digests(spaces: Sequence[Space], settings: Settings | None = None) -> dict[Memory, Made]:
    """The large memory that the spaces reach, for ``Settings.made_by_setup``, without what is trained.

    To be called when the setup of the script is over and no step was done; costs one pass over that memory.
    """
    with undisturbed():
        return _Walk(settings or Settings(), spaces).made(spaces)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """No gradients, nothing of the user's that looks on, no collections in between (they cost half of the time)."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        with unseen(), torch.inference_mode(False), torch.no_grad():
            yield
    finally:
        if collecting:
            gc.enable()


class _Walk:
    """One capture. ``_things`` is the queue and keeps everything alive, so that an id stands for one object."""

    def __init__(self, settings: Settings, spaces: Sequence[Space]) -> None:
        self.settings = settings
        self.memory = Claims()
        self._modules = {name for space in spaces if isinstance(name := space.values.get("__name__"), str)}
        self._modules |= {space.key.removeprefix("module ") for space in spaces if space.key.startswith("module ")}
        self._captured = Captured()
        self._singletons = kinds_live.singletons()
        self._things: list[object] = []
        self._numbers: dict[int, int] = {}
        self._owners: dict[int, int] = {}
        self._addresses = Addresses()
        self._hopeless: list[tuple[int, str, str]] = []

    def is_user(self, module: str | None) -> bool:
        return module is not None and (module in self._modules or self.settings.is_user(module))

    def run(self, spaces: Sequence[Space]) -> Captured:
        self._go(spaces)
        captured = self._captured
        self.memory.copy_into(captured, self._left_out(), live=self.settings.live)
        captured.hook_ids = RemovableHandle.next_id
        captured.problems = [Problem(path_of(captured, number), what, why) for number, what, why in self._hopeless]
        return captured

    def made(self, spaces: Sequence[Space]) -> dict[Memory, Made]:
        """See `setup_digests`."""
        self._go(spaces)
        large = [piece for piece in self.memory.pieces() if piece.memory[2] >= self.settings.large_bytes]
        found = {}
        for piece, spanning in zip(large, self._spanning(large), strict=True):
            if spanning and not any(getattr(self._things[number], "requires_grad", False) for number in spanning):
                found[piece.memory] = Made(digest_of(piece.data().cpu()), path_of(self._captured, spanning[0]))
        return found

    def _left_out(self) -> dict[Memory, Made]:
        """What is as the setup had made it, and where."""
        known = self.settings.made_by_setup
        candidates = [piece for piece in self.memory.pieces() if piece.memory in known] if known else []
        found = {}
        for piece, spanning in zip(candidates, self._spanning(candidates), strict=True):
            made = known[piece.memory]
            there = any(path_of(self._captured, number) == made.where for number in spanning)
            if there and digest_of(piece.data().cpu()) == made.digest:
                found[piece.memory] = made
            else:
                del known[piece.memory]
        return found

    def _spanning(self, pieces: Sequence[Piece]) -> list[list[int]]:
        """Per piece the tensors and arrays that reach over all of it."""
        found: list[list[int]] = [[] for _ in pieces]
        index = {claim: number for number, piece in enumerate(pieces) for claim in piece.claims}
        for number, (kind, extra, _) in enumerate(self._captured.nodes if index else ()):
            place = by_name(kind).shown(extra)[1]
            at = None if place is None else index.get(place.claim)
            if at is not None and place is not None and place.length == pieces[at].memory[2]:
                found[at].append(number)
        return found

    def _go(self, spaces: Sequence[Space]) -> None:
        """Take everything apart, and claim its memory."""
        captured = self._captured
        for space in spaces:
            names = [name for name in space.values if not is_dunder(name)]
            captured.roots.append((space.key, names, self._references([space.values[name] for name in names])))
        for number, thing in enumerate(self._things):
            captured.nodes.append(self._node(number, thing))
        self._mark_attribute_dicts()
        self._addresses.mark(
            captured, self._things, self._numbers, self.memory, problem=self._problem, value=self._bad_value
        )
        shared_bytes.mark(self._things, self.memory, self._hold_back)
        mark_own_cells(captured)

    def _node(self, number: int, thing: object) -> tuple[str, Any, list[Any]]:
        singleton = self._singletons.get(id(thing))
        if singleton is not None:
            return ("singleton", singleton, [])
        try:
            kind = kind_of(thing)
            extra, parts = kind.take(thing, self)
        except Hopeless as hopeless:
            return self._problem(number, thing, str(hopeless))
        except Exception as error:  # code of the user's classes, or an object unlike any that was foreseen
            return self._problem(number, thing, f"taking it apart failed: {type(error).__name__}: {error}")
        if kind.name == "object" and (attributes := getattr_dict(thing)) is not None:
            self._owners[id(attributes)] = number
        return (kind.name, extra, self._references(parts))

    def _problem(self, number: int, thing: object, why: str) -> tuple[str, Any, list[Any]]:
        what = f"{type(thing).__module__}.{type(thing).__qualname__}".removeprefix("builtins.")
        self._hopeless.append((number, what, why))
        return ("problem", (what, why), [])

    def _hold_back(self, number: int, thing: object, why: str) -> None:
        self._captured.nodes[number] = self._problem(number, thing, why)

    def _references(self, parts: Sequence[object]) -> list[Any]:
        numbers, things, addresses = self._numbers, self._things, self._addresses
        references: list[Any] = []
        for part in parts:
            cls = type(part)
            if cls in INLINE:
                references.append(part)
                if cls is str and len(part) >= DIGITS and (part[-DIGITS:].isdecimal() or part[:DIGITS].isdecimal()):  # type: ignore[arg-type, index]
                    addresses.texts.add(part)  # type: ignore[arg-type]
            elif cls is int:
                references.append((part,))
                if LOWEST < part < HIGHEST:  # type: ignore[operator]
                    addresses.numbers.add(part)  # type: ignore[arg-type]
            else:
                number = numbers.get(id(part))
                if number is None:
                    number = numbers[id(part)] = len(things)
                    things.append(part)
                references.append(number)
        return references

    def _bad_value(self, value: object, why: str) -> int:
        """The number of a node for a number or a text that is of no use in a relaunch."""
        number = len(self._things)
        self._things.append(value)
        self._captured.nodes.append(self._problem(number, value, why))
        return number

    def _mark_attribute_dicts(self) -> None:
        """A dict that is the ``__dict__`` of an object (`vars(args)`) comes back as that."""
        nodes = self._captured.nodes
        for identity, owner in self._owners.items():
            number = self._numbers.get(identity)
            if number is not None and nodes[number][0] == "dict":
                nodes[number] = ("attributes", None, [owner])
