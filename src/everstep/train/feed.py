"""The data position: batches in the order of an undisturbed run, resumed in the middle of an epoch.

An epoch is replayed from the random state it began with, up to the batch after which the save was made:

* a ``DataLoader`` over a map-style dataset draws its index batches again without fetching them. With workers, each
  worker gets back the random state it had (shipped with every batch), and at most ``num_workers - 1`` batches are
  fetched and dropped, so that each batch meets the worker it would have met;
* a ``DataLoader`` over an ``IterableDataset``, or any other iterable, is fetched and dropped.

Afterwards the generators that the loader and its samplers draw from are put where they were when the save was made:
the training may draw from them as well. The end of the training is saved as what it is, the end of its last epoch,
which is replayed when more epochs follow.

Either way a checksum of what was drawn is compared with the one in the checkpoint: training never goes on with other
data.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable, Iterator
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from everstep.train import noise, randomness, seeding
from everstep.train.indexed import IndexedLoader
from everstep.train.loaders import WrongData, digest, generators, samplers

__all__ = ["END", "Feed", "WrongData", "length"]

logger = logging.getLogger("everstep.train")

END = object()
"""What `Feed.next` gives when all epochs are through."""


def length(loader: Iterable[Any]) -> int | None:
    """Number of batches per epoch, None if the loader does not know (every ``DataLoader`` has ``__len__``)."""
    try:
        return len(loader)  # type: ignore[arg-type]
    except (TypeError, NotImplementedError):
        return None


class Feed:
    """Draws batches from a loader, epoch after epoch, and can say where it is.

    Args:
        loader: a ``DataLoader`` or any iterable that can be iterated once per epoch.
        epochs: number of epochs, None for no end.
        resume: what `state` gave in the checkpoint, None to begin at the beginning.
        attached: objects whose state is saved beside this; workers keep one that is their data set as they got it.

    Raises:
        WrongData: the loader does not give again what it gave before.
        ValueError: the loader can never be resumed exactly.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        epochs: int | None,
        resume: dict[str, Any] | None,
        *,
        attached: Iterable[Any] = (),
    ) -> None:
        self._loader = loader
        self._epochs = epochs
        self._generators = generators(loader)
        self._own: list[Any] = []
        self._attached: Any = None
        if isinstance(loader, DataLoader):
            if loader.num_workers:
                # The generators of their data sets come back with every batch of theirs.
                self._attached = next((thing for thing in attached if thing is loader.dataset), None)
            else:
                known = {id(generator) for generator in self._generators}
                self._own = [one for one in noise.own_generators(loader.dataset) if id(one) not in known]
        self._indexed: IndexedLoader | None = None
        if isinstance(loader, DataLoader):
            if not getattr(loader, "in_order", True):
                raise ValueError("a DataLoader with in_order=False gives its batches by chance; it cannot be resumed")
            # A subclass with its own way to iterate may do anything: it is fetched and dropped.
            plain = type(loader).__iter__ is DataLoader.__iter__
            if plain and not isinstance(loader.dataset, IterableDataset):
                self._indexed = IndexedLoader(loader, self._generators)
            else:
                seeding.mark(loader)
                if resume is None and epochs != 1:
                    _warn_of_kept_workers(loader)
        seeding.watch(self)
        self._batches: Iterator[Any] | None = None
        self._opened_with: dict[str, Any] = {}
        self._last: Any = None
        self.epoch = 0
        self.consumed = 0
        self._ended_after = 0
        self._over: dict[str, Any] | None = None
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
                self._end()
                continue
            self.consumed += 1
            return batch

    def state(self) -> dict[str, Any]:
        """Where the feed is: after ``consumed`` batches of ``epoch``; or, with none, behind all of the one before.

        Picklable.

        Raises:
            ValueError: the loader cannot be brought back to where it is now.
        """
        if self._over is not None:
            return self._over
        state: dict[str, Any] = {
            "epoch": self.epoch,
            "consumed": self.consumed,
            "ended_after": self._ended_after,
            "opened_with": self._opened_with,
            "generators": [generator.get_state() for generator in self._generators],
            "own": noise.states(self._own),
        }
        if self._indexed is not None:
            state["indexed"] = self._indexed.state()
        else:
            state["last_batch"] = digest(self._last)
        return state

    # --- one epoch ----------------------------------------------------------------------------------------------

    def _open(self) -> None:
        for sampler in samplers(self._loader):
            set_epoch = getattr(sampler, "set_epoch", None)
            if callable(set_epoch):
                set_epoch(self.epoch)
        begun_with = self._opened_with.get("dataset")
        self._opened_with = {
            "random": randomness.capture(),
            "generators": [generator.get_state() for generator in self._generators],
            "own": noise.states(self._own),
        }
        if self._attached is not None:
            kept = begun_with is not None and getattr(self._loader, "persistent_workers", False)
            self._opened_with["dataset"] = begun_with if kept else copy.deepcopy(self._attached.state_dict())
        self._batches = iter(self._loader) if self._indexed is None else self._indexed.open()

    def _end(self) -> None:
        self.epoch += 1
        self._ended_after, self.consumed = self.consumed, 0
        self._batches = None

    def _fetch(self) -> Any:
        assert self._batches is not None
        batch = next(self._batches)
        if self._indexed is not None:
            return self._indexed.unwrap(batch)
        self._last = batch
        return batch

    # --- resuming -----------------------------------------------------------------------------------------------

    def _resume(self, state: dict[str, Any]) -> None:
        if "ended_after" not in state:
            raise WrongData("an older everstep wrote it, and left out what the position in the data needs now")
        self.epoch = int(state["epoch"])
        if len(state["generators"]) != len(self._generators) or ("indexed" in state) != bool(self._indexed):
            raise WrongData("the loader is not built as it was when the checkpoint was written")
        consumed, ended_after = int(state["consumed"]), int(state["ended_after"])
        if not consumed and self._epochs is not None and self.epoch >= self._epochs:
            # All is done, and the loader will not be asked again.
            self._over = state
        elif consumed:
            self._replay(state, consumed)
        elif ended_after:
            self.epoch -= 1
            self._replay(state, ended_after)
            self._replay_end()
        self._set_generators(state["generators"])
        self._set_own(state)

    def _set_own(self, saved: dict[str, Any]) -> None:
        states = saved.get("own", [])
        if len(states) != len(self._own):
            raise WrongData("the data set does not have the random generators that it had")
        noise.restore(self._own, states)

    def _set_generators(self, states: list[Any]) -> None:
        for generator, saved in zip(self._generators, states, strict=True):
            generator.set_state(saved)

    def _replay(self, state: dict[str, Any], consumed: int) -> None:
        """Begin ``self.epoch`` as it was begun, and go on to where ``consumed`` batches are through."""
        randomness.restore(state["opened_with"]["random"])
        opened_with = state["opened_with"]
        self._set_generators(opened_with["generators"])
        self._set_own(opened_with)
        skip = 0
        if self._indexed is not None:
            skip = self._indexed.resume(state["indexed"], consumed, first_epoch=self.epoch == 0)
        if self._attached is not None and "dataset" in opened_with:
            now = copy.deepcopy(self._attached.state_dict())
            self._attached.load_state_dict(copy.deepcopy(opened_with["dataset"]))
            self._opened_with["dataset"] = opened_with["dataset"]
            self._open()
            self._attached.load_state_dict(now)
        else:
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
        elif digest(self._last) != state["last_batch"]:
            raise WrongData(
                f"batch {consumed} of epoch {self.epoch} is not the one the checkpoint was trained on: the loader's "
                "order must depend on nothing but its seed and the random state at the start of the epoch"
                f"{_why(self._loader)}"
            )

    def _replay_end(self) -> None:
        """What is drawn when the epoch is found to be over is drawn again, too."""
        consumed = self.consumed
        try:
            self._fetch()
        except StopIteration:
            self._end()
            return
        raise WrongData(f"epoch {self.epoch} has more batches now than the {consumed} that were trained on")


def _keeps_workers(loader: Any) -> bool:
    return isinstance(loader, DataLoader) and loader.num_workers > 0 and loader.persistent_workers


def _why(loader: Any) -> str:
    """Likely causes, for a loader whose batches are fetched and dropped."""
    if _keeps_workers(loader):
        return (
            ". Its persistent workers take their random states from one epoch to the next, and these are not saved: "
            "with persistent_workers=False a dataset that draws random numbers can be resumed"
        )
    return (
        ". Likely causes: the data has changed; the dataset keeps something from one epoch to the next; it draws "
        "random numbers in turns with the training, or from a generator of its own"
    )


def _warn_of_kept_workers(loader: DataLoader[Any]) -> None:
    if _keeps_workers(loader):
        logger.warning(
            "everstep: the DataLoader over %s has persistent_workers=True: if the dataset draws random numbers in its "
            "workers, or keeps something from one epoch to the next, it can be resumed in its first epoch only; with "
            "persistent_workers=False random numbers are no obstacle",
            type(loader.dataset).__name__,
        )
