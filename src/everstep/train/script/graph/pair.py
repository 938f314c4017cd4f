"""Finds for each saved object the fresh one that takes its state: by name, or by the same access path."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from everstep.train.script.graph import kinds_live
from everstep.train.script.graph.kinds import by_name, kind_of
from everstep.train.script.graph.records import INLINE, MISSING, Captured, Space


class Pairing:
    """One to one, breadth first from the spaces in the order of the save, first come first served.

    Attributes:
        partners: fresh object per saved node, MISSING if it has none.
        aligned: for nodes with a partner, the partner's parts in the order of the node's references.
        found: nodes whose object was found by its name.
    """

    def __init__(self, captured: Captured, spaces: Sequence[Space]) -> None:
        self._nodes = captured.nodes
        self.partners: list[Any] = [MISSING] * len(captured.nodes)
        self.aligned: dict[int, Sequence[object]] = {}
        self.found: set[int] = set()
        self._taken: dict[int, object] = {}
        self._queue: deque[int] = deque()
        self._keyed: list[int] = []
        self._singletons = kinds_live.singletons()
        self._find_by_name()
        fresh = {space.key: space.values for space in spaces}
        for key, names, references in captured.roots:
            values = fresh.get(key, {})
            self._meet(references, [values.get(name, MISSING) for name in names])
        self._walk()

    def drop(self, number: int) -> None:
        """The partner cannot be written in place after all; one is made."""
        self.partners[number] = MISSING
        self.aligned.pop(number, None)

    def _find_by_name(self) -> None:
        for number, (name, extra, _) in enumerate(self._nodes):
            thing = by_name(name).find(extra)
            if thing is not MISSING and id(thing) not in self._taken:
                self._take(number, thing)
                self.found.add(number)
                self._queue.append(number)

    def _take(self, number: int, thing: object) -> None:
        self.partners[number] = thing
        self._taken[id(thing)] = thing

    def _meet(self, references: Sequence[Any], parts: Sequence[object]) -> None:
        for code, part in zip(references, parts, strict=False):
            if type(code) is int and part is not MISSING and type(part) not in INLINE:
                self._try(code, part)

    def _try(self, number: int, thing: object) -> None:
        if self.partners[number] is not MISSING or id(thing) in self._taken or id(thing) in self._singletons:
            return
        name, extra, references = self._nodes[number]
        if name == "attributes":
            return
        kind = kind_of(thing)
        if kind.name != name:
            return
        parts = kind.align(extra, references, thing)
        if parts is None or not self._class_agrees(name, references, parts):
            return
        self._take(number, thing)
        self.aligned[number] = parts
        self._queue.append(number)

    def _class_agrees(self, name: str, references: list[Any], parts: Sequence[object]) -> bool:
        """Classes come first among the parts, where they are parts: they must be the same."""
        # Not `isinstance`: that would be a use of a `Poison`.
        if not references or not issubclass(type(parts[0]), type) or type(references[0]) is not int:
            return True
        if self._nodes[references[0]][0] != "class":
            return True
        self._try(references[0], parts[0])
        return self.partners[references[0]] is parts[0]

    def _walk(self) -> None:
        while self._queue or self._keyed:
            while self._queue:
                self._go_on(self._queue.popleft())
            keyed, self._keyed = self._keyed, []
            for number in keyed:
                self._by_key(number)

    def _go_on(self, number: int) -> None:
        name, extra, references = self._nodes[number]
        parts = self.aligned.get(number)
        if parts is None:
            parts = by_name(name).align(extra, references, self.partners[number])
            if parts is None:
                return
            self.aligned[number] = parts
        self._meet(references, parts)
        if name in _KEYED and any(type(code) is int for code in references[by_name(name).lead :: 2]):  # type: ignore[attr-defined]
            self._keyed.append(number)

    def _by_key(self, number: int) -> None:
        """Values of a dict whose keys are objects: under the key's partner."""
        name, _, references = self._nodes[number]
        fresh, lead = self.partners[number], by_name(name).lead  # type: ignore[attr-defined]
        for position in range(lead, len(references), 2):
            key = references[position]
            if type(key) is int and self.partners[key] is not MISSING and type(references[position + 1]) is int:
                try:
                    value = dict.get(fresh, self.partners[key], MISSING)
                except Exception:  # the hash of a user's object
                    continue
                if value is not MISSING:
                    self._try(references[position + 1], value)


_KEYED = frozenset({"dict", "OrderedDict", "defaultdict"})
