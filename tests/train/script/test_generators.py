"""The generators of the process: a state that was got before is given again only where it is still the state."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from everstep.train import randomness
from everstep.train.script import generators

START = random.getstate(), np.random.get_state(), torch.get_rng_state()


def _with_second(state: torch.Tensor) -> torch.Tensor:
    """No draw on a CPU keeps a second number in single precision today, but a state may have one: the last 8 bytes."""
    state[-4] = 1 - state[-4]
    return state


ACTS: dict[str, Callable[[], object]] = {
    "random": random.random,
    "second of a pair of python": lambda: random.gauss(0, 1),
    "seed python": lambda: random.seed(7),
    "state of python": lambda: random.setstate(START[0]),
    "shuffle": lambda: random.shuffle([1, 2, 3]),
    "rand": np.random.rand,
    "second of a pair of numpy": np.random.randn,
    "seed numpy": lambda: np.random.seed(7),
    "state of numpy": lambda: np.random.set_state(START[1]),
    "permutation": lambda: np.random.permutation(5),
    "torch": lambda: torch.rand(1),
    "second of a pair of torch": lambda: torch.randn(1),
    "in double precision": lambda: torch.randn(1, dtype=torch.float64),
    "a round of torch": lambda: torch.rand(624),
    "second of a pair of torch in single precision": lambda: torch.set_rng_state(_with_second(torch.get_rng_state())),
    "state of torch": lambda: torch.set_rng_state(START[2]),
    "seed torch": lambda: torch.manual_seed(7),
    "nothing": lambda: None,
}


@pytest.fixture(autouse=True)
def as_it_was() -> Any:
    saved = generators.states()
    yield
    randomness.restore(saved)


def truth() -> bytes:
    return pickle.dumps((random.getstate(), np.random.get_state(legacy=False), torch.get_rng_state().tolist()))


def given_states() -> bytes:
    states = generators.states()
    return pickle.dumps((states["python"], states["numpy"], states["torch"].tolist()))


@given(st.lists(st.sampled_from(sorted(ACTS)), max_size=12))
def test_the_state_is_what_the_generators_say_themselves(acts: list[str]) -> None:
    for act in acts:
        ACTS[act]()
        assert given_states() == truth(), act


DRAWS = [
    "random",
    "second of a pair of python",
    "rand",
    "second of a pair of numpy",
    "torch",
    "second of a pair of torch",
]


@pytest.mark.parametrize("act", DRAWS)
def test_each_draw_is_noticed(act: str) -> None:
    seen = set()
    for _ in range(4):
        ACTS[act]()
        seen.add(given_states())
    assert len(seen) == 4


def test_other_bits_under_numpy() -> None:
    bits: Any = np.random.get_bit_generator()
    generators.states()
    try:
        np.random.set_bit_generator(np.random.PCG64(3))
        for _ in range(3):
            np.random.rand()
            assert given_states() == truth()
        np.random.set_bit_generator(np.random.MT19937(5))
        for _ in range(3):
            np.random.randn()
            assert given_states() == truth()
    finally:
        np.random.set_bit_generator(bits)
    assert given_states() == truth()


def test_what_was_given_is_not_changed_by_what_is_drawn_afterwards() -> None:
    ACTS["second of a pair of python"]()
    ACTS["second of a pair of numpy"]()
    first = generators.states()
    before = pickle.dumps((first["python"], first["numpy"], first["torch"].tolist()))
    for act in ("random", "rand", "torch", "second of a pair of python", "second of a pair of numpy"):
        ACTS[act]()
    assert pickle.dumps((first["python"], first["numpy"], first["torch"].tolist())) == before
    randomness.restore(first)
    assert given_states() == before


def test_a_state_is_not_got_again_where_nothing_was_drawn() -> None:
    first = generators.states()
    torch.rand(1)
    second = generators.states()
    assert first["python"] is second["python"]
    assert first["numpy"] is second["numpy"]
    assert first["torch"] is not second["torch"]
    random.random()
    np.random.rand()
    third = generators.states()
    assert third["python"] is not second["python"]
    assert third["numpy"] is not second["numpy"]
    assert third["torch"] is second["torch"]
    assert generators.states() is third


@given(st.lists(st.sampled_from(sorted(ACTS)), max_size=12))
def test_an_unknown_build_of_torch_is_asked_each_time(acts: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generators, "_TORCH_AT", None)
        patch.setattr(generators, "_torch", generators._Torch())
        for act in acts:
            ACTS[act]()
            assert given_states() == truth(), act


def test_memory_of_torch_is_believed_only_where_each_draw_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert generators._torch_at() is not None, "this build's is known"
    monkeypatch.setattr(generators, "_TORCH_BYTES", generators._TORCH_BYTES - 24)
    assert generators._torch_at() is None, "the second of two numbers is not in what is looked at"
    monkeypatch.undo()
    monkeypatch.setattr(generators, "_seeded", lambda seed: bytes(2496))
    assert generators._torch_at() is None, "the numbers are nowhere"


def test_another_generator_in_place_of_torch_s(monkeypatch: pytest.MonkeyPatch) -> None:
    generators.states()
    other = torch.Generator().manual_seed(5)
    monkeypatch.setattr(torch, "default_generator", other)
    for _ in range(3):
        assert generators.states()["torch"].tolist() == other.get_state().tolist()
        torch.rand(1, generator=other)


def test_a_python_generator_of_another_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    generators.states()
    for getstate in (random.Random(4).getstate, lambda: "a state"):
        monkeypatch.setattr(random, "getstate", getstate)
        assert generators.states()["python"] == generators.states()["python"] == getstate()
