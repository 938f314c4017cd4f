"""Every iterator of a ``DataLoader`` is a `Batches`, which knows its position and can be put to one.

`install` exchanges ``DataLoader.__iter__``. Subclasses that iterate in their own way keep it. The order of all random
draws is that of an undisturbed loader.

A position is given back lazily: at the first batch after `Batches.restore` the loader is opened again with the random
state, and the state of its samplers, that it was opened with; what was consumed is skipped without fetching (map-style
data; with workers at most ``num_workers - 1`` batches are fetched and dropped, so that each batch meets the worker it
would have met, in the random state it would have met it in) or fetched and dropped (``IterableDataset``, which begins
with the small state that it had then). Afterwards the random state of the main process is what it was before. A stream
that is fetched in this process changes itself by that: `Batches.drain` does it before its state is written back.

The order is verified by a chained checksum of all indices drawn (map-style) or batches given (streams); a difference
is `WrongData`. Streams that draw from the global random state in turns with the training cannot be given back: that is
noticed while they run.
"""

from __future__ import annotations

import functools
import os
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DataLoader, IterDataPipe, MapDataPipe

from everstep.train import randomness
from everstep.train.loaders import WrongData, samplers
from everstep.train.script import mutables
from everstep.train.script.fetching import PLAIN_ITER, Fetching
from everstep.train.script.graph import Poison
from everstep.train.script.workers import Position, reachable

_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.ModuleType, type)
PLACEHOLDER = object()
"""Stands for a batch that was consumed before the save."""


class _Mode:
    """What `Batches` made from now on have to know; one per process."""

    replaying = False
    tickets: deque[tuple[Position, int]] | None = None
    refuse: Callable[[str], None] | None = None


def install(*, replaying: bool, refuse: Callable[[str], None] | None = None) -> None:
    """Let ``DataLoader.__iter__`` give `Batches`.

    Args:
        replaying: workers are started at first use only.
        refuse: told where a batch is asked for that cannot be given; it must not come back. None: `WrongData`.
    """
    _Mode.replaying = replaying
    _Mode.refuse = refuse
    DataLoader.__iter__ = _iterate  # type: ignore[method-assign, assignment]


def live() -> None:
    """The replay is over."""
    _Mode.replaying = False
    _Mode.tickets = None


def uninstall() -> None:
    """Undo `install`. Iterators that exist stay what they are."""
    live()
    _Mode.refuse = None
    DataLoader.__iter__ = PLAIN_ITER  # type: ignore[method-assign]


def _iterate(loader: DataLoader[Any]) -> Iterator[Any]:
    if not (loader.persistent_workers and loader.num_workers > 0):
        return Batches(loader)
    # As torch does it: one iterator for the whole life of the loader, and begun again for each epoch.
    kept: Any = loader._iterator
    if isinstance(kept, Batches):
        kept.begin_again()
        return kept
    made = Batches(loader)
    loader.__dict__["_iterator"] = made
    return made


class Batches(Iterator[Any]):
    """The batches of one pass over a loader, or of pass after pass where workers are persistent.

    Args:
        loader: as the user made it; not changed.
        at: not a new pass, but the one that this position is of, at that place.
    """

    def __init__(self, loader: DataLoader[Any], at: Position | None = None) -> None:
        # Weakly: an iterator that torch makes does not keep its loader either, and a persistent one is held by it.
        self._of = weakref.ref(loader)
        self._fetching = Fetching(loader)
        self._roots = {f"sampler {n}": s for n, s in enumerate(samplers(loader)) if s is not loader.dataset}
        self._roots["generator"] = loader.generator
        self._placeholders = 0
        self._pending: tuple[Position, int] | None = None
        self._expected: Position | None = None
        self._first: tuple[dict[str, Any], mutables.Saved] | None = None
        """The random states, and the stream's own, before the first batch, if it is drawn in this process."""
        if at is None:
            self._begin()
        else:
            self._restore(at, at["consumed"])

    @property
    def loader(self) -> DataLoader[Any] | None:
        """The user's loader, None if it is gone."""
        return self._of()

    # --- iterating --------------------------------------------------------------------------------------------------

    def __iter__(self) -> Batches:
        return self

    def __len__(self) -> int:
        return len(self._fetching.loader._index_sampler)  # what torch's own iterator answers

    def __getattr__(self, name: str) -> Any:
        """Whoever asks for an attribute of torch's iterator (``_shutdown_workers``, ...) gets it."""
        if name.startswith("__") or "_fetching" not in self.__dict__:
            raise AttributeError(name)
        if self._fetching.inner is None and self._pending is not None:
            self._reopen()
        return getattr(self._fetching.inner, name)

    def __next__(self) -> Any:
        if self._placeholders:
            self._placeholders -= 1
            return PLACEHOLDER
        try:
            return self._next()
        except WrongData as error:
            if _Mode.refuse is not None:
                _Mode.refuse(f"a DataLoader cannot go on where it was: {error}")
            raise

    def _next(self) -> Any:
        if self._pending is not None:
            self._reopen()
        fetching = self._fetching
        if fetching.inner is None:
            raise StopIteration
        if self._first is None and not fetching.workers:
            self._first = randomness.capture(), self._stream_state()
        batch = fetching.fetch()
        if self._expected is not None and fetching.taken == self._expected["consumed"]:
            self._verify(self._expected)
        return batch

    def begin_again(self) -> None:
        """The next pass with the same (persistent) workers."""
        if self._pending is not None:
            # The workers of the pass that is over are not there; they are started for the new one, in their states.
            self._pending = None
            self._fetching.inner = None
        elif not self._fetching.over:
            self._fetching.unknown = True
        self._placeholders = 0
        self._begin()

    def _begin(self) -> None:
        fetching = self._fetching
        fetching.passes += 1
        self._made = {
            "id": os.urandom(8).hex(),
            "random": randomness.capture(),
            "samplers": self._sampler_state(),
            "stream": self._stream_state(),
        }
        self._first = None
        self._expected = None
        self._start_states = dict(fetching.states)
        fetching.reset(0, fetching.states)
        pipe = isinstance(fetching.loader.dataset, (IterDataPipe, MapDataPipe))
        if _Mode.tickets:
            self._restore(*_Mode.tickets.popleft(), placeholders=True)
        elif _Mode.replaying and fetching.workers and not pipe:
            fetching.draw_only()
            self._pending = self.position(), 0
        else:
            fetching.begin()

    # --- what it takes from -----------------------------------------------------------------------------------------

    def parts(self) -> list[Any]:
        """The data set, the samplers, and what collates where that is an object of somebody's own."""
        samplers = [one for name, one in self._roots.items() if name != "generator"]
        collate = self._fetching.collate
        collate = getattr(collate, "__self__", collate)
        plain = isinstance(collate, (*_FUNCTIONS, functools.partial))
        return [self._fetching.loader.dataset, *samplers, *(() if plain else (collate,))]

    def put_parts(self, restored: list[Any], *, own: bool = True) -> None:
        """The saved `parts` were written; these are the objects that they are now.

        Args:
            restored: as many as there are parts.
            own: no variable holds them: what workers have of them is what they were when the workers were started.

        Raises:
            WrongData: they are others, which it cannot take from any more.
        """
        fetching = self._fetching
        dataset, *others = restored
        if any(one is not other for one, other in zip(self.parts()[1:], others, strict=True)):
            raise WrongData("the loader has another sampler than before the save")
        if own and fetching.workers and fetching.inner is not None:
            self._restore(self.position(), fetching.taken)
        if dataset is not fetching.loader.dataset:
            if fetching.inner is not None or type(dataset) is Poison:
                raise WrongData(f"the loader goes over another {fetching.kind} than before the save")
            fetching.exchange(dataset)

    # --- position ---------------------------------------------------------------------------------------------------

    def position(self) -> Position:
        """Where this iterator is. Picklable; not changed by later batches.

        ``position["problem"]`` is None, or says why `restore` will refuse it.
        """
        if self._pending is not None:
            return {**self._pending[0], "consumed": self._pending[1], "moved": self._moved()}
        return {
            **self._made,
            **self._fetching.mark(),
            "first": self._first,
            "samplers_now": self._sampler_state(),
            "start_states": dict(self._start_states),
            "moved": False,
        }

    def _sampler_state(self) -> mutables.Saved:
        return mutables.capture(self._roots, arrays=True, beside=self._fetching.loader.dataset)

    def _stream_state(self) -> mutables.Saved:
        return mutables.capture(self._fetching.stream, arrays=True)

    def _moved(self) -> bool:
        assert self._pending is not None
        position, consumed = self._pending
        return bool(position["moved"]) or consumed != position["consumed"]

    def restore(self, position: Position, consumed: int | None = None) -> None:
        """Go to ``position``, or to where ``consumed`` batches of the same pass were taken (not more).

        Raises:
            WrongData: the loader is not built as it was, or the position says that it cannot be given back.
        """
        consumed = position["consumed"] if consumed is None else consumed
        here = self._made["id"], self._fetching.taken, self._fetching.over
        if self._pending is None and here == (position["id"], consumed, position["over"]):
            return
        self._restore(position, consumed)

    def restore_with_placeholders(self, position: Position, consumed: int) -> None:
        """As `restore`, but the next ``consumed`` items are `PLACEHOLDER`, for the wrappers above to count."""
        self._restore(position, consumed, placeholders=True)

    def expect_no_placeholders(self) -> None:
        """Raises `WrongData` if placeholders are left."""
        if self._placeholders:
            raise WrongData(f"a loop took {self._placeholders} more batches from its loader before the save than now")

    def _restore(self, position: Position, consumed: int, *, placeholders: bool = False) -> None:
        if position["problem"]:
            raise WrongData(position["problem"])
        self._fetching.put(position, consumed)
        self._made = {key: position[key] for key in ("id", "random", "samplers", "stream")}
        self._first = position["first"]
        self._expected = None
        self._start_states = dict(position["start_states"])
        self._placeholders = consumed if placeholders else 0
        mutables.restore(self._roots, position["samplers_now"])
        self._pending = position, consumed

    def drain(self) -> None:
        """Fetch and drop what was consumed of a stream in this process now, since the stream changes itself by that.

        Raises:
            WrongData: it does not give what it gave.
        """
        if self._pending is not None and self._drains(self._pending[1]):
            self._reopen()

    def _drains(self, consumed: int) -> bool:
        fetching = self._fetching
        return not fetching.indexed and not fetching.workers and consumed > 0 and not fetching.over

    def _reopen(self) -> None:
        assert self._pending is not None
        (position, consumed), self._pending = self._pending, None
        if self._fetching.over:
            return
        now, samplers_now, stream_now = randomness.capture(), self._sampler_state(), self._stream_state()
        try:
            randomness.restore(position["random"])
            mutables.restore(self._roots, position["samplers"])
            mutables.restore(self._fetching.stream, position["stream"])
            self._skip(position, consumed)
        finally:
            randomness.restore(now)
            mutables.restore(self._roots, samplers_now)
            if not self._drains(consumed):
                mutables.restore(self._fetching.stream, stream_now)

    def _skip(self, position: Position, consumed: int) -> None:
        fetching = self._fetching
        skip, states = reachable(position, consumed)
        fetching.reset(skip, states)
        self._expected = None
        fetching.tap.skip = skip
        fetching.open(states if fetching.passes or skip else None)
        if position["first"] is not None:
            random_states, stream = position["first"]
            randomness.restore(random_states)
            mutables.restore(fetching.stream, stream)
        if fetching.indexed:
            # Workers have drawn ahead by now; without workers the skip is made here, before anything else draws.
            fetching.check = fetching.tap.skip_now()
        # Not reset by the tap: a loader with workers asks its sampler for an iterator twice, and uses the second.
        fetching.tap.skip = 0
        while fetching.taken < consumed:
            try:
                fetching.fetch()
            except StopIteration:
                raise WrongData(f"the loader gives {fetching.taken} batches now, it gave {consumed} before") from None
        if consumed == position["consumed"]:
            self._verify(position)
        else:
            self._expected = position

    def _verify(self, position: Position) -> None:
        self._expected = None
        self._fetching.verify(position)


def adopt(tickets: list[tuple[Position, int]], run: Callable[[], None], *, may_be_left: bool = False) -> None:
    """Call ``run``; the `Batches` it makes are those of ``tickets`` (position, batches consumed), in their order,
    and give `PLACEHOLDER` for what was consumed.

    Args:
        tickets: for the next iterators.
        run: makes them.
        may_be_left: what is left when it returns is for those that are made next; otherwise that is an error.

    Raises:
        WrongData: it made fewer.
    """
    _Mode.tickets = deque(tickets)
    try:
        run()
        if _Mode.tickets and not may_be_left:
            raise WrongData("a loop that went over a DataLoader does not do so now")
    finally:
        if not may_be_left:
            _Mode.tickets = None
