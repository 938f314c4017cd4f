"""What decides the next step and is in no ``state_dict``: it comes back, or training would end with another model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from everstep import train
from everstep.train import beside
from tests.train import gradient_habits
from tests.train.gradient_habits import Made, batches

pytestmark = pytest.mark.usefixtures("place")

Model = torch.nn.Module
Optimizer = torch.optim.Optimizer


@dataclass
class Training:
    """Ten passes over what a test does in one pass."""

    make: Callable[[], tuple[Model, Optimizer]]
    one_pass: Callable[[int, torch.Tensor, Model, Optimizer], None]

    def run(self, place: Path, until: int | None = None) -> list[torch.Tensor]:
        """Trains in a folder, goes on where it was; with ``until``, leaves in that pass. The parameters then."""
        torch.manual_seed(3)
        model, optimizer = self.make()
        data = [torch.randn(4, 3) for _ in range(5)]
        run = train.attach(dir=place, every=0, model=model, optimizer=optimizer)
        for step, batch in run.steps(data, total=10):
            self.one_pass(step, batch, model, optimizer)
            if step == until:
                break
        return [parameter.detach().clone() for parameter in model.parameters()]

    def is_exact(self, place: Path, *left_at: int) -> bool:
        undisturbed = self.run(place / "undisturbed")
        for until in left_at:
            self.run(place / "left", until)
        return all(map(torch.equal, undisturbed, self.run(place / "left")))


def two_layers() -> tuple[Model, Optimizer]:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Dropout(0.5), torch.nn.Linear(3, 1))
    return model, torch.optim.Adam(model.parameters(), lr=0.1)


def accumulates(step: int, batch: torch.Tensor, model: Model, optimizer: Optimizer) -> None:
    model(batch).square().mean().backward()
    if step % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()


def steps_first(step: int, batch: torch.Tensor, model: Model, optimizer: Optimizer) -> None:
    if step % 4 == 1:
        optimizer.step()
        optimizer.zero_grad()
    model(batch).square().mean().backward()


def never_empties(_step: int, batch: torch.Tensor, model: Model, optimizer: Optimizer) -> None:
    model(batch).square().mean().backward()
    optimizer.step()


def always_empties(_step: int, batch: torch.Tensor, model: Model, optimizer: Optimizer) -> None:
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()


def empties_in_place(_step: int, batch: torch.Tensor, model: Model, optimizer: Optimizer) -> None:
    optimizer.zero_grad(set_to_none=False)
    model(batch).square().mean().backward()
    optimizer.step()


def unfreezes(step: int, batch: torch.Tensor, model: Model, optimizer: Optimizer) -> None:
    if step in (1, 4):
        next(model.children()).requires_grad_(step == 4)
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()


def evaluates_from_then_on(step: int, batch: torch.Tensor, model: Model, optimizer: Optimizer) -> None:
    if step == 4:
        model.eval()
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()


@pytest.mark.parametrize(
    "one_pass", [accumulates, steps_first, never_empties, empties_in_place, unfreezes, evaluates_from_then_on]
)
def test_a_training_that_was_left_ends_with_the_same_model(place: Path, one_pass: Any) -> None:
    assert Training(two_layers, one_pass).is_exact(place, 4, 7)


@pytest.mark.parametrize("one_pass", [accumulates, steps_first, never_empties, empties_in_place, always_empties])
def test_so_does_one_that_was_left_right_behind_its_first_save(place: Path, one_pass: Any) -> None:
    assert Training(two_layers, one_pass).is_exact(place, *range(2, 10))


class MasterWeights(Optimizer):
    """Keeps a 32-bit copy of each parameter."""

    def __init__(self, parameters: Iterator[torch.Tensor]) -> None:
        super().__init__(parameters, {"lr": 1e-3})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            master = self.state[parameter].setdefault("master", parameter.float())
            master -= 1e-3 * parameter.grad.float()
            parameter.copy_(master)


def sixteen_bits() -> tuple[Model, Optimizer]:
    model = torch.nn.Linear(3, 1).bfloat16()
    return model, MasterWeights(model.parameters())


def in_sixteen_bits(_step: int, batch: torch.Tensor, model: Model, optimizer: Optimizer) -> None:
    optimizer.zero_grad()
    model(batch.bfloat16()).square().mean().backward()
    optimizer.step()


def test_what_an_optimizer_keeps_in_another_precision_is_not_rounded(place: Path) -> None:
    assert Training(sixteen_bits, in_sixteen_bits).is_exact(place, 4, 7)


def test_gradients_that_a_step_has_used_are_not_saved() -> None:
    model, optimizer = two_layers()
    aside = beside.Beside({"model": model, "optimizer": optimizer}, RuntimeError)
    for step in range(1, 4):
        optimizer.zero_grad()
        model(torch.ones(2, 3)).sum().backward()
        assert len(aside.state()["gradients"]["model"]) == 4
        optimizer.step()
        # Whether they are set to None before the next pass adds to them shows when that has come.
        assert len(aside.state()["gradients"]) == (step < 3)


def trained(folder: Path, make: Callable[[], Made], until: int = 0, **options: Any) -> list[torch.Tensor]:
    """Weights at the end, or where it is left: in the pass ``until``; what was before its number is saved."""
    torch.manual_seed(3)
    objects, one_pass = make()
    run = train.attach(dir=folder, every=0, **options, **objects)
    for step, batch in run.steps(list(batches()), total=10):
        one_pass(step, batch)
        if step == until:
            break
    modules = [thing for thing in objects.values() if isinstance(thing, Model)]
    return [parameter.detach().clone() for module in modules for parameter in module.parameters()]


PLANS = [*((n,) for n in range(3, 10)), (3, 5), (2, 4, 6), (5, 6, 7, 8)]


@pytest.mark.expensive(family="habits with gradients")
@pytest.mark.parametrize("habit", gradient_habits.EXACT)
def test_gradients_come_back_where_they_count(place: Path, habit: str) -> None:
    undisturbed = trained(place / "undisturbed", gradient_habits.EXACT[habit])
    for number, plan in enumerate(PLANS):
        for until in plan:
            trained(place / str(number), gradient_habits.EXACT[habit], until)
        assert all(map(torch.equal, undisturbed, trained(place / str(number), gradient_habits.EXACT[habit]))), plan


@pytest.mark.expensive(family="habits with gradients, refused")
@pytest.mark.parametrize("habit", gradient_habits.REFUSED)
def test_what_uses_gradients_that_were_not_saved_is_refused(place: Path, habit: str) -> None:
    make, refused = gradient_habits.REFUSED[habit], 0
    undisturbed = trained(place / "undisturbed", make)
    for number, plan in enumerate(PLANS):
        texts: list[str] = []
        try:
            for until in plan:
                trained(place / str(number), make, until)
            assert all(map(torch.equal, undisturbed, trained(place / str(number), make))), plan
        except train.Refused as refusal:
            texts.append(refusal.text)
        assert all("attach(gradients=True)" in text for text in texts)
        refused += len(texts)
    assert refused
    for until in (4, 8):
        trained(place / "all", make, until, gradients=True)
    assert all(map(torch.equal, undisturbed, trained(place / "all", make, gradients=True)))
