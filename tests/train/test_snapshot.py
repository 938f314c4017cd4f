"""Snapshots that are made while training goes on: always the state of the boundary, or thrown away."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from everstep.train import snapshot as snapshot_module
from everstep.train.skeleton import put_together
from everstep.train.snapshot import Snapshot, Snapshots

WIDTH = 256


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.last = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.last(self.norm(self.first(x)))
        return y


class Training:
    def __init__(self, device: str = "cpu", **options: Any) -> None:
        torch.manual_seed(0)
        self.device = device
        self.model = Net().to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), **options)
        self.average = torch.optim.swa_utils.AveragedModel(self.model)
        self.snapshots = Snapshots({"model": self.model, "optimizer": self.optimizer, "average": self.average})
        self.forward_backward()
        self.optimizer.step()

    def forward_backward(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.randn(8, WIDTH, device=self.device)).square().mean().backward()

    def state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "average": self.average.state_dict(),
        }


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Late copies stand still until the event is set."""
    go = threading.Event()
    real = ctypes.memmove

    def memmove(target: int, source: int, size: int) -> None:
        if threading.current_thread() is not threading.main_thread():
            go.wait()
        real(target, source, size)

    monkeypatch.setattr(snapshot_module.ctypes, "memmove", memmove)
    monkeypatch.setattr(snapshot_module, "_PIECE", 1 << 12)
    yield go
    go.set()


def flat(state: Any) -> list[tuple[str, torch.Tensor]]:
    if isinstance(state, torch.Tensor):
        return [("", state)]
    if isinstance(state, dict):
        return [(f"{key}.{name}", t) for key, value in state.items() for name, t in flat(value)]
    return (
        [(f"{at}.{name}", t) for at, value in enumerate(state) for name, t in flat(value)]
        if isinstance(state, list)
        else []
    )


def copied(snapshot: Snapshot) -> Any:
    storages = []
    for view in snapshot.content.storages:
        storage = torch.UntypedStorage(view.nbytes)
        if view.nbytes:
            storage.copy_(torch.frombuffer(bytearray(view), dtype=torch.uint8).untyped_storage())
        storages.append(storage)
    return put_together(snapshot.content.skeleton, storages, [bytearray(view) for view in snapshot.content.arrays])


def same(one: Any, other: Any) -> bool:
    return [name for name, _ in flat(one)] == [name for name, _ in flat(other)] and all(
        torch.equal(a, b) for (_, a), (_, b) in zip(flat(one), flat(other), strict=True)
    )


def clone(state: Any) -> Any:
    return {name: tensor.clone() for name, tensor in flat(state)}


@pytest.mark.parametrize("options", [{}, {"fused": True}, {"foreach": True}, {"amsgrad": True}], ids=str)
def test_a_step_waits_for_the_copy_of_what_it_changes(slow: threading.Event, options: dict[str, Any]) -> None:
    training = Training(**options)
    at_boundary = clone(training.state())
    snapshot = training.snapshots.take(training.state())
    training.forward_backward()  # changes the statistics of the norm
    training.average.update_parameters(training.model)
    timer = threading.Timer(0.05, slow.set)
    timer.start()
    training.optimizer.step()
    assert snapshot.wait() is None
    assert clone(copied(snapshot)).keys() == at_boundary.keys()
    assert all(torch.equal(tensor, at_boundary[name]) for name, tensor in flat(copied(snapshot)))
    assert not same(copied(snapshot), training.state()), "nothing changed: the test tests nothing"
    assert training.snapshots.waited_s > 0
    training.snapshots.close()
    timer.join()


def write(training: Training) -> None:
    with torch.no_grad():
        training.model.last.weight.mul_(2)


def load(training: Training) -> None:
    training.model.load_state_dict(Net().state_dict())


def step_of_another(training: Training) -> None:
    """Its hooks are called, too: it waits, and nothing is lost."""
    other = torch.optim.SGD(training.model.parameters(), lr=0.1)
    training.forward_backward()
    other.step()


def state_write(training: Training) -> None:
    training.optimizer.state[training.model.last.weight]["exp_avg"].zero_()


@pytest.mark.parametrize("act", [write, load, state_write])
def test_a_write_that_torch_counts_spoils_the_copy(slow: threading.Event, act: Any) -> None:
    training = Training()
    snapshot = training.snapshots.take(training.state())
    act(training)
    slow.set()
    assert snapshot.wait() is not None


def data_write(training: Training) -> None:
    training.model.last.weight.data.clamp_(-0.001, 0.001)


def data_exchange(training: Training) -> None:
    training.model.last.weight.data = torch.zeros(WIDTH, WIDTH)


def to_double(training: Training) -> None:
    training.model.double()


def new_optimizer_state(training: Training) -> None:
    training.optimizer.load_state_dict(Training().optimizer.state_dict())


@pytest.mark.parametrize(
    "act", [data_write, data_exchange, to_double, new_optimizer_state, step_of_another, Training.forward_backward]
)
def test_writes_that_are_waited_for_or_go_elsewhere_leave_it_right(slow: threading.Event, act: Any) -> None:
    training = Training()
    at_boundary = clone(training.state())
    snapshot = training.snapshots.take(training.state())
    timer = threading.Timer(0.05, slow.set)
    timer.start()
    act(training)
    assert snapshot.wait() is None
    assert all(torch.equal(tensor, at_boundary[name]) for name, tensor in flat(copied(snapshot)))
    assert "data" not in nn.Parameter.__dict__, "the watch over .data is not taken away"
    timer.join()


def test_at_once_needs_no_patience(slow: threading.Event) -> None:
    training = Training()
    training.snapshots.at_once = True
    at_boundary = clone(training.state())
    snapshot = training.snapshots.take(training.state())
    write(training)
    assert snapshot.wait() is None
    assert all(torch.equal(tensor, at_boundary[name]) for name, tensor in flat(copied(snapshot)))


def test_a_worker_does_not_inherit_the_buffer() -> None:
    training = Training()
    snapshot = training.snapshots.take(training.state())
    snapshot.wait()
    view = snapshot.content.storages[0]
    child = os.fork()
    if child == 0:
        faulthandler.disable()  # Not its memory: reading is a fault.
        _ = bytes(view[:1])
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -11


def test_an_optimizer_without_hooks_is_copied_at_once() -> None:
    class Bare(torch.optim.SGD):
        pass

    model = nn.Linear(WIDTH, WIDTH)
    optimizer = Bare(model.parameters(), lr=0.1)
    Bare.step = lambda self, closure=None: None  # type: ignore[method-assign, assignment]
    snapshots = Snapshots({"model": model, "optimizer": optimizer})
    snapshot = snapshots.take({"model": model.state_dict()})
    before = model.weight.detach().clone()
    with torch.no_grad():
        model.weight.zero_()
    assert snapshot.wait() is None
    assert torch.equal(copied(snapshot)["model"]["weight"], before)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("spoil", [False, True])
def test_on_a_gpu_the_copy_is_the_state_of_the_boundary(spoil: bool) -> None:
    training = Training("cuda")
    for _ in range(5):
        at_boundary = {name: tensor.cpu() for name, tensor in clone(training.state()).items()}
        snapshot = training.snapshots.take(training.state())
        if spoil:
            write(training)
        training.forward_backward()
        training.average.update_parameters(training.model)
        training.optimizer.step()
        assert (snapshot.wait() is not None) == spoil
        if not spoil:
            assert all(torch.equal(tensor, at_boundary[name]) for name, tensor in flat(copied(snapshot)))
    training.snapshots.close()
