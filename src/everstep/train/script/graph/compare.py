"""Compares saved graphs: the first object in which two of them differ, and a digest that is equal if none does."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from everstep.train.script.graph.kinds import by_name
from everstep.train.script.graph.memory import Place, digest_of
from everstep.train.script.graph.paths import path_of
from everstep.train.script.graph.records import Captured, Region

_UNORDERED = frozenset({"set", "frozenset"})


class _Queue:
    """Breadth first, with what has no order of its own at the end, when its entries are known by other ways."""

    def __init__(self) -> None:
        self._queue: deque[Any] = deque()
        self._unordered: deque[Any] = deque()

    def put(self, entry: Any, captured: Captured, number: int) -> None:
        (self._unordered if _is_unordered(captured, number) else self._queue).append(entry)

    def __bool__(self) -> bool:
        return bool(self._queue or self._unordered)

    def get(self) -> Any:
        return (self._queue or self._unordered).popleft()


def difference(a: Captured, b: Captured) -> str | None:
    """The first object, breadth first, that is not the same in both: its access path and both values; None if all are.

    Same means: same kinds, values, bytes and aliasing, reached by the same names in the same spaces.
    """
    return _Comparison(a, b).run()


def digest(captured: Captured) -> str:
    """Hexadecimal digest: equal for two graphs of which `difference` is None."""
    total = hashlib.sha256()
    for line in _lines(captured):
        total.update(line)
        total.update(b"\n")
    return total.hexdigest()


@dataclass
class _Comparison:
    a: Captured
    b: Captured
    there: dict[int, int] = field(default_factory=dict)
    back: dict[int, int] = field(default_factory=dict)
    memory: dict[int, tuple[int, int]] = field(default_factory=dict)
    queue: _Queue = field(default_factory=_Queue)

    def run(self) -> str | None:
        theirs = {key: dict(zip(names, codes, strict=True)) for key, names, codes in self.b.roots}
        for key, names, codes in self.a.roots:
            other = theirs.pop(key, None)
            if other is None:
                return f"{key}: only in the first"
            for name, code in zip(names, codes, strict=True):
                if name not in other:
                    return f"{key}: {name}: only in the first"
                found = self._meet(code, other.pop(name))
                if found is not None:
                    return f"{key}: {name}: {found}"
            if other:
                return f"{key}: {next(iter(other))}: only in the second"
        if theirs:
            return f"{next(iter(theirs))}: only in the second"
        return self._walk()

    def _walk(self) -> str | None:
        while self.queue:
            one, other = self.queue.get()
            found = self._nodes(one, other)
            if found is not None:
                position, text = found
                where = path_of(self.a, one)
                if position is not None:
                    kind, extra, references = self.a.nodes[one]
                    where += by_name(kind).step(extra, references, position)
                return f"{where}: {text}"
        return None

    def _meet(self, code: Any, other: Any) -> str | None:
        """Two references; what is different about them."""
        if type(code) is tuple and type(other) is tuple and len(code) == len(other) == 2:
            return self._meet(code[1], other[1])
        if type(code) is not int or type(other) is not int:
            same = type(code) is type(other) and repr(code) == repr(other)
            return None if same else f"{self._shown(self.a, code)} and {self._shown(self.b, other)}"
        if code not in self.there and other not in self.back:
            self.there[code], self.back[other] = other, code
            self.queue.put((code, other), self.a, code)
            return None
        if self.there.get(code) == other:
            return None
        return "the same object as another one in only one of the two"

    def _nodes(self, one: int, other: int) -> tuple[int | None, str] | None:
        kind, extra, references = self.a.nodes[one]
        kind_b, extra_b, references_b = self.b.nodes[other]
        if kind != kind_b:
            return None, f"{kind} and {kind_b}"
        plain, place = by_name(kind).shown(extra)
        plain_b, place_b = by_name(kind).shown(extra_b)
        if repr(plain) != repr(plain_b):
            return None, f"{_short(plain)} and {_short(plain_b)}"
        if len(references) != len(references_b):
            return None, f"{len(references)} and {len(references_b)} parts"
        if place is not None and place_b is not None and (text := self._bytes(place, place_b)) is not None:
            return None, text
        if _is_unordered(self.a, one):
            known = {code: number for number, code in enumerate(self.there)}
            references = _ordered(self.a, references, known)
            references_b = _ordered(self.b, references_b, {self.there[code]: number for code, number in known.items()})
        for position, pair in enumerate(zip(references, references_b, strict=True)):
            text = self._meet(*pair)
            if text is not None:
                return position, text
        return None

    def _bytes(self, place: Place, other: Place) -> str | None:
        region, inside = self.a.located(place.claim, place.offset)
        region_b, inside_b = self.b.located(other.claim, other.offset)
        shift = (region_b, inside_b - inside)
        if place.length and self.memory.setdefault(region, shift) != shift:
            return "memory shared with another one in only one of the two"
        same = place.length == other.length and _equal_bytes(
            self.a, (region, inside), self.b, (region_b, inside_b), place.length
        )
        return None if same else "other values"

    def _shown(self, captured: Captured, code: Any) -> str:
        if type(code) is int:
            return captured.nodes[code][0]
        return _short(code[0] if type(code) is tuple and len(code) == 1 else code)


def _equal_bytes(a: Captured, at: tuple[int, int], b: Captured, at_b: tuple[int, int], length: int) -> bool:
    one, other = a.regions[at[0]], b.regions[at_b[0]]
    if one.block is None or other.block is None:
        return _left_out(one) == _left_out(other)
    bytes_a, bytes_b = a.region_bytes(one)[at[1] :], b.region_bytes(other)[at_b[1] :]
    return torch.equal(bytes_a[:length], bytes_b[:length])


def _is_unordered(captured: Captured, number: int) -> bool:
    kind, extra, _ = captured.nodes[number]
    return kind in _UNORDERED or (kind == "weak container" and extra == "WeakSet")


def _ordered(captured: Captured, references: list[Any], known: dict[int, int]) -> list[Any]:
    """Values sorted, then objects that were met before, then the others by what they look like."""

    def look(code: int) -> tuple[int, str]:
        kind, extra, parts = captured.nodes[code]
        plain = by_name(kind).shown(extra)[0]
        return known.get(code, len(known)), repr((kind, plain, [part for part in parts if type(part) is not int]))

    values = [code for code in references if type(code) is not int]
    return [*sorted(values, key=repr), *sorted((code for code in references if type(code) is int), key=look)]


def _lines(captured: Captured) -> Iterator[bytes]:
    numbers: dict[int, int] = {}
    regions: dict[int, tuple[int, int]] = {}
    queue = _Queue()

    def reference(code: Any) -> str:
        if type(code) is tuple and len(code) == 2:
            return f"id of {reference(code[1])}"
        if type(code) is not int:
            return repr(code)
        if code not in numbers:
            numbers[code] = len(numbers)
            queue.put(code, captured, code)
        return f"#{numbers[code]}"

    for key, names, codes in sorted(captured.roots):
        for name, code in sorted(zip(names, codes, strict=True), key=lambda pair: pair[0]):
            yield f"{key}: {name} = {reference(code)}".encode("utf-8", "surrogatepass")
    while queue:
        number = queue.get()
        kind, extra, references = captured.nodes[number]
        plain, place = by_name(kind).shown(extra)
        parts = _ordered(captured, references, numbers) if _is_unordered(captured, number) else references
        yield repr((kind, plain, [reference(code) for code in parts])).encode("utf-8", "surrogatepass")
        if place is not None and place.length:
            region, inside = captured.located(place.claim, place.offset)
            order, begin = regions.setdefault(region, (len(regions), inside))
            yield f"{order} {inside - begin}".encode()
            yield _place_digest(captured, region, inside, place.length)


def _place_digest(captured: Captured, number: int, inside: int, length: int) -> bytes:
    region = captured.regions[number]
    if region.block is None:
        return _left_out(region).encode()
    return digest_of(captured.region_bytes(region)[inside : inside + length]).encode()


def _left_out(region: Region) -> str:
    """The digest of what was left out; "" for no memory at all."""
    return "" if region.made is None else region.made.digest


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else text[:200] + "..."
