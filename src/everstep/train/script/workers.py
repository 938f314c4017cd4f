"""What the workers of a ``DataLoader`` hold between two batches, and which of it serves to go on somewhere."""

from __future__ import annotations

import pickle
from typing import Any

import torch

from everstep.train.loaders import CollateWithState, InitWithState, worker_random
from everstep.train.script import mutables
from everstep.train.script.glance import glance_random

Position = dict[str, Any]
"""Of a loader's iterator, see `batches`. By worker, pickled states as `Collate` ships them with each batch:
``start_states`` before the pass, ``round_states`` before the last batch of each, ``states`` behind the last ones."""


def reachable(position: Position, consumed: int) -> tuple[int, dict[int, bytes]]:
    """How many batches of the pass need not be fetched to get behind ``consumed`` of them, and the worker states to go
    on with after these.
    """
    workers, taken = position["workers"], position["consumed"]
    if not position["indexed"]:
        return 0, position["start_states"]
    if not workers:
        return consumed, {}
    rounds = consumed - consumed % workers
    if rounds and rounds == taken:
        return rounds, position["states"]
    if rounds and taken - workers <= rounds < taken and rounds == (taken - 1) // workers * workers:
        return rounds, position["round_states"]
    return 0, position["start_states"]


def same_random(one: dict[int, bytes], other: dict[int, bytes], worker: int) -> bool:
    """The worker has the same random states in both. (Pickles of equal values need not be equal.)"""
    return worker in other and glance_random(pickle.loads(one[worker])) == glance_random(pickle.loads(other[worker]))


class Collate(CollateWithState):
    """Ships with each batch the random state of the worker and small state of its data set."""

    def state(self, dataset: Any) -> dict[str, Any]:
        """Of this worker."""
        roots = {"dataset": dataset, "collate": self._collate}
        return {**worker_random(), "kept": mutables.capture(roots), "opaque": mutables.opaque(roots)}


class Init(InitWithState):
    """Starts a worker with what `Collate` had shipped."""

    def restore(self, state: dict[str, Any]) -> None:
        """Of this worker."""
        super().restore(state)
        info = torch.utils.data.get_worker_info()
        assert info is not None
        mutables.restore({"dataset": info.dataset}, state["kept"])
