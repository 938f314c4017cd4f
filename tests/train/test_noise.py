"""Data sets that keep something for themselves: random generators, or a state that is attached."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from everstep.train import noise, randomness
from everstep.train.feed import END, Feed, WrongData


class Shaken:
    """Adds noise of a generator of its own."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.source: Any = {
            "numpy": lambda: np.random.default_rng(0),
            "old numpy": lambda: np.random.RandomState(0),
            "python": lambda: random.Random(0),
            "torch": lambda: torch.Generator().manual_seed(0),
        }[kind]()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind == "torch":
            return x + torch.randn((), generator=self.source)
        return x + float(self.source.random() if self.kind != "old numpy" else self.source.rand())


class Noisy(Dataset[torch.Tensor]):
    def __init__(self, kind: str) -> None:
        self.x = torch.arange(24.0).reshape(12, 2)
        self.transforms = [Shaken(kind)]

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        x = self.x[index]
        for transform in self.transforms:
            x = transform(x)
        return x


class Stream(IterableDataset[torch.Tensor]):
    def __init__(self) -> None:
        self.shaken = Shaken("numpy")

    def __iter__(self) -> Any:
        return iter([self.shaken(torch.ones(2)) for _ in range(8)])


class Scaled(Dataset[torch.Tensor]):
    """Its scale is set by the training."""

    def __init__(self) -> None:
        self.scale = 1.0

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.ones(2) * index * self.scale

    def state_dict(self) -> dict[str, float]:
        return {"scale": self.scale}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.scale = state["scale"]


def goes_on(make: Callable[[], tuple[DataLoader[Any], list[Any]]], done: int) -> bool:
    """Whether a feed that is made again behind so many batches gives what the first would have given."""

    def take(feed: Feed, attached: list[Any], until: int, first: int = 0) -> list[Any]:
        found: list[Any] = []
        while first + len(found) < until and (batch := feed.next()) is not END:
            found.append(batch)
            for data in attached:
                data.scale = (first + len(found)) * 0.1
        return found

    torch.manual_seed(3)
    loader, attached = make()
    feed = Feed(loader, 3, None, attached=attached)
    take(feed, attached, done)
    state = pickle.dumps((feed.state(), randomness.capture(), [data.state_dict() for data in attached]))
    undisturbed = take(feed, attached, 100, done)

    torch.manual_seed(3)
    loader, attached = make()
    saved, random_states, objects = pickle.loads(state)
    for data, one in zip(attached, objects, strict=True):
        data.load_state_dict(one)
    again = Feed(loader, 3, saved, attached=attached)
    randomness.restore(random_states)
    resumed = take(again, attached, 100, done)
    return len(resumed) == len(undisturbed) > 0 and all(map(torch.equal, resumed, undisturbed))


@pytest.mark.expensive(family="data sets with noise")
@pytest.mark.parametrize("done", [2, 4, 7])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["numpy", "old numpy", "python", "torch"])
def test_generators_of_a_data_set_go_on_where_they_were(kind: str, workers: int, done: int) -> None:
    def make() -> tuple[DataLoader[Any], list[Any]]:
        data = Subset(Noisy(kind), range(10))
        return DataLoader(data, batch_size=3, shuffle=True, num_workers=workers), []

    assert goes_on(make, done)


def test_those_of_a_stream_go_on_as_well() -> None:
    assert goes_on(lambda: (DataLoader(Stream(), batch_size=2), []), 6)


@pytest.mark.parametrize("done", [2, 5, 7])
@pytest.mark.parametrize("persistent", [False, True])
def test_workers_get_an_attached_data_set_as_it_was_when_they_began(persistent: bool, done: int) -> None:
    def make() -> tuple[DataLoader[Any], list[Any]]:
        data = Scaled()
        loader = DataLoader(data, batch_size=3, shuffle=True, num_workers=1, persistent_workers=persistent)
        return loader, [data]

    assert goes_on(make, done)


def test_other_generators_than_those_of_the_checkpoint_are_refused() -> None:
    first = Feed(DataLoader(Noisy("numpy"), batch_size=3), 2, None)
    first.next()
    more = Noisy("numpy")
    more.transforms.append(Shaken("python"))
    with pytest.raises(WrongData, match="does not have the random generators that it had"):
        Feed(DataLoader(more, batch_size=3), 2, first.state())


def test_generators_of_the_process_are_not_found_and_circles_end() -> None:
    holder: Any = type("Holder", (), {})()
    holder.inner = [holder, random._inst, torch.default_generator, np.random.mtrand._rand, random.SystemRandom()]  # type: ignore[attr-defined]
    assert noise.own_generators(holder) == []
    holder.inner.append(random.Random(0))
    holder.again = holder.inner[-1]
    assert noise.own_generators(holder) == [holder.again]
