"""Watching a ``DataLoader``: what its sampler draws, what random state its workers have, and skipping without fetching.

Shared by the library (`everstep.train.feed`) and by the automatic mode (`everstep.train.script.batches`).
"""

from __future__ import annotations

import hashlib
import pickle
import random
import sys
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from everstep.train import noise, randomness


class WrongData(Exception):
    """The replayed data is not what the checkpoint was trained on; the text says what differs and what helps."""


class Tap:
    """Stands in for a sampler: passes on what it gives, keeps a chained checksum per draw, can skip at first use."""

    def __init__(self, inner: Iterable[Any]) -> None:
        self._inner = inner
        self.skip = 0
        self.checks: deque[int] = deque()
        self.idle_openings = 0
        """So many times ``iter`` gives an empty iterator without asking the sampler."""
        self.opened: Callable[[], None] | None = None
        """Called after the sampler was asked for an iterator."""
        self._draw: Draw | None = None

    def __iter__(self) -> Iterator[Any]:
        if self.idle_openings:
            self.idle_openings -= 1
            return iter(())
        self.checks.clear()
        self._draw = Draw(iter(self._inner), self.skip, self.checks)
        if self.opened is not None:
            self.opened()
        return self._draw

    def __len__(self) -> int:
        return len(self._inner)  # type: ignore[arg-type]  # as sized as the sampler it stands for

    def skip_now(self) -> int:
        """Skip what is to be skipped, unless a worker's first draw did; returns the checksum after it."""
        assert self._draw is not None
        return self._draw.skip_now()

    def drawn(self) -> int:
        """Checksum of all that was drawn in this pass, also ahead."""
        return self._draw.check if self._draw is not None else 0


class Draw:
    """One pass over a sampler; made by `Tap`.

    Attributes:
        check: checksum of all that was drawn.
    """

    def __init__(self, inner: Iterator[Any], skip: int, checks: deque[int]) -> None:
        self._inner = inner
        self._skip = skip
        self._checks = checks
        self.check = 0
        self._check_after_skip = 0

    def __iter__(self) -> Draw:
        return self

    def __next__(self) -> Any:
        self.skip_now()
        drawn = self._advance()
        self._checks.append(self.check)
        return drawn

    def skip_now(self) -> int:
        """As `Tap.skip_now`."""
        if self._skip:
            # Not before first use: in an undisturbed run the loader draws its seed before the sampler draws its own.
            skip, self._skip = self._skip, 0
            try:
                for _ in range(skip):
                    self._advance()
            except StopIteration:
                raise WrongData(f"the sampler gives fewer than {skip} index batches now") from None
            self._check_after_skip = self.check
        return self._check_after_skip

    def _advance(self) -> Any:
        drawn = next(self._inner)
        shown = drawn.tolist() if isinstance(drawn, torch.Tensor) else drawn
        self.check = zlib.crc32(repr(shown).encode(), self.check)
        return drawn


class CollateWithState:
    """Runs in a worker: ships the worker's random state after each batch."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self._collate = collate

    def __call__(self, samples: Any) -> tuple[Any, int, bytes]:
        """The batch, the worker's number, its pickled state."""
        batch = self._collate(samples)
        info = torch.utils.data.get_worker_info()
        assert info is not None
        return batch, info.id, pickle.dumps(self.state(info.dataset))

    def state(self, dataset: Any) -> dict[str, Any]:
        """What is shipped."""
        return {**worker_random(), "own": noise.states(noise.own_generators(dataset))}


class InitWithState:
    """Runs in a new worker: puts its random state where the worker of the checkpoint had it."""

    def __init__(self, init: Callable[[int], None] | None, states: dict[int, bytes]) -> None:
        self._init = init
        self._states = states

    def __call__(self, worker: int) -> None:
        """What torch calls as ``worker_init_fn``."""
        if self._init is not None:
            self._init(worker)
        if worker in self._states:
            self.restore(pickle.loads(self._states[worker]))

    def restore(self, state: dict[str, Any]) -> None:
        """Undo what `CollateWithState.state` took."""
        randomness.restore(state)
        info = torch.utils.data.get_worker_info()
        if info is not None and state.get("own"):
            noise.restore(noise.own_generators(info.dataset), state["own"])


def worker_random() -> dict[str, Any]:
    """The random states of a worker: like `randomness.capture`, without CUDA, which a worker must not touch."""
    state: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        state["numpy"] = numpy.random.get_state()
    return state


def samplers(loader: Any) -> list[Any]:
    """The samplers of a loader, outermost first, each once; none for a plain iterable."""
    if not isinstance(loader, DataLoader):
        return [loader] if hasattr(loader, "set_epoch") else []
    outer = loader.batch_sampler
    found = [outer, getattr(outer, "sampler", None), loader.sampler, loader.dataset]
    return list({id(sampler): sampler for sampler in found if sampler is not None}.values())


def generators(loader: Any) -> list[torch.Generator]:
    """The generators a loader and its samplers draw from beside the global one, each once."""
    if not isinstance(loader, DataLoader):
        return []
    found = [getattr(owner, "generator", None) for owner in (loader, *samplers(loader))]
    return list({id(g): g for g in found if isinstance(g, torch.Generator)}.values())


def digest(batch: Any) -> str:
    """A checksum of a batch of tensors, arrays and containers."""
    hashed = hashlib.sha256()

    def take(thing: Any) -> None:
        hashed.update(type(thing).__name__.encode())
        if isinstance(thing, torch.Tensor):
            hashed.update(f"{thing.dtype}{tuple(thing.shape)}".encode())
            hashed.update(thing.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        elif isinstance(thing, dict):
            for key, value in thing.items():
                take(key)
                take(value)
        elif isinstance(thing, (list, tuple)):
            for value in thing:
                take(value)
        else:
            hashed.update(pickle.dumps(thing))

    take(batch)
    return hashed.hexdigest()
