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

import copy
import os
import pickle
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, IterDataPipe, MapDataPipe

from everstep.train import randomness
from everstep.train.loaders import Tap, WrongData, samplers
from everstep.train.script import mutables
from everstep.train.script.glance import Draws, glance
from everstep.train.script.workers import Collate, Init, Position, reachable, same_random

PLACEHOLDER = object()
"""Stands for a batch that was consumed before the save."""

_plain_iter = DataLoader.__iter__


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
    DataLoader.__iter__ = _plain_iter  # type: ignore[method-assign]


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
        # A shallow copy shares dataset and samplers; the loader of the user stays as it is. Its attributes are set
        # through __dict__, because DataLoader forbids to exchange its sampler after it was made.
        self._loader = copy.copy(loader)
        self._loader.__dict__["_iterator"] = None
        self._workers = loader.num_workers
        self._indexed = not isinstance(loader.dataset, IterableDataset)
        self._roots = {f"sampler {n}": s for n, s in enumerate(samplers(loader)) if s is not loader.dataset}
        self._roots["generator"] = loader.generator
        self._stream = {} if self._indexed else {"dataset": loader.dataset}
        self._tap = Tap(loader.sampler if loader.batch_sampler is None else loader.batch_sampler)
        self._tap.opened = self._note_seed
        if self._indexed:
            self._loader.__dict__["sampler" if loader.batch_sampler is None else "batch_sampler"] = self._tap
        if self._workers:
            self._loader.__dict__["collate_fn"] = Collate(loader.collate_fn)
        self._inner: Iterator[Any] | None = None
        self._passes = -1
        self._states: dict[int, bytes] = {}
        self._unknown = False
        """Persistent workers were left in the middle of a pass: how far they had worked ahead is not known."""
        self._placeholders = 0
        self._pending: tuple[Position, int] | None = None
        self._expected: Position | None = None
        self._seed: torch.Tensor | None = None
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
        return len(self._loader._index_sampler)  # what torch's own iterator answers

    def __getattr__(self, name: str) -> Any:
        """Whoever asks for an attribute of torch's iterator (``_shutdown_workers``, ...) gets it."""
        if name.startswith("__") or "_inner" not in self.__dict__:
            raise AttributeError(name)
        if self._inner is None and self._pending is not None:
            self._reopen()
        return getattr(self._inner, name)

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
        if self._inner is None:
            raise StopIteration
        if self._first is None and not self._workers:
            self._first = randomness.capture(), self._stream_state()
        batch = self._fetch()
        if self._expected is not None and self._taken == self._expected["consumed"]:
            self._verify(self._expected)
        return batch

    def begin_again(self) -> None:
        """The next pass with the same (persistent) workers."""
        if self._pending is not None:
            # The workers of the pass that is over are not there; they are started for the new one, in their states.
            self._pending = None
            self._inner = None
        elif not self._over:
            self._unknown = True
        self._placeholders = 0
        self._begin()

    def _begin(self) -> None:
        self._passes += 1
        self._made = {
            "id": os.urandom(8).hex(),
            "random": randomness.capture(),
            "samplers": self._sampler_state(),
            "stream": self._stream_state(),
        }
        self._first = None
        self._start_states = dict(self._states)
        self._reset_counters(0, self._states)
        if _Mode.tickets:
            self._restore(*_Mode.tickets.popleft(), placeholders=True)
        elif _Mode.replaying and self._workers and not isinstance(self._loader.dataset, (IterDataPipe, MapDataPipe)):
            self._draw_only()
            self._pending = self.position(), 0
        elif self._inner is not None:
            self._inner._reset(self._loader)  # type: ignore[attr-defined]
        else:
            self._open(self._states if self._passes else None)

    def _reset_counters(self, taken: int, states: dict[int, bytes]) -> None:
        self._taken = taken
        self._check = 0
        self._over = False
        self._expected = None
        self._draws = Draws()
        self._states = dict(states)
        self._round_states = dict(states)

    def _note_seed(self) -> None:
        # The sampler was just asked for an iterator; the next thing torch draws is the seed of the workers.
        if self._passes == 0 and self._seed is None:
            generator = self._loader.generator
            self._seed = torch.get_rng_state() if generator is None else generator.get_state()

    def _open(self, states: dict[int, bytes] | None) -> None:
        """Torch's own iterator. With ``states``, new workers for a pass in which these were there already or had
        these random states."""
        put: dict[str, Any] = {}
        if states is not None and self._workers:
            put["worker_init_fn"] = Init(self._loader.worker_init_fn, states)
            if self._passes:
                # Nothing was drawn for seeds, and the sampler was asked once, not twice.
                self._tap.idle_openings = 1
                put["generator"] = torch.Generator()
                if self._seed is not None:
                    put["generator"].set_state(self._seed)
        before = {name: self._loader.__dict__[name] for name in put}
        self._loader.__dict__.update(put)
        try:
            self._inner = _plain_iter(self._loader)
        finally:
            self._loader.__dict__.update(before)

    def _draw_only(self) -> None:
        """Draw what opening the loader would draw, without starting its workers."""
        if self._passes == 0:
            iter(self._tap)
            torch.empty((), dtype=torch.int64).random_(generator=self._loader.generator)
        draw = iter(self._tap)
        for _ in range((self._loader.prefetch_factor or 2) * self._workers):
            if next(draw, PLACEHOLDER) is PLACEHOLDER:
                break

    def _fetch(self) -> Any:
        assert self._inner is not None
        watch = not self._indexed and not self._workers
        if watch:
            self._draws.before()
        try:
            batch = next(self._inner)
        except StopIteration:
            self._over = True
            if not self._loader.persistent_workers:
                self._inner = None
            raise
        if watch:
            self._draws.after()
        if self._workers:
            if self._taken % self._workers == 0:
                self._round_states = dict(self._states)
            batch, worker, state = batch
            self._states[worker] = state
            self._unknown = self._unknown and not (self._indexed and self._taken + 1 >= self._workers)
        self._check = self._tap.checks.popleft() if self._indexed else glance(batch, self._check)
        self._taken += 1
        return batch

    # --- position ---------------------------------------------------------------------------------------------------

    def position(self) -> Position:
        """Where this iterator is. Picklable; not changed by later batches.

        ``position["problem"]`` is None, or says why `restore` will refuse it.
        """
        if self._pending is not None:
            return {**self._pending[0], "consumed": self._pending[1], "moved": self._moved()}
        return {
            **self._made,
            "indexed": self._indexed,
            "workers": self._workers,
            "passes": self._passes,
            "seed": self._seed,
            "first": self._first,
            "samplers_now": self._sampler_state(),
            "consumed": self._taken,
            "over": self._over,
            "check": self._check,
            "start_states": dict(self._start_states),
            "round_states": dict(self._round_states),
            "states": dict(self._states),
            "problem": self._problem(),
            "moved": False,
        }

    def _sampler_state(self) -> mutables.Saved:
        return mutables.capture(self._roots, arrays=True, beside=self._loader.dataset)

    def _stream_state(self) -> mutables.Saved:
        return mutables.capture(self._stream, arrays=True)

    def _moved(self) -> bool:
        assert self._pending is not None
        position, consumed = self._pending
        return bool(position["moved"]) or consumed != position["consumed"]

    def _problem(self) -> str | None:
        kind = type(self._loader.dataset).__qualname__
        if self._workers > 1 and not getattr(self._loader, "in_order", True):
            return f"a DataLoader over {kind} with in_order=False gives its batches by chance"
        between_passes = not self._indexed and (self._over or (self._passes > 0 and self._taken == 0))
        if self._loader.persistent_workers and (self._unknown or between_passes):
            return f"the persistent workers of the DataLoader over {kind} are between two epochs"
        if self._draws.interleaved:
            return (
                f"the stream {kind} draws from the global random state in turns with the training; "
                "give it a random generator of its own, or num_workers=1"
            )
        if not self._indexed and not self._workers and self._taken and not self._over:
            # What was consumed is fetched again, which would advance the generator a second time.
            held = mutables.opaque(self._stream)
            if held is not None:
                return f"the data set {kind} keeps a started iterator ({held}); make it in __iter__"
        for state in self._states.values() if self._indexed else ():
            held = pickle.loads(state).get("opaque")
            if held is not None:
                return f"the data set {kind} keeps a started iterator in its workers ({held})"
        return None

    def restore(self, position: Position, consumed: int | None = None) -> None:
        """Go to ``position``, or to where ``consumed`` batches of the same pass were taken (not more).

        Raises:
            WrongData: the loader is not built as it was, or the position says that it cannot be given back.
        """
        consumed = position["consumed"] if consumed is None else consumed
        here = self._made["id"], self._taken, self._over
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
        if position["workers"] != self._workers or position["indexed"] != self._indexed:
            raise WrongData(
                f"the loader has {self._workers} workers now, the checkpoint was written with {position['workers']}"
            )
        self._inner = None
        self._made = {key: position[key] for key in ("id", "random", "samplers", "stream")}
        self._passes, self._seed, self._first = position["passes"], position["seed"], position["first"]
        self._start_states = dict(position["start_states"])
        self._reset_counters(consumed, position["states"])
        self._check = position["check"]
        self._round_states = dict(position["round_states"])
        self._over = position["over"] and consumed == position["consumed"]
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
        return not self._indexed and not self._workers and consumed > 0 and not self._over

    def _reopen(self) -> None:
        assert self._pending is not None
        (position, consumed), self._pending = self._pending, None
        if self._over:
            return
        now, samplers_now, stream_now = randomness.capture(), self._sampler_state(), self._stream_state()
        try:
            randomness.restore(position["random"])
            mutables.restore(self._roots, position["samplers"])
            mutables.restore(self._stream, position["stream"])
            self._skip(position, consumed)
        finally:
            randomness.restore(now)
            mutables.restore(self._roots, samplers_now)
            if not self._drains(consumed):
                mutables.restore(self._stream, stream_now)

    def _skip(self, position: Position, consumed: int) -> None:
        skip, states = reachable(position, consumed)
        self._reset_counters(skip, states)
        self._tap.skip = skip
        self._open(states if self._passes or skip else None)
        if position["first"] is not None:
            random_states, stream = position["first"]
            randomness.restore(random_states)
            mutables.restore(self._stream, stream)
        if self._indexed:
            # Workers have drawn ahead by now; without workers the skip is made here, before anything else draws.
            self._check = self._tap.skip_now()
        # Not reset by the tap: a loader with workers asks its sampler for an iterator twice, and uses the second.
        self._tap.skip = 0
        while self._taken < consumed:
            try:
                self._fetch()
            except StopIteration:
                raise WrongData(f"the loader gives {self._taken} batches now, it gave {consumed} before") from None
        if consumed == position["consumed"]:
            self._verify(position)
        else:
            self._expected = position

    def _verify(self, position: Position) -> None:
        self._expected = None
        differ = [worker for worker in self._states if not same_random(self._states, position["states"], worker)]
        if self._check != position["check"] or differ:
            what = "sampler does not give the order" if self._indexed else "stream does not give the batches"
            kind = type(self._loader.dataset).__qualname__
            raise WrongData(
                f"the {what} the checkpoint was trained on ({kind}). What draws random numbers while it runs needs "
                "a generator of its own; otherwise the data or the sampler has changed"
            )


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
