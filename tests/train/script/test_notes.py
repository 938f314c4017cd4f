"""What is noted at loops in microseconds: checksums of items, plain values, random states."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from everstep.train.script import states
from everstep.train.script.checksums import checksum
from everstep.train.script.plain import NOT_PLAIN, plain


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 2),
        (1, "1"),
        (torch.zeros(3), torch.zeros(4)),
        (torch.zeros(3), torch.zeros(3, dtype=torch.int32)),
        (torch.tensor([1.0, 2.0]), torch.tensor([2.0, 1.0])),
        (np.arange(3), np.arange(1, 4)),
        ([1, [2, 3]], [1, [2, 4]]),
        ({"a": torch.zeros(1)}, {"b": torch.zeros(1)}),
        ([1, 2], (1, 2)),
        (torch.zeros(2, dtype=torch.bfloat16), torch.ones(2, dtype=torch.bfloat16)),
    ],
)
def test_different_items_have_different_checksums(one: Any, other: Any) -> None:
    assert checksum(one) != checksum(other)


def test_equal_items_have_equal_checksums() -> None:
    assert checksum([1, torch.arange(4).view(2, 2).t()]) == checksum([1, torch.tensor([[0, 2], [1, 3]])])


def test_plain_values_are_copies() -> None:
    value = {"losses": [1.0, 2.0], "best": (3, None), "weight": torch.ones(2, requires_grad=True) * 2}
    copy = plain(value)
    value["losses"].append(3.0)  # type: ignore[attr-defined]
    assert copy["losses"] == [1.0, 2.0]
    assert copy["best"] == (3, None)
    assert copy["weight"].tolist() == [2.0, 2.0]
    assert not copy["weight"].requires_grad


@pytest.mark.parametrize("value", [object(), list(range(2000)), [object()], torch.zeros(5000), random.Random(1)])
def test_what_is_not_small_and_plain_is_not_noted(value: Any) -> None:
    assert plain(value) is NOT_PLAIN


def draws() -> list[float]:
    return [random.random(), float(np.random.rand()), float(torch.rand(1))]


def test_all_generators_of_the_process_are_put_back() -> None:
    noted = states.capture(None)
    first = draws()
    assert draws() != first
    states.restore(noted)
    assert draws() == first


def numbers(rng: random.Random, count: int) -> Iterator[float]:
    for _ in range(count):
        yield rng.random()


def test_generators_among_the_arguments_of_a_generator_function_are_put_back() -> None:
    rng = random.Random(3)
    stream = enumerate(numbers(rng, 4))
    noted = states.capture(stream)
    first = list(stream)
    again = enumerate(numbers(rng, 4))
    states.restore(noted, again)
    assert list(again) == first


class Shuffled:
    """Iterates over a list that it shuffles in place: each pass begins where the one before has left it."""

    def __init__(self) -> None:
        self.order = list(range(8))
        self.rng = np.random.default_rng(2)

    def __iter__(self) -> Iterator[int]:
        self.rng.shuffle(self.order)
        yield from self.order


def test_small_state_of_an_iterable_is_put_back() -> None:
    data = Shuffled()
    list(data)
    noted = states.capture(data)
    second = list(data)
    list(data)
    states.restore(noted, data)
    assert list(data) == second
