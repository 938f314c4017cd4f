"""Numbers and texts of the script that are addresses: objects, and the memory of tensors, lie elsewhere in a relaunch.

``id(thing)`` is translated where it is a value, a key of a dict, or in a tuple that is one. What only follows from an
address (``hash(thing)``, ``tensor.data_ptr()``, a text with an ``id``) and sets of addresses are problems.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from everstep.train.script.graph.kinds import by_name
from everstep.train.script.graph.memory import Claims
from everstep.train.script.graph.records import Captured

LOWEST, HIGHEST = 1 << 32, 1 << 57
"""Between them lie all addresses."""
DIGITS = 9
"""A text that does not begin or end with so many holds none."""
_DIGITS = re.compile(r"\d{9,}")
_KEYS = {"dict": (0, 2), "OrderedDict": (0, 2), "defaultdict": (1, 2)}
"""Where the keys are among the references: the first, and how far from one to the next."""
_SETS = frozenset(["set", "frozenset", "derived set", "derived frozenset"])
_HELP = "use a name or a number instead"
_OF_MEMORY = f"it has an address of the memory of a tensor (data_ptr), which lies elsewhere in a relaunch; {_HELP}"
_HASH = f"it has the hash of an object, which is another one in a relaunch; {_HELP}"
_TEXT = f"it has the address of an object (id) in a text, which lies elsewhere in a relaunch; {_HELP}"
_SET = f"it holds addresses of objects; {_HELP}, or a dict"


class Addresses:
    """Of one capture: what may be an address is noted while things are taken apart, and looked at behind.

    Attributes:
        numbers, texts: of the script, that may be: between `LOWEST` and `HIGHEST`, with `DIGITS` digits.
    """

    def __init__(self) -> None:
        self.numbers: set[int] = set()
        self.texts: set[str] = set()

    def mark(
        self,
        captured: Captured,
        things: Sequence[object],
        numbers: dict[int, int],
        memory: Claims,
        *,
        problem: Callable[[int, object, str], Any],
        value: Callable[[object, str], int],
    ) -> None:
        """Mark them in the nodes.

        Args:
            captured: all was taken apart.
            things: objects by the numbers of their nodes. numbers: and the other way round, by ``id``.
            memory: of the tensors and arrays.
            problem: gives the node of a thing that cannot be rebuilt.
            value: makes a node for such a number or text, and gives its number.
        """
        suspects = {text: [int(found) for found in _DIGITS.findall(text)] for text in self.texts}
        every = self.numbers.union(*suspects.values()) if suspects else self.numbers
        ids = {address: numbers[address] for address in every if address in numbers}
        hashes = {h for h in self.numbers if h << 4 in numbers and h not in ids}
        hashes = {h for h in hashes if _hash_of(things[numbers[h << 4]]) == h}
        lying = _lying(captured, memory, every) - ids.keys() - hashes
        why: dict[Any, str] = {(address,): _OF_MEMORY for address in lying} | {(h,): _HASH for h in hashes}
        for text, found in suspects.items():
            if any(address in ids or address in lying for address in found):
                why[text] = _TEXT
        known = {(address,): ("id", number) for address, number in ids.items()}
        if known or why:
            _Marking(captured, things, known, why, problem=problem, value=value).run()


def _hash_of(thing: object) -> int | None:
    return object.__hash__(thing) if type(thing).__hash__ is object.__hash__ else None


def _lying(captured: Captured, memory: Claims, among: set[int]) -> set[int]:
    """Of these numbers, those at which a tensor, an array or its storage begins."""
    found: set[int] = set()
    if among:
        for kind, extra, _ in captured.nodes:
            place = by_name(kind).shown(extra)[1]
            if place is not None:
                base = memory.base(place.claim)
                found |= {one for one in (base, base + place.offset) if one in among}
    return found


class _Marking:
    def __init__(
        self,
        captured: Captured,
        things: Sequence[object],
        known: dict[Any, tuple[str, int]],
        why: dict[Any, str],
        *,
        problem: Callable[[int, object, str], Any],
        value: Callable[[object, str], int],
    ) -> None:
        self._nodes, self._roots = captured.nodes, captured.roots
        self._things, self._problem, self._value = things, problem, value
        self._known, self._why = known, why
        self._moving: dict[int, str] = {}
        """Tuples with addresses: what is wrong with them, "" if they are translated."""

    def run(self) -> None:
        tuples = [number for number, (kind, _, _) in enumerate(self._nodes) if kind in ("tuple", "frozenset")]
        going = True
        while going:
            going = False
            for number in tuples:
                found = self._found(self._nodes[number][2])
                if found is not None and self._moving.get(number, None) != found:
                    self._moving[number] = found
                    going = True
        for number in range(len(self._nodes)):
            self._node(number)
        for _, _, references in self._roots:
            references[:] = self._told(references)

    def _found(self, references: Sequence[Any]) -> str | None:
        """What is wrong with the addresses among these, "" if nothing is; None if there are none."""
        found = None
        for code in references:
            cls = type(code)
            one = self._moving.get(code) if cls is int else None
            if cls is str or cls is tuple:
                one = self._why.get(code) or ("" if code in self._known else None)
            if one:
                return one
            found = one if found is None else found
        return found

    def _node(self, number: int) -> None:
        kind, extra, references = self._nodes[number]
        lead, stride = _KEYS.get(kind, (0, 1))
        hashed = kind in _KEYS or kind in _SETS or kind == "tuple"
        found = self._found(references[lead::stride]) if hashed else None
        if found or (found is not None and kind in _SETS):
            self._nodes[number] = self._problem(number, self._things[number], found or _SET)
        elif references:
            told = self._told(references)
            self._nodes[number] = (kind, extra, told) if told != references else self._nodes[number]

    def _told(self, references: list[Any]) -> list[Any]:
        return [self._one(code) if type(code) in (tuple, str) else code for code in references]

    def _one(self, code: Any) -> Any:
        if code in self._known:
            return self._known[code]
        if code in self._why:
            return self._value(code[0] if type(code) is tuple else code, self._why[code])
        return code
