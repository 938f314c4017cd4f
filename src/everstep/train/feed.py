"""The data position: batches in the order of an undisturbed run, resumed in the middle of an epoch.

An epoch is replayed from the random state it began with, up to the batch after which the save was made:

* a ``DataLoader`` over a map-style dataset draws its index batches again without fetching them. With workers, each
  worker gets back the random state it had (shipped with every batch), and at most ``num_workers - 1`` batches are
  fetched and dropped, so that each batch meets the worker it would have met;
* a ``DataLoader`` over an ``IterableDataset``, or any other iterable, is fetched and dropped.

Either way a checksum of what was drawn is compared with the one in the checkpoint: training never goes on with other
data.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from everstep.train import randomness
from everstep.train.loaders import CollateWithState, InitWithState, Tap, WrongData, digest, generators, samplers

__all__ = ["END", "Feed", "WrongData"]

END = object()
"""What `Feed.next` gives when all epochs are through."""


class Feed:
    """Draws batches from a loader, epoch after epoch, and can say where it is.

    Args:
        loader: a ``DataLoader`` or any iterable that can be iterated once per epoch.
        epochs: number of epochs, None for no end.
        resume: what `state` gave in the checkpoint, None to begin at the beginning.

    Raises:
        WrongData: the loader does not give again what it gave before.
        ValueError: the loader can never be resumed exactly.
    """

    def __init__(self, loader: Iterable[Any], epochs: int | None, resume: dict[str, Any] | None) -> None:
        self._loader = loader
        self._epochs = epochs
        self._indexed: _IndexedLoader | None = None
        if isinstance(loader, DataLoader):
            if not getattr(loader, "in_order", True):
                raise ValueError("a DataLoader with in_order=False gives its batches by chance; it cannot be resumed")
            # A subclass with its own way to iterate may do anything: it is fetched and dropped.
            plain = type(loader).__iter__ is DataLoader.__iter__
            if plain and not isinstance(loader.dataset, IterableDataset):
                self._indexed = _IndexedLoader(loader)
        self._generators = generators(loader)
        self._batches: Iterator[Any] | None = None
        self._opened_with: dict[str, Any] = {}
        self._last: Any = None
        self.epoch = 0
        self.consumed = 0
        if resume is not None:
            self._resume(resume)

    def next(self) -> Any:
        """The next batch, or `END`."""
        while True:
            if self._batches is None:
                if self._epochs is not None and self.epoch >= self._epochs:
                    return END
                self._open()
            assert self._batches is not None
            try:
                batch = self._fetch()
            except StopIteration:
                if self.consumed == 0:
                    raise ValueError(
                        f"the loader gave no batch in epoch {self.epoch}; an iterator can be used up only once: "
                        "give steps() the iterable it was made from"
                    ) from None
                self.epoch += 1
                self.consumed = 0
                self._batches = None
                continue
            self.consumed += 1
            return batch

    def state(self) -> dict[str, Any]:
        """Where the feed is: after ``consumed`` batches of ``epoch``. Picklable."""
        state: dict[str, Any] = {"epoch": self.epoch, "consumed": self.consumed, "opened_with": self._opened_with}
        if self._indexed is not None:
            state["indexed"] = self._indexed.state()
            state["generators"] = [generator.get_state() for generator in self._generators]
        else:
            state["last_batch"] = digest(self._last)
        return state

    # --- one epoch ----------------------------------------------------------------------------------------------

    def _open(self) -> None:
        for sampler in samplers(self._loader):
            set_epoch = getattr(sampler, "set_epoch", None)
            if callable(set_epoch):
                set_epoch(self.epoch)
        self._opened_with = {
            "random": randomness.capture(),
            "generators": [generator.get_state() for generator in self._generators],
        }
        self._batches = iter(self._loader) if self._indexed is None else self._indexed.open()

    def _fetch(self) -> Any:
        assert self._batches is not None
        batch = next(self._batches)
        if self._indexed is not None:
            return self._indexed.unwrap(batch)
        self._last = batch
        return batch

    # --- resuming -----------------------------------------------------------------------------------------------

    def _resume(self, state: dict[str, Any]) -> None:
        self.epoch = int(state["epoch"])
        consumed = int(state["consumed"])
        if consumed == 0:
            return
        opened_with = state["opened_with"]
        if len(opened_with["generators"]) != len(self._generators) or ("indexed" in state) != bool(self._indexed):
            raise WrongData("the loader is not built as it was when the checkpoint was written")
        randomness.restore(opened_with["random"])
        for generator, saved in zip(self._generators, opened_with["generators"], strict=True):
            generator.set_state(saved)
        skip = 0
        if self._indexed is not None:
            skip = self._indexed.resume(state["indexed"], consumed, first_epoch=self.epoch == 0)
        self._open()
        self.consumed = skip
        while self.consumed < consumed:
            try:
                self._fetch()
            except StopIteration:
                raise WrongData(
                    f"epoch {self.epoch} has {self.consumed} batches now, the checkpoint was written after {consumed}"
                ) from None
            self.consumed += 1
        if self._indexed is not None:
            self._indexed.verify(state["indexed"])
            if not self._indexed.draws_ahead:
                # A dataset that draws from a generator of its own was not asked for the skipped batches.
                for generator, saved in zip(self._generators, state["generators"], strict=True):
                    generator.set_state(saved)
        elif digest(self._last) != state["last_batch"]:
            raise WrongData(
                f"batch {consumed} of epoch {self.epoch} is not the one the checkpoint was trained on: the loader's "
                "order must depend on nothing but its seed and the random state at the start of the epoch"
            )


class _IndexedLoader:
    """A map-style ``DataLoader`` whose index batches are watched and can be skipped without fetching."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        # A shallow copy shares dataset and samplers; the loader of the user stays as it is. Its attributes are set
        # through __dict__, because DataLoader forbids to exchange its sampler after it was made.
        self._loader = copy.copy(loader)
        self._loader.__dict__["_iterator"] = None
        self._workers = loader.num_workers
        batched = loader.batch_sampler is not None
        self._tap = Tap(loader.sampler if loader.batch_sampler is None else loader.batch_sampler)
        self._loader.__dict__["batch_sampler" if batched else "sampler"] = self._tap
        self._init = loader.worker_init_fn
        self._generator = loader.generator
        if self._workers:
            self._loader.__dict__["collate_fn"] = CollateWithState(loader.collate_fn)
        self._taken = 0
        self._check = 0
        self._worker_states: dict[int, bytes] = {}
        self._round_states: dict[int, bytes] = {}
        self._resuming_states: dict[int, bytes] | None = None

    @property
    def draws_ahead(self) -> bool:
        """True if indices are drawn before their batch is asked for."""
        return self._workers > 0

    def open(self) -> Iterator[Any]:
        """Begin an epoch, or (after `resume`) continue one."""
        states, self._resuming_states = self._resuming_states, None
        self._taken = self._tap.skip
        if states is not None:
            self._round_states = dict(states)
            self._worker_states = dict(states)
            self._loader.__dict__["worker_init_fn"] = InitWithState(self._init, states)
        else:
            if not self._loader.persistent_workers:
                self._worker_states = {}
            self._round_states = dict(self._worker_states)
        batches = iter(self._loader)
        self._loader.__dict__.update(worker_init_fn=self._init, generator=self._generator)
        # Workers have drawn ahead by now; without workers the skip is made here, before anything else draws.
        self._check = self._tap.skip_now()
        # Not reset by the tap: a loader with workers asks its sampler for an iterator twice, and uses the second.
        self._tap.skip = 0
        return batches

    def unwrap(self, batch: Any) -> Any:
        """Note the position after this batch and return it as the user's collate function made it."""
        self._check = self._tap.checks.popleft()
        if self._workers:
            if self._taken % self._workers == 0:
                self._round_states = dict(self._worker_states)
            batch, worker, state = batch
            self._worker_states[worker] = state
        self._taken += 1
        return batch

    def state(self) -> dict[str, Any]:
        """Checksum of the index batches so far, and the random states of the workers before the current round."""
        complete = self._workers and self._taken % self._workers == 0
        states = self._worker_states if complete else self._round_states
        return {"check": self._check, "workers": self._workers, "states": dict(states)}

    def resume(self, state: dict[str, Any], consumed: int, *, first_epoch: bool) -> int:
        """Prepare `open` to continue after ``consumed`` batches; returns how many of them it will not fetch."""
        if state["workers"] != self._workers:
            raise WrongData(
                f"the loader has {self._workers} workers now, the checkpoint was written with {state['workers']}"
            )
        skip = consumed - consumed % self._workers if self._workers else consumed
        self._tap.skip = skip
        self._resuming_states = state["states"]
        if self._loader.persistent_workers and not first_epoch:
            # The workers of the undisturbed run were there already: nothing was drawn for their seeds in this epoch.
            self._loader.__dict__["generator"] = torch.Generator()
            if len(state["states"]) < self._workers:
                raise WrongData("an epoch gives some persistent workers no batch: their random states are not known")
        return skip

    def verify(self, state: dict[str, Any]) -> None:
        """Compare what was drawn with what the checkpoint says."""
        if self._check != state["check"]:
            raise WrongData(
                "the sampler does not give the order the checkpoint was trained on. A sampler that draws random "
                "numbers while it runs needs a generator of its own; otherwise the data or the sampler has changed"
            )
