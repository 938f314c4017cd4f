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
import hashlib
import pickle
import random
import sys
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from everstep.train import randomness

END = object()
"""What `Feed.next` gives when all epochs are through."""


class WrongData(Exception):
    """The replayed data is not what the checkpoint was trained on; the text says what differs and what helps."""


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
        self._generators = _generators(loader)
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
            state["last_batch"] = _digest(self._last)
        return state

    # --- one epoch ----------------------------------------------------------------------------------------------

    def _open(self) -> None:
        for sampler in _samplers(self._loader):
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
        elif _digest(self._last) != state["last_batch"]:
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
        self._tap = _Tap(loader.sampler if loader.batch_sampler is None else loader.batch_sampler)
        self._loader.__dict__["batch_sampler" if batched else "sampler"] = self._tap
        self._init = loader.worker_init_fn
        self._generator = loader.generator
        if self._workers:
            self._loader.__dict__["collate_fn"] = _CollateWithState(loader.collate_fn)
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
            self._loader.__dict__["worker_init_fn"] = _InitWithState(self._init, states)
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


class _Tap:
    """Stands in for a sampler: passes on what it gives, keeps a chained checksum per draw, can skip at first use."""

    def __init__(self, inner: Iterable[Any]) -> None:
        self._inner = inner
        self.skip = 0
        self.checks: deque[int] = deque()
        self._draw: _Draw | None = None

    def __iter__(self) -> Iterator[Any]:
        self.checks.clear()
        self._draw = _Draw(iter(self._inner), self.skip, self.checks)
        return self._draw

    def __len__(self) -> int:
        return len(self._inner)  # type: ignore[arg-type]  # as sized as the sampler it stands for

    def skip_now(self) -> int:
        """Skip what is to be skipped, unless a worker's first draw did; returns the checksum after it."""
        assert self._draw is not None
        return self._draw.skip_now()


class _Draw:
    def __init__(self, inner: Iterator[Any], skip: int, checks: deque[int]) -> None:
        self._inner = inner
        self._skip = skip
        self._checks = checks
        self._check = 0
        self._check_after_skip = 0

    def __iter__(self) -> _Draw:
        return self

    def __next__(self) -> Any:
        self.skip_now()
        drawn = self._advance()
        self._checks.append(self._check)
        return drawn

    def skip_now(self) -> int:
        if self._skip:
            # Not before first use: in an undisturbed run the loader draws its seed before the sampler draws its own.
            skip, self._skip = self._skip, 0
            try:
                for _ in range(skip):
                    self._advance()
            except StopIteration:
                raise WrongData(f"the sampler gives fewer than {skip} index batches now") from None
            self._check_after_skip = self._check
        return self._check_after_skip

    def _advance(self) -> Any:
        drawn = next(self._inner)
        shown = drawn.tolist() if isinstance(drawn, torch.Tensor) else drawn
        self._check = zlib.crc32(repr(shown).encode(), self._check)
        return drawn


class _CollateWithState:
    """Runs in a worker: ships the worker's random state after each batch."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self._collate = collate

    def __call__(self, samples: Any) -> tuple[Any, int, bytes]:
        batch = self._collate(samples)
        info = torch.utils.data.get_worker_info()
        assert info is not None
        return batch, info.id, pickle.dumps(_worker_random())


class _InitWithState:
    """Runs in a new worker: puts its random state where the worker of the checkpoint had it."""

    def __init__(self, init: Callable[[int], None] | None, states: dict[int, bytes]) -> None:
        self._init = init
        self._states = states

    def __call__(self, worker: int) -> None:
        if self._init is not None:
            self._init(worker)
        if worker in self._states:
            randomness.restore(pickle.loads(self._states[worker]))


def _worker_random() -> dict[str, Any]:
    state: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        state["numpy"] = numpy.random.get_state()
    return state


def _samplers(loader: Any) -> list[Any]:
    """The samplers of a loader, outermost first, each once; none for a plain iterable."""
    if not isinstance(loader, DataLoader):
        return [loader] if hasattr(loader, "set_epoch") else []
    outer = loader.batch_sampler
    found = [outer, getattr(outer, "sampler", None), loader.sampler, loader.dataset]
    return list({id(sampler): sampler for sampler in found if sampler is not None}.values())


def _generators(loader: Any) -> list[torch.Generator]:
    """The generators a loader and its samplers draw from beside the global one, each once."""
    if not isinstance(loader, DataLoader):
        return []
    found = [getattr(owner, "generator", None) for owner in (loader, *_samplers(loader))]
    return list({id(g): g for g in found if isinstance(g, torch.Generator)}.values())


def _digest(batch: Any) -> str:
    """A checksum of a batch of tensors, arrays and containers."""
    digest = hashlib.sha256()

    def take(thing: Any) -> None:
        digest.update(type(thing).__name__.encode())
        if isinstance(thing, torch.Tensor):
            digest.update(f"{thing.dtype}{tuple(thing.shape)}".encode())
            digest.update(thing.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        elif isinstance(thing, dict):
            for key, value in thing.items():
                take(key)
                take(value)
        elif isinstance(thing, (list, tuple)):
            for value in thing:
                take(value)
        else:
            digest.update(pickle.dumps(thing))

    take(batch)
    return digest.hexdigest()
