"""A map-style ``DataLoader`` that can go on in the middle of an epoch; see `everstep.train.feed`."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader

from everstep.train import seeding
from everstep.train.loaders import CollateWithState, InitWithState, Tap, WrongData
from everstep.train.sharing import Watched


class IndexedLoader:
    """A map-style ``DataLoader`` whose index batches are watched and can be skipped without fetching.

    Args:
        loader: of the user.
        generators: those that it and its samplers draw from.
    """

    def __init__(self, loader: DataLoader[Any], generators: Sequence[torch.Generator]) -> None:
        # A shallow copy shares dataset and samplers; the loader of the user stays as it is. Its attributes are set
        # through __dict__, because DataLoader forbids to exchange its sampler after it was made.
        self._loader = copy.copy(loader)
        self._loader.__dict__["_iterator"] = None
        seeding.mark(self._loader)
        self._workers = loader.num_workers
        batched = loader.batch_sampler is not None
        self._watched = Watched(loader.sampler if loader.batch_sampler is None else loader.batch_sampler, generators)
        self._tap = Tap(self._watched)
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
        """Checksums of the index batches so far, and the random states of the workers before the current round.

        Raises:
            ValueError: the sampler cannot be replayed from here.
        """
        if self._watched.mixed:
            raise ValueError(
                "the sampler draws more random numbers from a generator that something else has drawn from in this "
                "epoch, so its order cannot be replayed: it needs a generator of its own"
            )
        complete = self._workers and self._taken % self._workers == 0
        states = self._worker_states if complete else self._round_states
        return {
            "check": self._check,
            "drawn": self._tap.drawn(),
            "workers": self._workers,
            "prefetch": self._loader.prefetch_factor,
            "states": dict(states),
        }

    def resume(self, state: dict[str, Any], consumed: int, *, first_epoch: bool) -> int:
        """Prepare `open` to continue after ``consumed`` batches; returns how many of them it will not fetch."""
        if state["workers"] != self._workers:
            raise WrongData(
                f"the loader has {self._workers} workers now, the checkpoint was written with {state['workers']}"
            )
        if state["prefetch"] != self._loader.prefetch_factor:
            # Else the sampler would draw its numbers at other steps, which shows where it shares its generator.
            raise WrongData(
                f"the loader has prefetch_factor={self._loader.prefetch_factor} now, the checkpoint was written with "
                f"{state['prefetch']}"
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
        # Also what is drawn for batches to come: their workers have it, and do not ask again.
        if (self._check, self._tap.drawn()) != (state["check"], state["drawn"]):
            raise WrongData(
                "the sampler does not give the order the checkpoint was trained on. A sampler that draws random "
                "numbers while it runs needs a generator of its own, named generator, where it is looked for; what "
                "else it keeps from one epoch to the next is not saved. Otherwise the data or the sampler has changed"
            )
