"""Each loader is iterated undisturbed, and again with a "kill" at some batch: everything is made afresh, as a relaunch
does, and the position put back. Batches and the random numbers that training draws must agree bit for bit."""

from __future__ import annotations

import gc
import multiprocessing
import pickle
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    WeightedRandomSampler,
)
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from everstep.train import randomness
from everstep.train.loaders import WrongData
from everstep.train.script import advance, batches, mutables

SIZE = 11


class Augmented(Dataset):
    """Items that draw from every random state there is, and from a generator of the data set itself."""

    def __init__(self, size: int = SIZE, *, own: bool = False) -> None:
        self.size = size
        self.own = np.random.default_rng(5) if own else None
        self.late: random.Random | None = None
        self.fetched = 0
        self.strength = 1

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, at: int) -> torch.Tensor:
        self.fetched += 1
        values = [at, random.random(), float(torch.rand(())), np.random.rand(), self.strength]
        if self.own is not None:
            self.late = self.late or random.Random(7)
            values += [self.own.random(), self.late.random()]
        return torch.tensor(values, dtype=torch.float64)


class Stream(IterableDataset):
    """Each worker gives a part; draws from the worker's random state."""

    def __init__(self, *, draws: bool = True) -> None:
        self.draws = draws

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = torch.utils.data.get_worker_info()
        own = random.Random(3)
        for i in range(info.id if info else 0, SIZE, info.num_workers if info else 1):
            yield torch.tensor([i, random.random() if self.draws else own.random()], dtype=torch.float64)


class Remembering(IterableDataset):
    """A walk that goes on from pass to pass, with a history of it, drawn from the global random state."""

    def __init__(self) -> None:
        self.level = 0.0
        self.history: list[tuple[int, float]] = []

    def __iter__(self) -> Iterator[torch.Tensor]:
        for i in range(SIZE):
            self.level = 0.9 * self.level + float(torch.randn(()))
            self.history.append((i, self.level))
            yield torch.tensor([i, self.level], dtype=torch.float64)


class Cumulative(Sampler):
    """Shuffles its list in place: every epoch depends on all before. Counts its epochs by itself."""

    def __init__(self, *, eager: bool) -> None:
        self.order = list(range(SIZE))
        self.epoch = 0
        self.rng = random.Random(4)
        self.eager = eager

    def __len__(self) -> int:
        return SIZE

    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        self.rng.shuffle(self.order)
        if self.eager:
            random.shuffle(self.order)
        return iter([(index + self.epoch) % SIZE for index in self.order])


class Lazy(Sampler):
    """Draws from the global state while it runs: cannot be replayed when training draws in between."""

    def __len__(self) -> int:
        return SIZE

    def __iter__(self) -> Iterator[int]:
        return (int(torch.randint(SIZE, ())) for _ in range(SIZE))


def seed_worker(worker: int) -> None:
    np.random.seed(torch.initial_seed() % 2**32)
    random.seed(torch.initial_seed() + 1)


def own_generator(**more: Any) -> DataLoader:
    generator = torch.Generator().manual_seed(9)
    data = Augmented()
    return DataLoader(data, 3, sampler=RandomSampler(data, generator=generator), generator=generator, **more)


WORKERS: dict[str, Any] = {"num_workers": 2}
PERSISTENT: dict[str, Any] = {"num_workers": 2, "persistent_workers": True}

LOADERS: dict[str, Callable[[], DataLoader]] = {
    "plain": lambda: DataLoader(Augmented(), 3),
    "shuffled": lambda: DataLoader(Augmented(), 3, shuffle=True),
    "unbatched": lambda: DataLoader(Augmented(), None, shuffle=True),
    "drop last": lambda: DataLoader(Augmented(), 3, shuffle=True, drop_last=True),
    "own generator": own_generator,
    "weighted": lambda: DataLoader(Augmented(), 3, sampler=WeightedRandomSampler([1.0] * SIZE, SIZE)),
    "batch sampler": lambda: DataLoader(
        Augmented(), batch_sampler=BatchSampler(RandomSampler(range(SIZE)), 4, drop_last=False)
    ),
    "distributed": lambda: DataLoader(
        (data := Augmented(22)), 3, sampler=DistributedSampler(data, num_replicas=2, rank=1)
    ),
    "cumulative": lambda: DataLoader(Augmented(), 3, sampler=Cumulative(eager=True)),
    "own state": lambda: DataLoader(Augmented(own=True), 3, shuffle=True),
    "stream": lambda: DataLoader(Stream(draws=False), 3),
    "workers": lambda: DataLoader(Augmented(), 3, shuffle=True, **WORKERS),
    "three workers": lambda: DataLoader(Augmented(), 2, shuffle=True, num_workers=3, prefetch_factor=1),
    "workers seeded": lambda: DataLoader(Augmented(), 3, shuffle=True, worker_init_fn=seed_worker, **WORKERS),
    "workers own generator": lambda: own_generator(**WORKERS),
    "workers cumulative": lambda: DataLoader(Augmented(), 3, sampler=Cumulative(eager=True), **WORKERS),
    "workers own state": lambda: DataLoader(Augmented(own=True), 3, shuffle=True, **WORKERS),
    "workers stream": lambda: DataLoader(Stream(), 2, **WORKERS),
    "persistent": lambda: DataLoader(Augmented(), 3, shuffle=True, **PERSISTENT),
    "persistent seeded": lambda: DataLoader(Augmented(), 3, shuffle=True, worker_init_fn=seed_worker, **PERSISTENT),
    "persistent own state": lambda: DataLoader(Augmented(own=True), 3, shuffle=True, **PERSISTENT),
    "persistent own generator": lambda: own_generator(**PERSISTENT),
    "persistent cumulative": lambda: DataLoader(Augmented(), 3, sampler=Cumulative(eager=True), **PERSISTENT),
    "persistent idle worker": lambda: DataLoader(
        Augmented(), 4, shuffle=True, num_workers=4, persistent_workers=True, prefetch_factor=1
    ),
    "persistent stream": lambda: DataLoader(Stream(), 2, **PERSISTENT),
}


@pytest.fixture(autouse=True)
def script_mode() -> Iterator[None]:
    batches.install(replaying=False)
    yield
    batches.uninstall()
    # What a test left in the middle of a pass: its workers must not be found, and killed, in a later test.
    for left in [thing for thing in gc.get_objects() if type(thing) is _MultiProcessingDataLoaderIter]:
        left._shutdown_workers()


def seeded() -> None:
    torch.manual_seed(1)
    random.seed(2)
    np.random.seed(3)


def fresh_world() -> None:
    torch.manual_seed(77)
    random.seed(78)
    np.random.seed(79)


def told(batch: Any) -> str:
    """The batch, and what training draws with it."""
    return f"{batch.tolist()} {float(torch.rand(()))} {random.random()} {np.random.rand()}"


def epochs(loader: DataLoader, count: int = 3) -> Iterator[tuple[int, Iterator[Any], Any]]:
    """All batches of some epochs: the epoch, the iterator, the batch."""
    for epoch in range(count):
        if isinstance(loader.sampler, DistributedSampler):
            loader.sampler.set_epoch(epoch)
        iterator = iter(loader)
        for batch in iterator:
            yield epoch, iterator, batch


def undisturbed(make: Callable[[], DataLoader]) -> list[str]:
    seeded()
    return [told(batch) for _, _, batch in epochs(make())]


def restarted(make: Callable[[], DataLoader], done: int) -> list[str]:
    """The rest after a kill behind ``done`` batches."""
    seeded()
    loader = make()
    passes = epochs(loader)
    for _ in range(done):
        epoch, iterator, batch = next(passes)
        told(batch)
    # Samplers, and a data set that is used in the main process, are the object graph's business.
    kept = loader.sampler, loader.dataset
    saved = pickle.dumps((advance.position(iterator, 0), epoch, randomness.capture(), kept))
    del loader, iterator
    position, epoch, now, (sampler, dataset) = pickle.loads(saved)
    fresh_world()
    batches.install(replaying=True)
    loader = make()
    if isinstance(sampler, (DistributedSampler, Cumulative)):
        vars(loader.sampler).update(vars(sampler))
    if not loader.num_workers:
        vars(loader.dataset).update(vars(dataset))
    resumed = iter(loader)
    position["taken"] = position["loaders"][()]["consumed"]
    advance.advance(resumed, position["taken"], position)
    batches.live()
    randomness.restore(now)
    rest = [told(batch) for batch in resumed]
    for later in range(epoch + 1, 3):
        if isinstance(loader.sampler, DistributedSampler):
            loader.sampler.set_epoch(later)
        rest += [told(batch) for batch in loader]
    return rest


@pytest.mark.parametrize("kind", ["workers seeded", "persistent"])
def test_workers_of_a_pass_that_is_left_end_at_once(kind: str) -> None:
    """As with torch's own iterator: by reference counts, not when the collector of cycles comes by."""
    before = set(multiprocessing.active_children())
    gc.disable()
    try:
        loader = LOADERS[kind]()
        next(iter(loader))
        del loader
        assert not set(multiprocessing.active_children()) - before
    finally:
        gc.enable()


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than this machine has cores
@pytest.mark.expensive(family="loaders")
@pytest.mark.parametrize("kind", LOADERS)
def test_the_rest_is_that_of_an_undisturbed_run(kind: str) -> None:
    expected = undisturbed(LOADERS[kind])
    chance = random.Random(kind)
    for done in sorted(chance.sample(range(1, len(expected) + 1), 3)):
        assert restarted(LOADERS[kind], done) == expected[done:], f"killed after {done} of {len(expected)}"


@pytest.mark.parametrize("done", [1, 4, 5, 10, 12])
def test_a_stream_that_changes_itself_begins_as_it_did(done: int) -> None:
    """Its draws follow one another, since the training does not draw."""

    def passes(loader: DataLoader) -> Iterator[tuple[Any, str]]:
        for _ in range(3):
            iterator = iter(loader)
            yield from ((iterator, str(batch.tolist())) for batch in iterator)

    def begin() -> DataLoader:
        seeded()
        return DataLoader(Remembering(), 3)

    expected = [batch for _, batch in passes(begin())]
    loader = begin()
    for _, (iterator, _) in zip(range(done), passes(loader), strict=False):
        saved = advance.position(iterator, 0)
    kept, now = pickle.dumps(vars(loader.dataset)), randomness.capture()
    taken = saved["loaders"][()]["consumed"]
    fresh_world()
    fresh = DataLoader(Remembering(), 3)
    vars(fresh.dataset).update(pickle.loads(kept))  # as objects are written on the way
    resumed = advance.advance(iter(fresh), taken, {**saved, "taken": taken})
    vars(fresh.dataset).update(pickle.loads(kept))  # as at the safe point
    randomness.restore(now)
    rest = [str(batch.tolist()) for batch in resumed]
    rest += [batch for _, batch in passes(fresh)]
    assert rest[: len(expected) - done] == expected[done:]


def relaunch(make: Callable[[], DataLoader], saved: bytes) -> tuple[DataLoader, Any]:
    """A new loader, its iterator put to the position in ``saved``, and the random states of the save."""
    position, now = pickle.loads(saved)
    fresh_world()
    batches.install(replaying=True)
    loader = make()
    iterator = iter(loader)
    iterator.restore(position)  # type: ignore[attr-defined]
    batches.live()
    randomness.restore(now)
    return loader, iterator


def save(iterator: Any) -> bytes:
    return pickle.dumps((iterator.position(), randomness.capture()))


@pytest.mark.expensive(family="loaders")
@pytest.mark.parametrize("kind", ["shuffled", "workers own state", "persistent"])
def test_killed_again_and_again(kind: str) -> None:
    """Also before the first batch after a resume, and with no batch in between."""
    make = LOADERS[kind]
    expected = undisturbed(make)
    seeded()
    iterator: Any = iter(make())
    got = [told(next(iterator))]
    for stretch in (0, 1, 0, 1):
        _, iterator = relaunch(make, save(iterator))
        got += [told(next(iterator)) for _ in range(stretch)]
    assert got == expected[:3]


def test_an_idle_persistent_loader_goes_on_in_the_next_epoch() -> None:
    """It stands between two epochs while another loop saves."""
    make = LOADERS["persistent own state"]
    expected = undisturbed(make)
    seeded()
    loader = make()
    got = [told(batch) for batch in loader]
    loader, _ = relaunch(make, save(loader._iterator))
    got += [told(batch) for _ in range(2) for batch in loader]
    assert got == expected


def test_a_persistent_loader_that_was_not_iterated_yet_goes_on() -> None:
    """The relaunch has made the loader only; the object graph puts its iterator there."""
    make = LOADERS["persistent"]
    expected = undisturbed(make)
    seeded()
    iterator: Any = iter(make())
    got = [told(next(iterator)) for _ in range(3)]
    position, now = pickle.loads(save(iterator))
    fresh_world()
    loader = make()
    loader.__dict__["_iterator"] = batches.Batches(loader, position)
    randomness.restore(now)
    got += [told(batch) for batch in loader._iterator]
    got += [told(batch) for _ in range(2) for batch in loader]
    assert got == expected


def test_an_iterator_outside_a_loop_goes_on_in_place() -> None:
    """``it = iter(loader)`` in the setup, ``next(it)`` in the loop: random numbers are drawn in between."""

    def script() -> tuple[Any, list[str]]:
        seeded()
        iterator = iter(LOADERS["shuffled"]())
        torch.randn(3)
        return iterator, [told(next(iterator)) for _ in range(2)]

    iterator, _ = script()
    saved = save(iterator)
    expected = [told(next(iterator)) for _ in range(2)]
    fresh, _ = script()
    position, now = pickle.loads(saved)
    fresh.restore(position)
    randomness.restore(now)
    assert [told(next(fresh)) for _ in range(2)] == expected


def test_an_epoch_left_early_is_not_saved_before_the_workers_are_known_again() -> None:
    seeded()
    loader = LOADERS["persistent"]()
    next(iter(loader))
    iterator: Any = iter(loader)
    next(iterator)
    assert "between two epochs" in iterator.position()["problem"]
    with pytest.raises(WrongData, match="between two epochs"):
        relaunch(LOADERS["persistent"], save(iterator))
    next(iterator)
    saved = save(iterator)
    expected = [told(batch) for batch in iterator]
    _, fresh = relaunch(LOADERS["persistent"], saved)
    assert [told(batch) for batch in fresh] == expected


def test_a_flag_that_workers_saw_when_they_were_started_stays() -> None:
    """Persistent workers do not see what the main process changes later; those of a relaunch must not either."""

    def make(strength: int = 1) -> DataLoader:
        loader = DataLoader(Augmented(), 3, shuffle=True, **PERSISTENT)
        loader.dataset.strength = strength  # type: ignore[attr-defined]
        return loader

    expected = undisturbed(make)
    seeded()
    loader = make()
    got = [told(batch) for batch in loader]
    loader.dataset.strength = 5  # type: ignore[attr-defined]
    iterator: Any = iter(loader)
    got += [told(next(iterator)) for _ in range(2)]
    _, fresh = relaunch(lambda: make(5), save(iterator))
    got += [told(batch) for batch in fresh]
    assert got == expected[:8]


@pytest.mark.parametrize(
    ("make", "changed", "text"),
    [
        (LOADERS["shuffled"], lambda: DataLoader(Augmented(12), 3, shuffle=True), "order"),
        (LOADERS["shuffled"], lambda: DataLoader(Augmented(4), 3, shuffle=True), "fewer than 3"),
        (LOADERS["shuffled"], lambda: DataLoader(Augmented(), 3, shuffle=True, num_workers=1), "1 workers now"),
        (LOADERS["stream"], lambda: DataLoader(Remembering(), 3), "stream does not give the batches"),
        (
            lambda: DataLoader(Augmented(), 3, sampler=Lazy()),
            lambda: DataLoader(Augmented(), 3, sampler=Lazy()),
            "order",
        ),
        (lambda: DataLoader(Stream(), 3), lambda: DataLoader(Stream(), 3), "in turns with the training"),
        (
            lambda: DataLoader(Augmented(), 2, num_workers=2, in_order=False),
            lambda: DataLoader(Augmented(), 2, num_workers=2, in_order=False),
            "in_order=False",
        ),
    ],
)
def test_what_cannot_be_given_back_is_refused(
    make: Callable[[], DataLoader], changed: Callable[[], DataLoader], text: str
) -> None:
    seeded()
    iterator = iter(make())
    for _ in range(3):
        told(next(iterator))
    with pytest.raises(WrongData, match=text):
        next(relaunch(changed, save(iterator))[1])


def test_a_data_set_that_keeps_an_iterator_in_its_workers_is_refused() -> None:
    class Noisy(Augmented):
        def __init__(self) -> None:
            super().__init__()
            self.noise = None

        def __getitem__(self, at: int) -> torch.Tensor:
            self.noise = self.noise or (i for i in range(99))
            return torch.tensor([at, next(self.noise)])

    iterator: Any = iter(DataLoader(Noisy(), 3, **WORKERS))
    next(iterator)
    assert iterator.position()["problem"].endswith("keeps a started iterator in its workers (dataset.noise)")


def test_an_iterator_in_use_is_nobody_elses_state() -> None:
    """Its processes and queues cannot be pickled, and are found again by its own position."""
    loader = LOADERS["persistent"]()
    iterator: Any = iter(loader)
    next(iterator)
    assert len(pickle.dumps(mutables.capture({"loader": loader, "iterator": enumerate(iterator)}))) < 10_000


def test_subclasses_that_iterate_in_their_own_way_keep_it() -> None:
    class Own(DataLoader):
        def __iter__(self) -> Any:
            return iter("ab")

    assert list(Own(Augmented())) == ["a", "b"]


def test_a_map_style_data_set_is_not_fetched_to_skip() -> None:
    seeded()
    iterator: Any = iter(LOADERS["shuffled"]())
    for _ in range(3):
        next(iterator)
    loader, fresh = relaunch(LOADERS["shuffled"], save(iterator))
    next(fresh)
    assert loader.dataset.fetched == 2  # the last batch of 11 items has two
