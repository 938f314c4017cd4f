"""The compiler stays out of a process that compiles nothing, and comes as always when somebody does."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

_TRAIN = """
import sys, torch
import torch.distributed as dist
from everstep import train

dist.init_process_group("gloo", init_method="tcp://127.0.0.1:{port}", rank=0, world_size=1)
model = torch.nn.Linear(3, 3)
replica = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters())
replica(torch.randn(4, 3)).sum().backward()
optimizer.step()
optimizer.zero_grad()
print("imported" if "torch._dynamo.eval_frame" in sys.modules else "not imported")
"""
_COMPILE = """
compiled = torch.compile(lambda x: x + 1, backend="eager")
assert compiled(torch.ones(1)).item() == 2.0
optimizer.zero_grad()
optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})
assert torch._dynamo is sys.modules["torch._dynamo"]
assert torch._dynamo.utils is sys.modules["torch._dynamo.utils"]
import torch._dynamo.config
assert torch._dynamo.config is sys.modules["torch._dynamo"].config is sys.modules["torch._dynamo.utils"].config
marked = torch.optim.Optimizer.zero_grad.__wrapped__.__dict__["__dynamo_disable"]
print(marked.__module__)
"""


@pytest.fixture
def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _output(code: str, port: int, **environment: str) -> list[str]:
    env = {**os.environ, **environment}
    text = code.replace("{port}", str(port))
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, env=env, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_optimizers_and_ddp_start_without_the_compiler_which_is_the_real_one_once_somebody_compiles(
    free_port: int,
) -> None:
    lines = _output(_TRAIN + _COMPILE, free_port)
    assert lines[0] == "not imported"
    assert lines[1].startswith("torch._dynamo")


@pytest.mark.expensive(family="loaders")
@pytest.mark.parametrize(
    "statement",
    [
        "import torch._dynamo.config as config",
        "from torch._dynamo import config",
        "import torch._dynamo; config = torch._dynamo.config",
        "import importlib; config = importlib.import_module('torch._dynamo').config",
        "import torch._dynamo.utils as utils; config = utils.config",
    ],
)
def test_every_way_to_import_it_gives_the_real_one(free_port: int, statement: str) -> None:
    check = """
import torch._dynamo
assert config is sys.modules["torch._dynamo.config"] is torch._dynamo.utils.config, config
assert config.__spec__.name == "torch._dynamo.config" and config.__spec__.origin
assert torch._dynamo is sys.modules["torch._dynamo"] and type(torch._dynamo) is type(sys)
print("the real one")
"""
    assert _output(f"import sys, torch\nfrom everstep import train\n{statement}\n{check}", free_port) == [
        "the real one"
    ]


def test_settings_of_the_compiler_in_the_environment_are_heard(free_port: int) -> None:
    assert _output(_TRAIN, free_port, TORCHDYNAMO_VERBOSE="0") == ["imported"]
