"""DistributedDataParallel stays what it was made as; what it wraps is restored in place."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from everstep.train.script import graph
from tests.train.script.graph.relaunch import Script, assert_exact

SOURCE = """
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
net = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
model = DistributedDataParallel(net)
opt = torch.optim.Adam(model.parameters(), 0.1)
losses = []
def step(i):
    opt.zero_grad()
    loss = model(torch.randn(4, 3)).pow(2).mean()
    loss.backward()
    opt.step()
    losses.append(loss.item())
def show(): return losses, list(net.state_dict().values()), model.module is net
"""


@pytest.fixture(autouse=True)
def one_rank(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_comes_back() -> None:
    assert_exact(SOURCE)


def test_exchanged_parameters_are_refused() -> None:
    script = Script(SOURCE).run(0, 1)
    script.module.net[0].weight = torch.nn.Parameter(torch.ones(5, 3))
    script.module.model._module_parameters[0] = script.module.net[0].weight
    with pytest.raises(graph.Unrestorable, match="its parameters were exchanged"):
        Script(SOURCE).restore(script.capture())


def test_made_in_the_loop_refuses() -> None:
    source = (
        SOURCE.replace("model = Dist", "wrapped = Dist")
        .replace("opt = ", "model = None\nopt = ")
        .replace("Adam(model", "Adam(net")
    )
    script = Script(source)
    script.module.model = torch.nn.parallel.DistributedDataParallel(script.module.net)
    again = Script(source).restore(script.capture())
    with pytest.raises(graph.Poisoned, match="wrap the model before the training loop"):
        again.module.model(torch.ones(1, 3))
