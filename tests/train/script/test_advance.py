from __future__ import annotations

import itertools
import pickle
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from everstep.train import randomness
from everstep.train.loaders import WrongData
from everstep.train.script import batches
from everstep.train.script.advance import Watched, advance, position, watch


class Counted(Dataset):
    """Items that draw random numbers; counts what is fetched."""

    fetched = 0

    def __len__(self) -> int:
        return 23

    def __getitem__(self, at: int) -> torch.Tensor:
        if at >= len(self):
            raise IndexError
        Counted.fetched += 1
        return torch.tensor([at, random.random()], dtype=torch.float64)


class Bar:
    """Iterates as tqdm does: in a generator function that counts."""

    def __init__(self, iterable: Iterable[Any]) -> None:
        self.iterable = iterable
        self.n = 0

    def __iter__(self) -> Iterator[Any]:
        for item in self.iterable:
            yield item
            self.n += 1


def tqdm_of(iterable: Iterable[Any]) -> Iterator[Any]:
    """As `Bar`, from a module that is called like tqdm's."""
    names: dict[str, Any] = {"__name__": "tqdm.std"}
    exec("def bar(iterable):\n    for item in iterable:\n        yield item\n", names)
    return names["bar"](iterable)  # type: ignore[no-any-return]


def loader(**more: Any) -> DataLoader:
    return DataLoader(Counted(), 2, shuffle=True, **more)


TRANSPARENT: dict[str, Callable[[], Iterable[Any]]] = {
    "loader": loader,
    "enumerate": lambda: enumerate(loader()),
    "enumerate from": lambda: enumerate(loader(), start=5),
    "zip": lambda: zip(range(100), loader(), strict=False),
    "zip of two": lambda: zip(loader(), loader(), strict=True),
    "islice": lambda: itertools.islice(loader(), 9),
    "tqdm": lambda: tqdm_of(loader()),
    "tqdm of enumerate": lambda: tqdm_of(enumerate(loader())),
    "enumerate of tqdm": lambda: enumerate(tqdm_of(loader())),
    "zip of tqdm and islice": lambda: zip(tqdm_of(loader()), itertools.islice(loader(), 8), strict=False),
    "workers": lambda: enumerate(loader(num_workers=2)),
    "data set": Counted,
}

PLAIN: dict[str, Callable[[], Iterable[Any]]] = {
    "range": lambda: range(10, 50, 3),
    "list": lambda: list("abcdefghijkl"),
    "dict": lambda: dict.fromkeys("abcdefghijkl", 1).items(),
    "count": lambda: itertools.islice(itertools.count(3), 12),
    "reversed": lambda: reversed([*range(12)]),
    "enumerate": lambda: enumerate("abcdefghijkl"),
    "tensor": lambda: torch.arange(12) * 3,
    "nested zip": lambda: zip(range(12), enumerate("abcdefghijkl"), strict=True),
}

DRAINED: dict[str, Callable[[], Iterable[Any]]] = {
    "map": lambda: map(str, range(12)),
    "generator": lambda: (i * i for i in range(12)),
    "generator of tensors": lambda: (torch.full((1000,), i) for i in range(12)),
    "progress bar of the user": lambda: Bar(DataLoader(Counted(), 2, shuffle=True, num_workers=1)),
    "chain of loaders": lambda: itertools.chain(loader(num_workers=1), loader(num_workers=1)),
}


@pytest.fixture(autouse=True)
def script_mode() -> Iterator[None]:
    batches.install(replaying=False)
    yield
    batches.uninstall()


def seeded() -> None:
    torch.manual_seed(1)
    random.seed(2)


def told(item: Any) -> str:
    """The item, and what training draws with it."""
    return f"{item} {random.random()} {float(torch.rand(()))}"


def undisturbed(make: Callable[[], Iterable[Any]]) -> list[str]:
    seeded()
    return [told(item) for item in make()]


def relaunched(make: Callable[[], Iterable[Any]], taken: int, *, again: int = 0) -> Iterator[Any]:
    """The iterator after a save behind ``taken`` items and a relaunch, ``again`` items before the place of the save."""
    seeded()
    began = randomness.capture()
    iterator = watch(iter(make()))
    for _ in range(taken - again):
        told(next(iterator))
    now = randomness.capture()
    for _ in range(again):
        told(next(iterator))
    saved = pickle.loads(pickle.dumps(position(iterator, taken)))
    del iterator
    torch.manual_seed(50)
    random.seed(51)
    batches.install(replaying=True)
    fresh = make()  # an enumerate(loader) opens the loader here, in another random state
    randomness.restore(began)
    Counted.fetched = 0
    fresh = advance(watch(iter(fresh)), taken - again, saved)
    batches.live()
    randomness.restore(now)
    return fresh


@pytest.mark.parametrize("kind", TRANSPARENT)
@pytest.mark.parametrize("taken", [1, 4, 7])
def test_known_wrappers_do_not_fetch(kind: str, taken: int) -> None:
    expected = undisturbed(TRANSPARENT[kind])
    fresh = relaunched(TRANSPARENT[kind], taken)
    assert Counted.fetched == 0
    assert [told(item) for item in fresh] == expected[taken:]


@pytest.mark.parametrize("kind", TRANSPARENT)
@pytest.mark.parametrize("taken", [1, 4])
def test_the_last_item_is_handed_out_again(kind: str, taken: int) -> None:
    expected = undisturbed(TRANSPARENT[kind])
    fresh = relaunched(TRANSPARENT[kind], taken, again=1)
    assert [told(item) for item in fresh] == expected[taken - 1 :]


@pytest.mark.parametrize("kind", [*PLAIN, *DRAINED])
@pytest.mark.parametrize("taken", [1, 5, 12])
def test_others_are_drained(kind: str, taken: int) -> None:
    make = {**PLAIN, **DRAINED}[kind]
    assert isinstance(watch(iter(make())), Watched) == (kind in DRAINED)
    expected = undisturbed(make)
    assert [told(item) for item in relaunched(make, taken)] == expected[taken:]


def test_a_generator_that_draws_while_training_draws_is_refused() -> None:
    with pytest.raises(WrongData, match="draws from the global random state in turns"):
        relaunched(lambda: (random.random() for _ in range(9)), 4)


def test_a_generator_that_gives_something_else_is_refused() -> None:
    world = [0]

    def make() -> Iterator[int]:
        world[0] += 1
        yield from (i + (world[0] if i == 2 else 0) for i in range(9))

    with pytest.raises(WrongData, match="does not give the items it gave before"):
        relaunched(make, 5)


def test_fewer_items_are_refused() -> None:
    sizes = iter([9, 3])
    with pytest.raises(WrongData, match="gives 3 items now, it gave 5 before"):
        relaunched(lambda: range(next(sizes)), 5)


def test_other_contents_are_refused() -> None:
    with pytest.raises(WrongData, match="other contents"):
        relaunched(lambda: torch.randperm(20), 5)


def test_another_kind_of_iterator_is_refused() -> None:
    kinds: Iterator[Any] = iter([iter(range(9)), (i for i in range(9))])
    with pytest.raises(WrongData, match="which is not what it went over"):
        relaunched(lambda: next(kinds), 5)


def test_a_loop_that_lost_its_loader_is_refused() -> None:
    kinds: Iterator[Any] = iter([enumerate(loader()), enumerate(range(9))])
    with pytest.raises(WrongData, match="went over a DataLoader"):
        relaunched(lambda: next(kinds), 5)
