"""The feed beside others: who else draws from its generators, what follows its last epoch, and other loaders."""

from __future__ import annotations

import gc
import logging
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, Sampler

from everstep import train
from everstep.train import randomness
from everstep.train.feed import END, Feed, WrongData
from tests.train.counter import Counter
from tests.train.test_feed import LOADERS, Counted, Lazy, Stream, draw, seeded

Made = tuple[DataLoader, torch.Generator]


def shared(size: int = 11, **options: Any) -> Made:
    """A loader whose generator the training draws from, too."""
    generator = torch.Generator().manual_seed(5)
    return DataLoader(Counted(size), batch_size=3, shuffle=True, generator=generator, **options), generator


def with_replacement(**options: Any) -> Made:
    """Draws 32 indices at a time: again and again in an epoch."""
    data, generator = Counted(), torch.Generator().manual_seed(5)
    sampler = RandomSampler(data, replacement=True, num_samples=80, generator=generator)
    return DataLoader(data, batch_size=3, sampler=sampler, generator=generator, **options), generator


SHARED: dict[str, Callable[[], Made]] = {
    "no workers": shared,
    "workers": lambda: shared(num_workers=2),
    "persistent": lambda: shared(num_workers=2, persistent_workers=True),
    # The sampler is asked for the end of its epoch, and draws once more, in the middle of what the training draws.
    "even workers": lambda: shared(12, num_workers=2, prefetch_factor=1),
}


def start(made: Made, epochs: int = 3) -> Feed:
    torch.manual_seed(1)
    random.seed(2)
    return Feed(made[0], epochs, None)


def in_turns(feed: Feed, generator: torch.Generator, count: int) -> list[str]:
    """Batches as text, with training drawing from the loader's generator in between."""
    texts = []
    for _ in range(count):
        batch = feed.next()
        texts.append("end" if batch is END else f"{batch.tolist()} {float(torch.rand((), generator=generator))}")
    return texts


def disturbed() -> None:
    torch.manual_seed(99)
    random.seed(99)


@pytest.mark.expensive(family="shared generators")
@pytest.mark.parametrize("kind", SHARED)
@pytest.mark.parametrize("done", [1, 2, 3, 4, 5, 7, 12])
def test_a_generator_that_the_training_draws_from_goes_on_where_it_was(kind: str, done: int) -> None:
    made = SHARED[kind]()
    undisturbed = in_turns(start(made), made[1], 13)
    made = SHARED[kind]()
    first = start(made)
    in_turns(first, made[1], done)
    state, at = first.state(), randomness.capture()
    del first
    disturbed()
    loader, generator = SHARED[kind]()
    resumed = Feed(loader, 3, state)
    randomness.restore(at)
    assert in_turns(resumed, generator, 13 - done) == undisturbed[done:]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_sampler_in_turns_with_the_training_is_not_saved_until_it_is_through(workers: int) -> None:
    made = with_replacement(num_workers=workers)
    feed = start(made)
    in_turns(feed, made[1], 8)
    feed.state()
    in_turns(feed, made[1], 5)
    with pytest.raises(ValueError, match="it needs a generator of its own"):
        feed.state()
    in_turns(feed, made[1], 27 - 13)
    feed.state()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_sampler_that_draws_often_from_a_generator_of_its_own_is_resumed(workers: int) -> None:
    undisturbed = draw(start(with_replacement(num_workers=workers)), 30)
    first = start(with_replacement(num_workers=workers))
    draw(first, 13)
    state, at = first.state(), randomness.capture()
    disturbed()
    resumed = Feed(with_replacement(num_workers=workers)[0], 3, state)
    randomness.restore(at)
    assert draw(resumed, 17) == undisturbed[13:]
    resumed.state()


def test_what_was_drawn_ahead_is_verified() -> None:
    """Two batches are through, and the sampler gives them again; the third was drawn after the training drew."""

    def loader() -> DataLoader:
        return DataLoader(Counted(), batch_size=3, sampler=Lazy(), num_workers=1, prefetch_factor=2)

    first = seeded(loader)
    draw(first, 2)
    with pytest.raises(WrongData, match="does not give the order"):
        Feed(loader(), 3, first.state())


def test_another_prefetch_factor_is_refused() -> None:
    first = start(shared(num_workers=1))
    first.next()
    with pytest.raises(WrongData, match="prefetch_factor=3 now, the checkpoint was written with 2"):
        Feed(shared(num_workers=1, prefetch_factor=3)[0], 3, first.state())


# --- more epochs -------------------------------------------------------------------------------------------------


class OwnRandom(Sampler):
    """Goes on with a random state of its own from epoch to epoch."""

    def __init__(self) -> None:
        self.random = random.Random(3)

    def __iter__(self) -> Iterator[int]:
        return iter(self.random.sample(range(11), 11))

    def __len__(self) -> int:
        return 11


def own_random() -> DataLoader:
    return DataLoader(Counted(), batch_size=3, sampler=OwnRandom())


def ended(loader: Callable[[], Any], epochs: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is saved after the last epoch."""
    torch.manual_seed(1)
    random.seed(2)
    feed = Feed(loader(), epochs, None)
    while "end" not in draw(feed, 1):
        pass
    saved = feed.state(), randomness.capture()
    disturbed()
    return saved


@pytest.mark.expensive(family="more epochs")
@pytest.mark.parametrize("kind", [*LOADERS, "stream with workers"])
@pytest.mark.parametrize("epochs", [1, 2])
def test_more_epochs_go_on_as_if_they_had_been_asked_for_at_once(kind: str, epochs: int) -> None:
    loader = LOADERS.get(kind, lambda: DataLoader(Stream(), batch_size=2, num_workers=1))
    undisturbed = draw(seeded(loader), 34)
    state, at = ended(loader, epochs)
    more = Feed(loader(), 3, state)
    randomness.restore(at)
    rest = draw(more, 34)
    count = rest.index("end")
    assert rest[:count] == undisturbed[: undisturbed.index("end")][-count:]
    assert count == undisturbed.index("end") * (3 - epochs) // 3


@pytest.mark.parametrize("kind", SHARED)
def test_more_epochs_with_a_generator_that_the_training_draws_from(kind: str) -> None:
    made = SHARED[kind]()
    undisturbed = in_turns(start(made), made[1], 12)
    made = SHARED[kind]()
    first = start(made, epochs=2)
    in_turns(first, made[1], 8)
    assert first.next() is END
    state, at = first.state(), randomness.capture()
    disturbed()
    loader, generator = SHARED[kind]()
    more = Feed(loader, 3, state)
    randomness.restore(at)
    assert in_turns(more, generator, 4) == undisturbed[8:]


def test_more_epochs_of_a_sampler_with_a_random_state_of_its_own_are_refused() -> None:
    state, _ = ended(own_random, 2)
    with pytest.raises(WrongData, match="keeps from one epoch to the next is not saved"):
        Feed(own_random(), 3, state)


def test_more_epochs_of_more_data_are_refused() -> None:
    batches = [torch.tensor([at]) for at in range(4)]
    state, _ = ended(lambda: batches[:3], 2)
    with pytest.raises(WrongData, match="more batches now than the 3"):
        Feed(batches, 3, state)


def test_training_that_has_ended_does_not_ask_the_loader_again() -> None:
    state, _ = ended(own_random, 2)
    feed = Feed(own_random(), 2, state)
    assert feed.next() is END
    assert feed.state() == state


def test_a_position_of_an_older_everstep_is_refused() -> None:
    state, _ = ended(own_random, 2)
    del state["ended_after"]
    with pytest.raises(WrongData, match="older everstep"):
        Feed(own_random(), 3, state)


# --- streams -------------------------------------------------------------------------------------------------------


def test_a_stream_with_persistent_workers_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    def loader() -> DataLoader:
        return DataLoader(Stream(), batch_size=2, num_workers=1, persistent_workers=True)

    first = seeded(loader)
    [record] = caplog.records
    assert (record.name, record.levelno) == ("everstep.train", logging.WARNING)
    assert "DataLoader over Stream has persistent_workers=True" in record.getMessage()
    draw(first, 7)
    disturbed()
    with pytest.raises(WrongData, match=r"batch 2 of epoch 1 is not the one.*with persistent_workers=False a dataset"):
        Feed(loader(), 3, first.state())
    caplog.clear()
    Feed(loader(), 1, None)
    Feed(DataLoader(Stream(), batch_size=2, num_workers=1), 3, None)
    assert not caplog.records


class Unsized(IterableDataset):
    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


@pytest.mark.usefixtures("place")
def test_steps_over_a_loader_that_does_not_know_its_length(tmp_path: Path) -> None:
    run = train.attach(counter=Counter(), dir=tmp_path / "unsized")
    assert [step for step, _ in run.steps(DataLoader(Unsized(), batch_size=2), epochs=2)] == [1, 2, 3, 4]


# --- other loaders ---------------------------------------------------------------------------------------------------


def beside(generator: torch.Generator | None = None) -> DataLoader:
    return DataLoader(Counted(4), num_workers=1, persistent_workers=True, generator=generator)


def test_persistent_workers_of_another_loader_do_not_move_the_random_numbers() -> None:
    """torch draws their seed once in a process: a resumed one would draw it again."""
    feed = seeded(LOADERS["shuffled"])
    generator = torch.Generator().manual_seed(3)
    for validation in (beside(), beside(generator)):
        at, own = torch.get_rng_state(), generator.get_state()
        first, again = list(validation), list(validation)
        assert len(first) == len(again) == 4
        assert torch.equal(torch.get_rng_state(), at)
        assert torch.equal(generator.get_state(), own)
    assert validation.generator is generator
    feed.next()


def test_persistent_workers_of_another_loader_begin_alike_in_each_attempt() -> None:
    feed = seeded(LOADERS["shuffled"])
    first = [batch.tolist() for batch in beside()]
    torch.rand(7)
    assert [batch.tolist() for batch in beside()] == first
    feed.next()


def test_other_samplers_draw_as_ever() -> None:
    feed = seeded(LOADERS["shuffled"])
    at = torch.get_rng_state()
    list(DataLoader(Counted(4), shuffle=True, num_workers=1, persistent_workers=True))
    assert not torch.equal(torch.get_rng_state(), at)
    at = torch.get_rng_state()
    list(DataLoader(Counted(4)))
    assert not torch.equal(torch.get_rng_state(), at)
    feed.next()


def test_loaders_are_left_alone_when_the_feed_is_gone() -> None:
    gc.collect()  # feeds of other tests, in the tracebacks of what they refused
    plain = DataLoader.__iter__
    feed = seeded(LOADERS["shuffled"])
    assert DataLoader.__iter__ is not plain
    other = seeded(LOADERS["shuffled"])
    del feed
    assert DataLoader.__iter__ is not plain
    del other
    at = torch.get_rng_state()
    list(beside())
    assert not torch.equal(torch.get_rng_state(), at)
