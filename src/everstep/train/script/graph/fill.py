"""Writes a saved graph into fresh objects: partners in place, the others made anew."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch.utils.hooks import RemovableHandle

from everstep.train.script.graph import kinds_generators
from everstep.train.script.graph.capture import undisturbed
from everstep.train.script.graph.kinds import Hopeless, Kind, by_name
from everstep.train.script.graph.memory import Place, Targets, Writes
from everstep.train.script.graph.pair import Pairing
from everstep.train.script.graph.paths import path_of
from everstep.train.script.graph.poison import Poison
from everstep.train.script.graph.records import (
    INLINE,
    MISSING,
    Captured,
    Made,
    Memory,
    Restored,
    Space,
    Unrestorable,
    is_dunder,
)

_LATE = object()
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
    return Restoring(captured).final(spaces)


class Restoring:
    """Writes one save into one relaunch: any number of times on its way, and at last for good."""

    def __init__(self, captured: Captured) -> None:
        self._captured = captured
        self._writes = Writes(final=False)

    @property
    def made_by_setup(self) -> dict[Memory, Made]:
        """After `final`: for ``Settings.made_by_setup`` of the saves to come."""
        return self._writes.made

    def early(self, spaces: Sequence[Space]) -> list[Restored]:
        """As `restore`, but of the spaces that are there alone; what the setup has yet to make is a `Poison`."""
        keys = {space.key for space in spaces}
        roots = [references for key, _, references in self._captured.roots if key in keys]
        restored = self._restore(spaces, _reachable(self._captured, roots))
        kinds_generators.not_for_good()
        return restored

    def final(self, spaces: Sequence[Space]) -> list[Restored]:
        """As `restore`."""
        self._writes.final = True
        restored = self._restore(spaces, range(len(self._captured.nodes)))
        kinds_generators.let_go()
        return restored

    def _restore(self, spaces: Sequence[Space], numbers: Sequence[int]) -> list[Restored]:
        captured, final = self._captured, self._writes.final
        with undisturbed():
            filled = _Fill(captured, Pairing(captured, spaces), self._writes)
            filled.run(numbers)
        RemovableHandle.next_id = max(RemovableHandle.next_id, captured.hook_ids)
        fresh = {space.key: space.values for space in spaces}
        result = []
        for key, names, references in captured.roots:
            if final or key in fresh:
                values = {name: filled.value(code) for name, code in zip(names, references, strict=True)}
                gone = tuple(name for name in fresh.get(key, {}) if name not in values and not is_dunder(name))
                result.append(Restored(key, values, gone))
        return result


def _node_of(code: Any) -> int | None:
    """The node that a reference leads to, also where it stands for its address."""
    if type(code) is int:
        return code
    return code[1] if type(code) is tuple and len(code) > 1 else None


def _reachable(captured: Captured, roots: Iterable[Sequence[Any]]) -> list[int]:
    """Numbers of the nodes that these references lead to, in order."""
    seen = bytearray(len(captured.nodes))
    todo = [code for references in roots for code in references]
    while todo:
        code = _node_of(todo.pop())
        if code is not None and not seen[code]:
            seen[code] = 1
            todo.extend(captured.nodes[code][2])
    return [number for number, reached in enumerate(seen) if reached]


class _Fill:
    """One restore."""

    def __init__(self, captured: Captured, pairing: Pairing, writes: Writes) -> None:
        self.memory = Targets(captured, writes)
        self._captured = captured
        self._nodes = captured.nodes
        self._pairing = pairing
        self._final = writes.final
        self._built: list[Any] = [MISSING] * len(captured.nodes)
        self._filled: set[int] = set()
        self._late_now = False
        self._frames = [key for key, _, _ in captured.roots if key.startswith("frame ")]

    def value(self, code: Any) -> Any:
        """The object or value that a reference stands for."""
        cls = type(code)
        if cls is int:
            return self._built[code]
        if cls is tuple:
            return code[0] if len(code) == 1 else self._address(code[1])
        return code

    def _address(self, number: int) -> Any:
        thing = self._built[number]
        return thing if thing is _LATE else id(thing)

    def paired(self, code: Any) -> bool:
        """Whether a reference stands for an object that the relaunch had made itself."""
        if type(code) is not int or self._built[code] is self._pairing.partners[code]:
            return True
        name, extra, _ = self._nodes[code]
        return by_name(name).anew(extra)

    def running(self, module: str, function: str) -> bool:
        """Whether a function (qualified name) was running at the save, outside of generators."""
        return any(key.split(" ", 2)[2] == f"{module}.{function}" for key in self._frames)

    def run(self, everything: Sequence[int]) -> None:
        """Restore these nodes; what they refer to must be among them."""
        kinds_of = [by_name(name) for name, _, _ in self._nodes]
        self._seat(everything, kinds_of)
        for number in everything:
            partner, kind = self._pairing.partners[number], kinds_of[number]
            if partner is MISSING or kind.anew(self._nodes[number][1]):
                continue
            if not kind.whole or number in self._pairing.found:
                self._built[number] = partner
        self.memory.write()
        self._make(everything)
        self._fill_all(everything, kinds_of)
        late = [number for number in everything if self._built[number] is _LATE]
        if late:
            self._second_round(late, everything, kinds_of)
        for number in everything:
            if kinds_of[number].late:
                self._fill(number)

    def _second_round(self, late: list[int], everything: Sequence[int], kinds_of: list[Kind]) -> None:
        """What is made when all else is restored, and what was written before without it."""
        self._late_now = True
        for number in late:
            self._built[number] = MISSING
        self._make(late)
        waiting = set(late)
        again = [number for number in everything if self._refers_to(number, waiting)]
        self._filled -= set(again)
        self._filled |= {number for number in late if kinds_of[number].late}
        self._fill_all([*again, *late], kinds_of)

    def _refers_to(self, number: int, others: set[int]) -> bool:
        return any(_node_of(code) in others for code in self._nodes[number][2])

    def _make(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            if self._built[number] is MISSING:
                self._make_with_needs(number)

    def _fill_all(self, numbers: Iterable[int], kinds_of: list[Kind]) -> None:
        """What hashes its parts, or gives them to code, is filled after the rest, from the leaves up."""
        last: list[int] = []
        for number in numbers:
            if self._nodes[number][0] in _HASHING or kinds_of[number].calls:
                last.append(number)
            elif not kinds_of[number].late:
                self._fill(number)
        for number in reversed(last):
            self._fill(number)

    def _seat(self, everything: Sequence[int], kinds_of: list[Kind]) -> None:
        """Memory of partners is taken first; then what is left gets memory of its own, so that all is written."""
        for number in everything:
            seat: Callable[..., Any] | None = getattr(kinds_of[number], "seat", None)
            if seat is None or self._pairing.partners[number] is MISSING:
                continue
            if seat(self._nodes[number][1], self._pairing.partners[number], self) is False:
                self._pairing.drop(number)
        for number in everything:
            place = kinds_of[number].shown(self._nodes[number][1])[1]
            if place is not None:
                self._claim(number, place)

    def _claim(self, number: int, place: Place) -> None:
        try:
            self.memory.storage(place)
        except Unrestorable as error:
            if self._final:
                raise Unrestorable(f"{path_of(self._captured, number)}: {error}") from None
            self._pairing.drop(number)
            self._built[number] = self._poison(number, f"{error}, not yet")

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
        needs = [at for code in by_name(name).first(extra, references) if (at := _node_of(code)) is not None]
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
        if kind.late and not self._late_now:
            return _LATE
        if name == "attributes":
            return vars(self._built[references[0]])
        needed = [self.value(code) for code in kind.first(extra, references)]
        if any(part is _LATE for part in needed):
            return _LATE
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
        except Exception as error:  # code of the user's classes
            return self._poison(number, f"making it anew failed: {type(error).__name__}: {error}")

    def _stays(self, number: int, kind: Kind, needed: list[Any]) -> bool:
        """Whether a partner that is made at once would be made of the very same parts."""
        partner, parts = self._pairing.partners[number], self._pairing.aligned.get(number)
        if partner is MISSING or parts is None or len(parts) < len(needed):
            return False
        if kind.name == "reduced" and type(partner).__name__ not in _PLACED_ITERATORS:
            # Its parts may be copies that it made of itself to be taken apart: only names are sure to be parts of it.
            references = self._nodes[number][2]
            if any(type(code) is int and code not in self._pairing.found for code in references):
                return False
        return all(_same(*pair) for pair in zip(needed, parts, strict=False))

    def _poison(self, number: int, why: str) -> Poison:
        name, extra, _ = self._nodes[number]
        what = extra[0] if name == "problem" else name
        return Poison(path_of(self._captured, number), what, why)

    # --- filling --------------------------------------------------------------------------------------------------

    def _fill(self, number: int) -> None:
        thing = self._built[number]
        if number in self._filled or type(thing) is Poison or thing is _LATE:
            return
        name, extra, references = self._nodes[number]
        if by_name(name).calls and any(self.value(code) is _LATE for code in references):
            return
        self._filled.add(number)
        try:
            by_name(name).fill(thing, extra, references, self)
        except Exception as error:
            where = path_of(self._captured, number)
            raise Unrestorable(f"{where} cannot be written: {type(error).__name__}: {error}") from error


# Their arguments are the objects that they go over, and `__setstate__` puts them to any place.
_PLACED_ITERATORS = frozenset({"list_iterator", "tuple_iterator", "range_iterator", "bytes_iterator"})


def _same(value: Any, part: Any) -> bool:
    if value is part:
        return True
    cls = type(value)
    return cls is type(part) and (cls in INLINE or cls is int) and repr(value) == repr(part)
