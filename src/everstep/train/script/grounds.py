"""What the loops of the path go over: part of the object graph, whether or not a variable holds it.

``for x, y in DataLoader(pseudo_labels(model))`` goes over what nobody else holds. A relaunch makes it anew on its way,
from objects that are already those of the save, so it may be something else than what the loop went over. Its contents
are saved and written in place, as those of variables are; where that gives another object, the iterator is made anew
over that one, and where this is not possible either, the relaunch is refused.
"""

from __future__ import annotations

import functools
import gc
import itertools
import sys
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from everstep.train.loaders import WrongData
from everstep.train.script.advance import BY_INDEX, Watched, beneath
from everstep.train.script.batches import Batches
from everstep.train.script.graph import Captured, Poison, Space
from everstep.train.script.heads import Record

KEY = "what the loops go over"
"""Of the space that holds it, by the lines of the loops."""

_AT_A_PLACE: tuple[type, ...] = (type(iter([])), type(iter(())), type(reversed([])), BY_INDEX)
_OF_SIZE: dict[type, Callable[[Any], Iterator[Any]]] = {
    type(iter({})): iter,
    type(iter({}.values())): lambda held: iter(held.values()),
    type(iter({}.items())): lambda held: iter(held.items()),
    type(reversed({})): reversed,
    type(iter(set())): iter,
    type(iter(deque())): iter,
}
"""Iterators that mind when what they go over is filled again, and how each is made."""
_C_WRAPPERS = (map, filter, itertools.chain, itertools.starmap, itertools.takewhile, itertools.dropwhile)
_CONTAINERS = (list, tuple, dict, set, frozenset, deque, torch.Tensor)
_MODULES = frozenset(["builtins", "collections", "_collections", "itertools"])
_HELP = "bind what the loop goes over to a variable before the loop"


class Grounds:
    """Of one save, or of one relaunch.

    Args:
        records: the active loops, outermost first.
        in_graph: places of loops whose iterators are part of the graph themselves.
    """

    def __init__(self, records: Sequence[Record], in_graph: Iterable[int]) -> None:
        self._records = records
        left = set(in_graph)
        self._found = {
            at: found
            for at, record in enumerate(records)
            if at not in left and record.iterator is not None and (found := _leaves(record.iterator))
        }

    def space(self) -> Space:
        """As part of the graph."""
        return Space(KEY, {self._name(at, n): one for at, found in self._found.items() for n, one in enumerate(found)})

    def write(self, values: dict[str, Any], captured: Captured) -> None:
        """Let the loops go on over the restored objects.

        Raises:
            WrongData: that cannot be; the text says where.
        """
        elsewhere = _elsewhere(captured)
        for at, found in self._found.items():
            record = self._records[at]
            restored = deque(values.pop(name) for n in range(len(found)) if (name := self._name(at, n)) in values)
            if not restored and not values and not _is_in(captured):
                continue  # a save of an earlier version
            if len(restored) != len(found):
                raise WrongData(f"{_where(record)} goes over something else now; {_HELP}")
            try:
                # What workers hold was written by nobody: they are started again, unless variables hold it as well.
                own = not elsewhere.issuperset(self._name(at, n) for n in range(len(found)))
                record.iterator = _Remaking(restored, own=own).run(record.iterator, record.begun, fixed=False)
            except WrongData as error:
                raise WrongData(f"{_where(record)}: {error}; {_HELP}") from None
        if values:
            raise WrongData(f"{next(iter(values))} goes over something else now; {_HELP}")

    def _name(self, at: int, number: int) -> str:
        return f"{_where(self._records[at])} ({at}.{number})"


def _where(record: Record) -> str:
    return "the loop" if record.loop is None else record.loop.site.place


def _is_in(captured: Captured) -> bool:
    return any(key == KEY for key, _, _ in captured.roots)


def _leaves(iterator: Any) -> list[Any]:
    """The objects at the bottom, from left to right."""
    if isinstance(iterator, Batches):
        return iterator.parts()
    children = _children(iterator)
    if children is not None:
        return [*_functions(iterator), *(leaf for child in children for leaf in _leaves(child))]
    return _held(iterator)


def _functions(iterator: Any) -> list[Any]:
    """What `map` and the like call, if it may have a state: functions in functions, and objects of the script's."""
    if not isinstance(iterator, _C_WRAPPERS):
        return []
    called = [one for one in gc.get_referents(iterator) if callable(one) and not isinstance(one, Iterator | type)]
    return [part for one in called for part in _parts(one) if _may_keep_state(part)]


def _parts(called: Any) -> list[Any]:
    if isinstance(called, types.MethodType):
        return [called.__self__]
    if type(called) is functools.partial:
        return [*_parts(called.func), *called.args, *called.keywords.values()]
    return [called]


def _may_keep_state(part: Any) -> bool:
    if isinstance(part, types.FunctionType):
        return part.__closure__ is not None or bool(vars(part))
    return type(part) in (list, dict, set) or "__everstep__" in vars(sys.modules.get(type(part).__module__, types))


def _children(iterator: Any) -> list[Any] | None:
    if isinstance(iterator, Watched):
        return [iterator.inner]
    children = beneath(iterator)
    if children is None and isinstance(iterator, _C_WRAPPERS):
        held: list[Any] = []
        for one in gc.get_referents(iterator):
            held += one if type(one) is tuple else [one]
        children = [one for one in held if isinstance(one, Iterator)]
    return children


def _held(iterator: Any) -> list[Any]:
    """What an iterator of the standard library goes over itself."""
    cls = type(iterator)
    if isinstance(iterator, types.GeneratorType) or cls is Poison or cls.__module__ not in _MODULES:
        return []
    # From Python 3.12 on some of these refer to their class, too.
    held = [one for one in gc.get_referents(iterator) if one is not cls][:1]
    if cls is not BY_INDEX and not (held and isinstance(held[0], _CONTAINERS)):
        return []
    return [] if held and isinstance(held[0], type) else held


class _Remaking:
    """Gives the iterator of one loop over the restored objects.

    Args:
        restored: they, in the order of `_leaves`.
        own: no variable holds one of them.
    """

    def __init__(self, restored: deque[Any], *, own: bool) -> None:
        self._restored = restored
        self._own = own

    def run(self, iterator: Any, taken: int, *, fixed: bool) -> Any:
        """The same iterator where that will do.

        Args:
            taken: items that it gave, where `enumerate` and `zip` alone are above it.
            fixed: something is above it that cannot be made anew.
        """
        if isinstance(iterator, Batches):
            iterator.put_parts([self._restored.popleft() for _ in iterator.parts()], own=self._own)
            return iterator
        children = _children(iterator)
        if children is None:
            return self._leaf(iterator, taken, fixed=fixed)
        for called in _functions(iterator):
            if self._restored.popleft() is not called:
                raise WrongData(f"it calls another {type(called).__qualname__} than before the save")
        maker = None if fixed else _maker(iterator)
        made = [self.run(child, taken, fixed=maker is None) for child in children]
        if maker is None or all(one is child for one, child in zip(made, children, strict=True)):
            return iterator
        return maker(made)

    def _leaf(self, iterator: Any, taken: int, *, fixed: bool) -> Any:
        held, cls = _held(iterator), type(iterator)
        if not held:
            return iterator
        old, new = held[0], self._restored.popleft()
        if type(new) is Poison:
            raise WrongData("what it goes over could not be saved")
        if cls in _OF_SIZE and not fixed:
            return _made_again(cls, new, taken)
        if new is old or _equal(old, new):
            return iterator
        if cls in _AT_A_PLACE and not fixed:
            return _put_there(iterator, new)
        raise WrongData(f"it goes over another {type(new).__qualname__} than before the save")


def _made_again(cls: type, held: Any, taken: int) -> Any:
    if not isinstance(held, _CONTAINERS) or len(held) < taken:
        raise WrongData("it goes over less than it did")
    made = _OF_SIZE[cls](held)
    for _ in range(taken):
        next(made)
    return made


def _put_there(iterator: Any, held: Any) -> Any:
    make, _, *place = iterator.__reduce__()
    made = make(held)
    for one in place:
        made.__setstate__(one)
    return made


def _elsewhere(captured: Captured) -> set[str]:
    """Names of this space whose objects other spaces reach as well."""
    own = {
        name: code
        for key, names, codes in captured.roots
        if key == KEY
        for name, code in zip(names, codes, strict=True)
    }
    seen = {code for key, _, codes in captured.roots if key != KEY for code in codes if type(code) is int}
    waiting = list(seen)
    while waiting:
        new = {code for code in captured.nodes[waiting.pop()][2] if type(code) is int} - seen
        seen |= new
        waiting += new
    return {name for name, code in own.items() if type(code) is not int or code in seen}


def _maker(iterator: Any) -> Callable[[list[Any]], Any] | None:
    """What makes the same over other iterators, if that is known."""
    if isinstance(iterator, Watched):

        def put(made: list[Any]) -> Any:
            iterator.inner = made[0]
            return iterator

        return put
    if type(iterator) is enumerate:
        number: Any = iterator.__reduce__()[1][1]
        return lambda made: enumerate(made[0], number)
    if type(iterator) is zip:
        strict = len(iterator.__reduce__()) > 2
        return lambda made: zip(*made, strict=strict)
    return None


def _equal(one: Any, other: Any) -> bool:
    """Whether two tuples hold the same objects, or tensors of the same values."""
    if one is other:
        return True
    if type(one) is not type(other) or type(one) not in (tuple, torch.Tensor, int, float, str, bytes):
        return False
    if isinstance(one, torch.Tensor):
        return (
            one.dtype == other.dtype
            and one.device == other.device
            and one.shape == other.shape
            and one.requires_grad == other.requires_grad
            and one.layout == other.layout == torch.strided
            and bool(torch.equal(one.detach(), other.detach()))
        )
    if isinstance(one, tuple):
        return len(one) == len(other) and all(_equal(*pair) for pair in zip(one, other, strict=True))
    return bool(one == other)
