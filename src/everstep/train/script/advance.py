"""The iterator of a loop, put to where it was: without fetching where only known wrappers lie over the loaders.

At a loop's start `watch(iter(E))` is iterated instead of the iterator itself, at a save `position` is kept, and in the
replay `advance` gives the iterator after so many items.

* Known wrappers (``enumerate``, ``zip``, ``islice``, ``tqdm``) over loaders and plain iterators (ranges, lists, ...):
  the loaders give placeholders, so the wrappers count as they did.
* Everything else (``map``, ``chain``, generator functions, iterators of the user) is drained with real items. It is
  watched while it runs: a checksum of all items must be equal again, and what draws from the global random state in
  turns with the training cannot be drained to the same state, which is refused.
"""

from __future__ import annotations

import collections
import gc
import inspect
import itertools
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from everstep.train.loaders import WrongData
from everstep.train.script.batches import Batches, adopt
from everstep.train.script.glance import Draws, glance

_PLAIN = {
    *(type(iter(kind())) for kind in (list, tuple, str, dict, set, bytes, bytearray, collections.deque)),
    type(iter(range(0))),
    type(iter({}.values())),
    type(iter({}.items())),
    type(reversed([])),
    type(reversed({})),
    type(iter(range(1 << 70))),
    *(itertools.count, itertools.repeat, itertools.product, itertools.permutations, itertools.combinations),
}
BY_INDEX: Any = type(iter(type("Sequence", (), {"__getitem__": lambda self, index: index})()))
"""What ``iter`` gives for an object that has only ``__getitem__``, such as a map-style data set."""

_KNOWN = frozenset({*_PLAIN, BY_INDEX})
_SEQUENCES: tuple[type, ...] = (type(iter([])), type(iter(())), type(reversed([])))

_PROGRESS_BARS = ("tqdm", "rich")

_END = object()


class Watched(Iterator[Any]):
    """An iterator of unknown kind, watched so that its repetition can be judged.

    Attributes:
        inner: the iterator.
        alone: it cannot be part of the object graph, see `loopgraph`.
    """

    def __init__(self, inner: Iterator[Any]) -> None:
        self.inner = inner
        self.alone = False
        self.check = 0
        self.draws = Draws()

    def __iter__(self) -> Watched:
        return self

    def __next__(self) -> Any:
        self.draws.before()
        item = next(self.inner)
        self.draws.after()
        self.check = glance(item, self.check)
        return item


def watch(iterator: Iterator[Any]) -> Iterator[Any]:
    """What the loop is to iterate instead of ``iterator``: the same, or a `Watched` around it."""
    return iterator if _is_known(iterator) else Watched(iterator)


def position(iterator: Iterator[Any], taken: int) -> dict[str, Any]:
    """What `advance` needs, after ``taken`` items were taken from what `watch` gave. Picklable.

    ``["problems"]`` lists why `advance` will refuse it: empty in the ordinary case.
    """
    if isinstance(iterator, Watched):
        interleaved = iterator.draws.interleaved
        text = "draws from the global random state in turns with the training; give it a generator of its own"
        problems = [f"the iterator {_name(iterator.inner)} {text}"] if interleaved else []
        return {
            "taken": taken,
            "check": iterator.check,
            "interleaved": iterator.draws.interleaved,
            "loaders": {},
            "problems": problems,
        }
    if not _is_known(iterator):
        problems = [f"the progress bar {_name(iterator)} has begun to go over something unknown"]
        return {"taken": taken, "check": None, "loaders": {}, "problems": problems}
    loaders = {way: batches.position() for way, batches in _loaders(iterator).items()}
    problems = [saved["problem"] for saved in loaders.values() if saved["problem"]]
    contents = _contents(iterator)
    return {"taken": taken, "check": None, "loaders": loaders, "contents": contents, "problems": problems}


def adopt_check(iterator: Iterator[Any], saved: dict[str, Any]) -> None:
    """``iterator`` comes back from the object graph: as if it had been watched from its beginning."""
    if (saved["check"] is not None) != isinstance(iterator, Watched):
        raise WrongData(f"the loop goes over {_name(iterator)} now, which is not what it went over")
    if isinstance(iterator, Watched):
        iterator.check = saved["check"]
        iterator.draws.interleaved = saved["interleaved"]


def wrappers(iterator: Iterator[Any]) -> list[Any]:
    """Each ``enumerate``, ``zip`` and ``islice`` in what a loop goes over."""
    own = [iterator] if isinstance(iterator, (enumerate, zip, itertools.islice)) else []
    return [*own, *(one for child in beneath(iterator) or () for one in wrappers(child))]


def is_plain(iterator: Any) -> bool:
    """True for iterators of the standard library over nothing but values: they can be taken apart and made anew."""
    return type(iterator) in _PLAIN


def advance(iterator: Iterator[Any], count: int, saved: dict[str, Any] | None = None) -> Iterator[Any]:
    """``iterator`` (fresh, as `watch` gave it) after ``count`` items; ``saved`` is what `position` gave at the save.

    ``count`` may be smaller than the ``taken`` of the save: a loop that hands out its last item again.
    To be called in the random state in which the iterator was made.

    Raises:
        WrongData: it is not the iterator it was, or cannot be brought there; the text says why.
    """
    if saved is not None and saved["problems"]:
        raise WrongData(saved["problems"][0])
    if saved is not None and (saved["check"] is not None) != isinstance(iterator, Watched):
        raise WrongData(f"the loop goes over {_name(iterator)} now, which is not what it went over")
    if isinstance(iterator, Watched):
        return _drain(iterator, count, saved)
    if saved is not None and saved["contents"] != _contents(iterator):
        raise WrongData(f"the loop goes over {_name(iterator)} with other contents than before the save")
    if isinstance(iterator, Batches):
        iterator.restore(saved["loaders"].get((), {}) if saved else iterator.position(), count)
        iterator.drain()
        return iterator
    if type(iterator) is BY_INDEX:
        # Items are fetched by their number.
        iterator.__setstate__(count)  # type: ignore[attr-defined]
        return iterator
    _skip(iterator, count, saved)
    return iterator


def _skip(iterator: Iterator[Any], count: int, saved: dict[str, Any] | None) -> None:
    """Let the wrappers go over placeholders."""
    positions = {} if saved is None else saved["loaders"]
    behind = 0 if saved is None else saved["taken"] - count
    made = _loaders(iterator)
    if made.keys() - positions.keys():
        raise WrongData(f"the loop goes over {_name(iterator)} with other loaders than before the save")
    for way, batches in made.items():
        batches.restore_with_placeholders(positions[way], positions[way]["consumed"] - behind)
    # Progress bars open their loader at their first item, from left to right.
    later = [(at, at["consumed"] - behind) for way, at in positions.items() if way not in made]
    adopt(later, lambda: _take(iterator, count), may_be_left=count == 0)
    for batches in _loaders(iterator).values():
        batches.expect_no_placeholders()
        batches.drain()


def _drain(iterator: Watched, count: int, saved: dict[str, Any] | None) -> Iterator[Any]:
    _take(iterator, count)
    if saved is not None and count == saved["taken"] and iterator.check != saved["check"]:
        raise WrongData(
            f"the iterator {_name(iterator.inner)} does not give the items it gave before the save; what it gives must "
            "depend on nothing but its arguments and the random state it begins with"
        )
    return iterator


def _take(iterator: Iterator[Any], count: int) -> None:
    for number in range(count):
        if next(iterator, _END) is _END:
            raise WrongData(f"the iterator {_name(iterator)} gives {number} items now, it gave {count} before")


# --- what lies beneath ------------------------------------------------------------------------------------------------


def _is_known(iterator: Any) -> bool:
    if type(iterator) in _KNOWN or isinstance(iterator, Batches):
        return True
    children = beneath(iterator)
    return children is not None and all(_is_known(child) for child in children)


def _loaders(iterator: Any, way: tuple[int, ...] = ()) -> dict[tuple[int, ...], Batches]:
    """The loaders beneath known wrappers, from left to right, by the way to them: which argument of which."""
    if isinstance(iterator, Batches):
        return {way: iterator}
    found = {}
    for number, child in enumerate(beneath(iterator) or ()):
        found.update(_loaders(child, (*way, number)))
    return found


def _contents(iterator: Any, way: tuple[int, ...] = ()) -> dict[tuple[int, ...], int]:
    """A checksum for each list and tuple beneath, of up to 256 of its numbers, texts and small tensors."""
    if type(iterator) in _SEQUENCES:
        held = [thing for thing in gc.get_referents(iterator) if type(thing) in (list, tuple)]
        return {way: glance([_told(entry) for entry in held[0][:: max(1, len(held[0]) // 256)]])} if held else {}
    found = {}
    for number, child in enumerate(beneath(iterator) or ()):
        found.update(_contents(child, (*way, number)))
    return found


def _told(entry: Any) -> Any:
    """An entry of a list if the training does not change it, else its type."""
    small = isinstance(entry, torch.Tensor) and entry.numel() <= 16 and not entry.requires_grad
    return entry if small or isinstance(entry, (int, float, str, bytes)) else type(entry).__qualname__


def beneath(iterator: Any) -> list[Any] | None:
    """The iterators a known wrapper takes from, in its order; None for anything else."""
    if isinstance(iterator, enumerate):
        return [iterator.__reduce__()[1][0]]
    if isinstance(iterator, zip):
        return list(iterator.__reduce__()[1])
    if isinstance(iterator, itertools.islice):
        return [held for held in gc.get_referents(iterator) if isinstance(held, Iterator)]
    if isinstance(iterator, types.GeneratorType):
        return _of_progress_bar(iterator)
    return None


def _of_progress_bar(generator: types.GeneratorType[Any, Any, Any]) -> list[Any] | None:
    """What a progress bar iterates; nothing yet if it has not begun and will open a loader or a plain container."""
    frame = generator.gi_frame
    if frame is None or str(frame.f_globals.get("__name__")).partition(".")[0] not in _PROGRESS_BARS:
        return None
    if inspect.getgeneratorstate(generator) == inspect.GEN_CREATED:
        given = frame.f_locals
        over = getattr(given.get("self"), "iterable", given.get("iterable", given.get("sequence")))
        if isinstance(over, DataLoader):
            return [] if type(over).__iter__ is DataLoader.__iter__ else None
        if isinstance(over, Iterator):
            return [over]
        return [] if type(over) in (list, tuple, range, dict, str) else None
    held = [thing for thing in gc.get_referents(generator) if isinstance(thing, Iterator)]
    once = list({id(thing): thing for thing in held}.values())
    return once if len(once) == 1 else None


def _name(iterator: Any) -> str:
    return getattr(iterator, "__qualname__", None) or type(iterator).__qualname__
