"""Writes a saved graph into fresh objects: partners in place, the others made anew."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from everstep.train.script.graph.kinds import Hopeless, Kind, by_name
from everstep.train.script.graph.memory import Targets
from everstep.train.script.graph.pair import Pairing
from everstep.train.script.graph.paths import path_of
from everstep.train.script.graph.poison import Poison
from everstep.train.script.graph.records import INLINE, MISSING, Captured, Restored, Space, Unrestorable, is_dunder

_HASHING = frozenset({"dict", "OrderedDict", "defaultdict", "set", "derived dict", "derived OrderedDict"})
_HASHING |= {"derived defaultdict", "derived set", "weak container"}


def restore(captured: Captured, spaces: Sequence[Space]) -> list[Restored]:
    """Write a saved graph into the objects that the spaces reach.

    Each saved object goes into the fresh object on the same access path if their types agree, one to one; what has no
    partner is made anew, and what can be neither is a `Poison`. After that the spaces' own names have to be set by the
    caller, as given.

    Raises:
        Unrestorable: nothing may go on; objects may have been changed in part.
    """
    with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
        filled = _Fill(captured, Pairing(captured, spaces))
        filled.run()
    fresh = {space.key: space.values for space in spaces}
    result = []
    for key, names, references in captured.roots:
        values = {name: filled.value(code) for name, code in zip(names, references, strict=True)}
        gone = tuple(name for name in fresh.get(key, {}) if name not in values and not is_dunder(name))
        result.append(Restored(key, values, gone))
    return result


class _Fill:
    """One restore."""

    def __init__(self, captured: Captured, pairing: Pairing) -> None:
        self.memory = Targets(captured)
        self._captured = captured
        self._nodes = captured.nodes
        self._pairing = pairing
        self._built: list[Any] = [MISSING] * len(captured.nodes)
        self._filled: set[int] = set()

    def value(self, code: Any) -> Any:
        """The object or value that a reference stands for."""
        cls = type(code)
        if cls is int:
            return self._built[code]
        return code[0] if cls is tuple else code

    def run(self) -> None:
        kinds_of = [by_name(name) for name, _, _ in self._nodes]
        self._seat(kinds_of)
        for number, kind in enumerate(kinds_of):
            partner = self._pairing.partners[number]
            if partner is not MISSING and (not kind.whole or number in self._pairing.found):
                self._built[number] = partner
        for number in range(len(self._nodes)):
            if self._built[number] is MISSING:
                self._make_with_needs(number)
        self.memory.write()
        last: list[int] = []
        for number, (name, _, _) in enumerate(self._nodes):
            if name in _HASHING or kinds_of[number].calls:
                last.append(number)
            else:
                self._fill(number)
        for number in reversed(last):
            self._fill(number)

    def _seat(self, kinds_of: list[Kind]) -> None:
        """Memory of partners is taken before any is made."""
        for number, kind in enumerate(kinds_of):
            seat: Callable[..., Any] | None = getattr(kind, "seat", None)
            if seat is None or self._pairing.partners[number] is MISSING:
                continue
            if seat(self._nodes[number][1], self._pairing.partners[number], self) is False:
                self._pairing.drop(number)

    # --- making ---------------------------------------------------------------------------------------------------

    def _make_with_needs(self, wanted: int) -> None:
        """Make a node after all that must exist before it, without recursion."""
        stack, open_nodes = [wanted], set[int]()
        while stack:
            number = stack[-1]
            if self._built[number] is not MISSING:
                stack.pop()
                continue
            if number in open_nodes:
                stack.pop()
                self._built[number] = self._made(number)
                continue
            open_nodes.add(number)
            needs = [code for code in self._needs(number) if self._built[code] is MISSING]
            if any(code in open_nodes for code in needs):
                self._built[number] = self._poison(number, "it contains itself in a way that cannot be made again")
                continue
            stack.extend(needs)

    def _needs(self, number: int) -> list[int]:
        name, extra, references = self._nodes[number]
        needs = [code for code in by_name(name).first(extra, references) if type(code) is int]
        if name in ("frozenset", "derived frozenset"):
            for code in self._hashed(needs):
                needs += [part for part in self._nodes[code][2] if type(part) is int and part != number]
        return needs

    def _hashed(self, codes: list[int]) -> list[int]:
        """Of these nodes and what their hashes depend on, the objects with a hash of their own."""
        found: list[int] = []
        todo = list(codes)
        while todo:
            code = todo.pop()
            name, _, references = self._nodes[code]
            if name == "object" and code not in found:
                found.append(code)
            elif name not in ("tuple", "frozenset"):
                continue
            todo.extend(part for part in references if type(part) is int and part not in found)
        return found

    def _made(self, number: int) -> Any:
        name, extra, references = self._nodes[number]
        kind = by_name(name)
        if name == "attributes":
            return vars(self._built[references[0]])
        needed = [self.value(code) for code in kind.first(extra, references)]
        if kind.whole and self._stays(number, kind, needed):
            return self._pairing.partners[number]
        poison = next((part for part in needed if type(part) is Poison), None)
        if poison is not None and (kind.calls or not kind.whole):
            return poison
        if name in ("frozenset", "derived frozenset"):
            for code in self._hashed([code for code in references if type(code) is int]):
                self._fill(code)
        try:
            return kind.make(extra, references, self)
        except Hopeless as hopeless:
            return self._poison(number, str(hopeless))
        except Unrestorable as error:
            raise Unrestorable(f"{path_of(self._captured, number)}: {error}") from None
        except Exception as error:  # code of the user's classes
            return self._poison(number, f"making it anew failed: {type(error).__name__}: {error}")

    def _stays(self, number: int, kind: Kind, needed: list[Any]) -> bool:
        """Whether a partner that is made at once would be made of the very same parts."""
        parts = self._pairing.aligned.get(number)
        if self._pairing.partners[number] is MISSING or parts is None or len(parts) < len(needed):
            return False
        references = self._nodes[number][2]
        if kind.name == "reduced" and not all(
            type(code) is not int or code in self._pairing.found for code in references
        ):
            return False
        return all(_same(*pair) for pair in zip(needed, parts, strict=False))

    def _poison(self, number: int, why: str) -> Poison:
        name, extra, _ = self._nodes[number]
        what = extra[0] if name == "problem" else name
        return Poison(path_of(self._captured, number), what, why)

    # --- filling --------------------------------------------------------------------------------------------------

    def _fill(self, number: int) -> None:
        thing = self._built[number]
        if number in self._filled or type(thing) is Poison:
            return
        self._filled.add(number)
        name, extra, references = self._nodes[number]
        try:
            by_name(name).fill(thing, extra, references, self)
        except Exception as error:
            where = path_of(self._captured, number)
            raise Unrestorable(f"{where} cannot be written: {type(error).__name__}: {error}") from error


def _same(value: Any, part: Any) -> bool:
    if value is part:
        return True
    cls = type(value)
    return cls is type(part) and (cls in INLINE or cls is int) and repr(value) == repr(part)
