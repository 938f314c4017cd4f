"""Loaders beside the training loader, and the seed that torch draws for their persistent workers.

A ``DataLoader`` with persistent workers (for validation, say) draws a seed for them from the global generator, or its
own, when it is iterated for the first time in a process, and never again. A resumed process would draw it anew in the
middle of the training and shift all that comes behind. So while a feed is alive that seed is a fixed one, and nothing
is drawn for it, whether the run was disturbed or not.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader, IterDataPipe

_FED = "_everstep_fed"
_APART = 0x65766572  # the workers shall not have the numbers that the script draws first after its manual_seed


def mark(loader: DataLoader[Any]) -> None:
    """This loader is the training's: its seed is drawn as torch does it, and replayed by the feed."""
    loader.__dict__[_FED] = True


def watch(feed: object) -> None:
    """Fix the seeds of all loaders that are not marked, while ``feed`` is alive."""
    alive = weakref.ref(feed)
    inner: Callable[[Any], Any] = DataLoader.__iter__

    def iterate(loader: DataLoader[Any]) -> Any:
        if alive() is None or not _draws_once(loader):
            return inner(loader)
        drawn_from = loader.generator
        # Only for the seed: samplers have their generator already, and draw in each epoch.
        loader.generator = torch.Generator().manual_seed(torch.initial_seed() ^ _APART)
        try:
            return inner(loader)
        finally:
            loader.generator = drawn_from

    def release() -> None:
        # Otherwise somebody has exchanged it after us, and may come back to ours, which only passes on by then.
        if DataLoader.__iter__ is iterate:
            DataLoader.__iter__ = inner  # type: ignore[method-assign]

    DataLoader.__iter__ = iterate  # type: ignore[method-assign]
    weakref.finalize(feed, release)


def _draws_once(loader: DataLoader[Any]) -> bool:
    first = loader.persistent_workers and loader.num_workers > 0 and getattr(loader, "_iterator", None) is None
    # A data pipe draws another seed from the same generator, in each epoch.
    return first and _FED not in loader.__dict__ and not isinstance(loader.dataset, IterDataPipe)
