from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, Sampler, WeightedRandomSampler

from everstep.train import randomness
from everstep.train.feed import END, Feed, WrongData


class Counted(Dataset):
    """Items that draw random numbers; counts what is fetched in this process."""

    def __init__(self, size: int = 11) -> None:
        self.size = size
        self.fetched = 0

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, at: int) -> torch.Tensor:
        self.fetched += 1
        return torch.tensor([at, random.random(), float(torch.rand(()))])


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return (torch.tensor([i, random.random()]) for i in range(9))


class Lazy(Sampler):
    """Draws from the global state while it runs: cannot be replayed when training draws in between."""

    def __iter__(self) -> Iterator[int]:
        return (int(torch.randint(11, ())) for _ in range(11))

    def __len__(self) -> int:
        return 11


class Epochs(Sampler):
    def __init__(self) -> None:
        self.told: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        self.told.append(epoch)

    def __iter__(self) -> Iterator[int]:
        return iter([(i * 3 + self.told[-1]) % 11 for i in range(11)])

    def __len__(self) -> int:
        return 11


def own_generator() -> DataLoader:
    generator = torch.Generator()
    generator.manual_seed(9)
    data = Counted()
    return DataLoader(data, batch_size=3, sampler=RandomSampler(data, generator=generator), generator=generator)


def plain_list() -> list[Any]:
    return [torch.tensor([i]) for i in range(7)]


LOADERS: dict[str, Callable[[], Iterable[Any]]] = {
    "shuffled": lambda: DataLoader(Counted(), batch_size=3, shuffle=True),
    "workers": lambda: DataLoader(Counted(), batch_size=3, shuffle=True, num_workers=2),
    "persistent": lambda: DataLoader(Counted(), batch_size=3, shuffle=True, num_workers=2, persistent_workers=True),
    "unbatched": lambda: DataLoader(Counted(), batch_size=None, shuffle=True),
    "weighted": lambda: DataLoader(Counted(), batch_size=3, sampler=WeightedRandomSampler([1.0] * 11, 11)),
    "generator": own_generator,
    "stream": lambda: DataLoader(Stream(), batch_size=2),
    "list": plain_list,
    "epochs": lambda: DataLoader(Counted(), batch_size=4, sampler=Epochs()),
}


def draw(feed: Feed, count: int) -> list[str]:
    """Batches as text, with training drawing random numbers in between."""
    texts = []
    for _ in range(count):
        batch = feed.next()
        texts.append("end" if batch is END else f"{batch.tolist()} {float(torch.rand(()))}")
    return texts


def seeded(loader: Callable[[], Iterable[Any]]) -> Feed:
    torch.manual_seed(1)
    random.seed(2)
    return Feed(loader(), 3, None)


@pytest.mark.parametrize("kind", LOADERS)
@pytest.mark.parametrize("done", [1, 2, 4, 5, 9])
def test_resumed_feed_gives_the_rest_of_the_undisturbed_one(kind: str, done: int) -> None:
    undisturbed = draw(seeded(LOADERS[kind]), 12)
    first = seeded(LOADERS[kind])
    draw(first, done)
    state, at = first.state(), randomness.capture()
    del first
    torch.manual_seed(99)
    random.seed(99)
    resumed = Feed(LOADERS[kind](), 3, state)
    randomness.restore(at)
    assert draw(resumed, 12 - done) == undisturbed[done:]
    assert (resumed.epoch, resumed.consumed) != (state["epoch"], state["consumed"])


def test_a_map_style_dataset_is_not_fetched_to_skip() -> None:
    first = seeded(LOADERS["shuffled"])
    draw(first, 3)
    data = Counted()
    resumed = Feed(DataLoader(data, batch_size=3, shuffle=True), 3, first.state())
    assert data.fetched == 0
    resumed.next()
    assert data.fetched == 2  # the last batch of 11 items has two


def test_epochs_end_and_set_epoch_is_told() -> None:
    sampler = Epochs()
    feed = Feed(DataLoader(Counted(), batch_size=4, sampler=sampler), 2, None)
    assert [feed.next() is END for _ in range(8)] == [False] * 6 + [True] * 2
    assert sampler.told == [0, 1]


def test_a_sampler_that_draws_while_training_draws_is_refused() -> None:
    def loader() -> DataLoader:
        return DataLoader(Counted(), batch_size=3, sampler=Lazy())

    first = seeded(loader)
    draw(first, 3)
    with pytest.raises(WrongData, match="generator of its own"):
        Feed(loader(), 3, first.state())


def test_a_stream_that_draws_while_training_draws_is_refused() -> None:
    first = seeded(lambda: DataLoader(Stream(), batch_size=2))
    for _ in range(3):
        first.next()
        random.random()
    with pytest.raises(WrongData, match="batch 3 of epoch 0 is not the one"):
        Feed(DataLoader(Stream(), batch_size=2), 3, first.state())


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        (lambda: DataLoader(Counted(12), batch_size=3, shuffle=True), "order"),
        (lambda: DataLoader(Counted(), batch_size=2, shuffle=True), "order"),
        (lambda: DataLoader(Counted(4), batch_size=3, shuffle=True), "fewer than 3"),
        (lambda: DataLoader(Counted(), batch_size=3, shuffle=True, num_workers=1), "1 workers now"),
        (plain_list, "not built as it was"),
        (own_generator, "not built as it was"),
    ],
)
def test_changed_data_is_refused(changed: Callable[[], Iterable[Any]], text: str) -> None:
    first = seeded(LOADERS["shuffled"])
    draw(first, 3)
    with pytest.raises(WrongData, match=text):
        Feed(changed(), 3, first.state())


def test_a_used_up_iterator_is_named() -> None:
    feed = Feed(iter([1, 2]), None, None)
    assert [feed.next(), feed.next()] == [1, 2]
    with pytest.raises(ValueError, match="used up only once"):
        feed.next()


def test_a_loader_by_chance_is_refused() -> None:
    with pytest.raises(ValueError, match="in_order"):
        Feed(DataLoader(Counted(), num_workers=1, in_order=False), 1, None)
