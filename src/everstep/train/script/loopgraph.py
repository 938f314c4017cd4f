"""Iterators that a loop goes over and a variable may hold as well.

Either both come back from the object graph, as the one object that they are, or the loop is advanced by itself and the
variable refuses when it is used. The first is tried with generators of the user's, and with ``enumerate`` and the like
where a save has found that a variable holds one of them.
"""

from __future__ import annotations

import gc
import itertools
import sys
import types
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from everstep.train.script.advance import Watched, is_plain, wrappers
from everstep.train.script.batches import Batches
from everstep.train.script.graph import Captured, Space
from everstep.train.script.heads import Record
from everstep.train.script.holders import Held
from everstep.train.script.rewrite import MARKER

KEY = "loops"
"""Of the space that holds the iterators, by the place of their loops on the path."""

_WRAPPERS = (enumerate, zip, map, filter, itertools.islice, itertools.chain, itertools.starmap, itertools.takewhile)
_LIKE_GENERATORS = (itertools.cycle,)
_MOST = 20_000
_ENDS = (type, types.ModuleType, types.CodeType, types.FrameType, torch.Tensor, str, bytes, int, float)


class LoopIterators:
    """Of one save.

    Args:
        records: the active loops, outermost first.
    """

    def __init__(self, records: Sequence[Record]) -> None:
        watched = {at: one.iterator for at, one in enumerate(records) if isinstance(one.iterator, Watched)}
        self._over = {at: one for at, one in watched.items() if not one.alone and _over_generators(one.inner)}
        alone = [one.inner for at, one in watched.items() if at not in self._over]
        self._alone = _generators(alone) if alone else frozenset()
        self._known: dict[int, Record] = {}
        self._shared: dict[int, Record] = {}
        for at, record in enumerate(records):
            if record.iterator is not None and at not in watched:
                if record.shared:
                    self._shared[at] = record
                else:
                    self._known |= {id(one): record for one in wrappers(record.iterator)}
        self._met: list[Record] = []

    @property
    def in_graph(self) -> dict[int, Any]:
        """Iterators that come back from the graph, by the place of their loops."""
        shared = {at: record.iterator for at, record in self._shared.items()}
        return {**{at: one.inner for at, one in self._over.items()}, **shared}

    def space(self) -> Space:
        """The iterators as part of the graph."""
        return Space(KEY, {_name(at): one for at, one in self.in_graph.items()})

    def in_loop(self, thing: object) -> bool:
        """Whether a loop that is not in the graph goes over this."""
        if id(thing) in self._known:
            record = self._known[id(thing)]
            if record.shared is not None:
                self._met.append(record)
            return True
        return self._alone is None or id(thing) in self._alone

    def fit(self, captured: Captured) -> bool:
        """Whether it is as was thought; if not, another try has to be made, which knows more."""
        roots = {key: (names, references) for key, names, references in captured.roots}
        names, references = roots.get(KEY, ((), ()))
        bad = [name for name, code in zip(names, references, strict=True) if _has_problem(captured, code)]
        for at, watched in self._over.items():
            watched.alone = _name(at) in bad
        for record in self._met:
            record.shared = True
        for at, record in self._shared.items():
            if _name(at) in bad:
                record.shared = None
        return not bad and not self._met


def fresh(records: Sequence[Record], places: Iterable[int]) -> Space:
    """The iterators that stand in a relaunch where those of a save stood."""
    return Space(KEY, {_name(at): _iterator(records[at]) for at in places})


def write(records: Sequence[Record], places: Iterable[int], values: dict[str, Any]) -> None:
    """Let these loops go on with the restored iterators."""
    for at in places:
        if isinstance(records[at].iterator, Watched):
            records[at].iterator.inner = values[_name(at)]
        else:
            records[at].iterator = values[_name(at)]


def _iterator(record: Record) -> Any:
    return record.iterator.inner if isinstance(record.iterator, Watched) else record.iterator


def _name(at: int) -> str:
    return f"loop {at}"


def _over_generators(iterator: Any) -> bool:
    """True for a user's generator, an iterator of a user's class and a cycle, and for wrappers over some and over what
    comes back as it was."""
    waiting, found = [iterator], False
    while waiting:
        thing = waiting.pop()
        if isinstance(thing, types.GeneratorType):
            if thing.gi_frame is not None and MARKER not in thing.gi_frame.f_globals:
                return False
            found = True
        elif isinstance(thing, _LIKE_GENERATORS) or _is_of_user(thing):
            found = True
        elif isinstance(thing, _WRAPPERS):
            waiting += [held for held in gc.get_referents(thing) if isinstance(held, Iterator)]
        elif not (isinstance(thing, Batches) or is_plain(thing)):
            return False
    return found


def _is_of_user(thing: Any) -> bool:
    module = sys.modules.get(type(thing).__module__)
    return module is not None and MARKER in vars(module)


def _generators(iterators: Sequence[Any]) -> frozenset[int] | None:
    """Ids of all suspended generators that these lead to; None if there is too much to look at."""
    waiting, seen = list(iterators), set[int]()
    found = set()
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen or isinstance(thing, _ENDS) or thing is None:
            continue
        seen.add(id(thing))
        if len(seen) > _MOST:
            return None
        if isinstance(thing, types.GeneratorType):
            found.add(id(thing))
        if isinstance(thing, types.FunctionType):
            waiting += [*(thing.__closure__ or ()), *(thing.__defaults__ or ())]
        elif isinstance(thing, Held):
            waiting.append(thing.inner)
        elif not (isinstance(thing, dict) and "__builtins__" in thing):
            waiting += gc.get_referents(thing)
    return frozenset(found)


def _has_problem(captured: Captured, code: Any) -> bool:
    waiting, seen = [code], set[int]()
    while waiting:
        number = waiting.pop()
        if type(number) is not int or number in seen:
            continue
        seen.add(number)
        kind, _, references = captured.nodes[number]
        if kind == "problem":
            return True
        waiting += references
    return False
