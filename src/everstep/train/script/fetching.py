"""Torch's own iterator over a ``DataLoader``: opened so that it goes on from somewhere, counted while it fetches."""

from __future__ import annotations

import copy
import pickle
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from everstep.train.loaders import Tap, WrongData
from everstep.train.script import mutables
from everstep.train.script.glance import Draws, glance
from everstep.train.script.workers import Collate, Init, Position, same_random

PLAIN_ITER = DataLoader.__iter__
"""Torch's own, whatever is in its place by now."""
_END = object()


class Fetching:
    """The batches of a loader as torch gives them, counted.

    Attributes:
        loader: a copy whose sampler and collate function are watched; that of the user stays as it is.
        workers, indexed: how many it has, and whether its data is map-style.
        stream: the data set, where its own state moves as it is iterated.
        collate: as the user gave it.
        inner: torch's iterator; None before it is needed, and at the end of a pass unless workers are persistent.
        passes: number of the present pass, from 0; -1 before the first.
        taken: batches of it. over: there are no more. check: checksum of what was drawn or given.
        states: pickled states of the workers behind their last batches. round_states: before the last one of each.
        unknown: persistent workers were left in the middle of a pass: how far they had worked ahead is not known.
        seed: of the generator, just before torch drew the seed of the workers from it.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        """Opens nothing."""
        # A shallow copy shares dataset and samplers. Its attributes are set through __dict__, because DataLoader
        # forbids to exchange its sampler after it was made.
        self.loader = copy.copy(loader)
        self.loader.__dict__["_iterator"] = None
        self.workers = loader.num_workers
        self.indexed = not isinstance(loader.dataset, IterableDataset)
        self.stream = {} if self.indexed else {"dataset": loader.dataset}
        self.collate: Any = loader.collate_fn
        self.tap = Tap(loader.sampler if loader.batch_sampler is None else loader.batch_sampler)
        # Weakly: in a cycle, torch's iterator of a pass that the script leaves early would end only when the collector
        # comes by, and then wait five seconds for each worker, whose queue was collected before the word to stop.
        note = weakref.WeakMethod(self._note_seed)
        self.tap.opened = lambda: (noted := note()) and noted()
        if self.indexed:
            self.loader.__dict__["sampler" if loader.batch_sampler is None else "batch_sampler"] = self.tap
        if self.workers:
            self.loader.__dict__["collate_fn"] = Collate(loader.collate_fn)
        self.inner: Iterator[Any] | None = None
        self.passes = -1
        self.states: dict[int, bytes] = {}
        self.unknown = False
        self.seed: torch.Tensor | None = None
        self.reset(0, {})

    @property
    def kind(self) -> str:
        """Name of the data set's class."""
        return type(self.loader.dataset).__qualname__

    def reset(self, taken: int, states: dict[int, bytes]) -> None:
        """So many batches of the pass were taken, behind which the workers have these states."""
        self.taken = taken
        self.check = 0
        self.over = False
        self.draws = Draws()
        self.states = dict(states)
        self.round_states = dict(states)

    def _note_seed(self) -> None:
        # The sampler was just asked for an iterator; the next thing torch draws is the seed of the workers.
        if self.passes == 0 and self.seed is None:
            generator = self.loader.generator
            self.seed = torch.get_rng_state() if generator is None else generator.get_state()

    def exchange(self, dataset: Any) -> None:
        """Take from another data set of the same kind; nothing is open."""
        self.loader.__dict__["dataset"] = dataset
        self.stream = {} if self.indexed else {"dataset": dataset}

    # --- torch's iterator -------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """The pass, with the workers that are there."""
        if self.inner is not None:
            self.inner._reset(self.loader)  # type: ignore[attr-defined]
        else:
            self.open(self.states if self.passes else None)

    def open(self, states: dict[int, bytes] | None) -> None:
        """Torch's own iterator. With ``states``, new workers for a pass in which these were there already or had
        these random states."""
        put: dict[str, Any] = {}
        if states is not None and self.workers:
            put["worker_init_fn"] = Init(self.loader.worker_init_fn, states)
            if self.passes:
                # Nothing was drawn for seeds, and the sampler was asked once, not twice.
                self.tap.idle_openings = 1
                put["generator"] = torch.Generator()
                if self.seed is not None:
                    put["generator"].set_state(self.seed)
        before = {name: self.loader.__dict__[name] for name in put}
        self.loader.__dict__.update(put)
        try:
            self.inner = PLAIN_ITER(self.loader)
        finally:
            self.loader.__dict__.update(before)

    def draw_only(self) -> None:
        """Draw what opening the loader would draw, without starting its workers."""
        if self.passes == 0:
            iter(self.tap)
            torch.empty((), dtype=torch.int64).random_(generator=self.loader.generator)
        draw = iter(self.tap)
        for _ in range((self.loader.prefetch_factor or 2) * self.workers):
            if next(draw, _END) is _END:
                break

    def fetch(self) -> Any:
        """The next batch. Raises StopIteration."""
        assert self.inner is not None
        watch = not self.indexed and not self.workers
        if watch:
            self.draws.before()
        try:
            batch = next(self.inner)
        except StopIteration:
            self.over = True
            if not self.loader.persistent_workers:
                self.inner = None
            raise
        if watch:
            self.draws.after()
        if self.workers:
            if self.taken % self.workers == 0:
                self.round_states = dict(self.states)
            batch, worker, state = batch
            self.states[worker] = state
            self.unknown = self.unknown and not (self.indexed and self.taken + 1 >= self.workers)
        self.check = self.tap.checks.popleft() if self.indexed else glance(batch, self.check)
        self.taken += 1
        return batch

    # --- what of a position is torch's ------------------------------------------------------------------------------

    def mark(self) -> Position:
        """Where it is; not changed by later batches."""
        return {
            "indexed": self.indexed,
            "workers": self.workers,
            "passes": self.passes,
            "seed": self.seed,
            "consumed": self.taken,
            "over": self.over,
            "check": self.check,
            "round_states": dict(self.round_states),
            "states": dict(self.states),
            "problem": self._problem(),
        }

    def put(self, position: Position, consumed: int) -> None:
        """To where ``consumed`` batches of the pass that was marked were taken; torch's iterator is left.

        Raises:
            WrongData: the loader is not built as it was.
        """
        if position["workers"] != self.workers or position["indexed"] != self.indexed:
            raise WrongData(
                f"the loader has {self.workers} workers now, the checkpoint was written with {position['workers']}"
            )
        self.inner = None
        self.passes, self.seed = position["passes"], position["seed"]
        self.reset(consumed, position["states"])
        self.check = position["check"]
        self.round_states = dict(position["round_states"])
        self.over = position["over"] and consumed == position["consumed"]

    def verify(self, position: Position) -> None:
        """Raises `WrongData` unless what was fetched until here is what was fetched until ``position``."""
        differ = [worker for worker in self.states if not same_random(self.states, position["states"], worker)]
        if self.check != position["check"] or differ:
            what = "sampler does not give the order" if self.indexed else "stream does not give the batches"
            raise WrongData(
                f"the {what} the checkpoint was trained on ({self.kind}). What draws random numbers while it runs "
                "needs a generator of its own; otherwise the data or the sampler has changed"
            )

    def _problem(self) -> str | None:
        """Why nobody can come back here, if so."""
        if self.workers > 1 and not getattr(self.loader, "in_order", True):
            return f"a DataLoader over {self.kind} with in_order=False gives its batches by chance"
        between_passes = not self.indexed and (self.over or (self.passes > 0 and self.taken == 0))
        if self.loader.persistent_workers and (self.unknown or between_passes):
            return f"the persistent workers of the DataLoader over {self.kind} are between two epochs"
        if self.draws.interleaved:
            return (
                f"the stream {self.kind} draws from the global random state in turns with the training; "
                "give it a random generator of its own, or num_workers=1"
            )
        if not self.indexed and not self.workers and self.taken and not self.over:
            # What was consumed is fetched again, which would advance the generator a second time.
            held = mutables.opaque(self.stream)
            if held is not None:
                return f"the data set {self.kind} keeps a started iterator ({held}); make it in __iter__"
        for state in self.states.values() if self.indexed else ():
            held = pickle.loads(state).get("opaque")
            if held is not None:
                return f"the data set {self.kind} keeps a started iterator in its workers ({held})"
        return None
