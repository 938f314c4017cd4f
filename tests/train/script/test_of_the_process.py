"""What a pass that is over had set outside of the script's own objects: it comes back, or the script refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.train.script.drill import Drill, survives
from tests.train.zygote import Zygote

pytestmark = pytest.mark.xdist_group("script")

SCRIPT = """
import atexit, contextvars, decimal, enum, logging, os, signal, sys, warnings, weakref
import numpy as np
import torch

torch.manual_seed(1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
variable = contextvars.ContextVar("variable", default=0)


class Phase(enum.Enum):
    WARM = 1
    FULL = 2

    def __init__(self, number):
        self.losses = []


phase, pool, by_address = Phase.WARM, set(range(40)), {id(p): p.detach().clone() for p in model.parameters()}


def hear(number, frame):
    print("heard")


for epoch in range(4):
    SET
    for _ in range(4):
        row = pool.pop()
        pool.add(row + 100)
        loss = model(torch.full((1, 4), 0.01 * row)).pow(2).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        phase.losses.append(round(loss.item(), 6))
        phase = Phase.FULL if phase is Phase.WARM else Phase.WARM
        for p in model.parameters():
            by_address.setdefault(id(p), p.detach().clone()).lerp_(p.detach(), 0.5)
    print(epoch, os.environ.get("SCALE"), os.umask(0o022), decimal.Decimal(1) / 3)
    print(torch.tensor([1 / 3]), np.array([1 / 3]))
    log = logging.getLogger("mine")
    print(log.level, log.propagate, log.isEnabledFor(logging.WARNING), logging.root.manager.disable)
    print(np.geterr()["divide"], torch.tensor([1e-310], dtype=torch.float64).mul(2).item(), len(pool))
    if epoch == 1:
        os.umask(0o027)
    try:
        warnings.warn("x", ImportWarning)
    except ImportWarning:
        print("raised")
print(Phase.WARM.losses, Phase.FULL.losses, list(pool), len(by_address))
print([by_address[id(p)].sum().item() for p in model.parameters()])
"""
SETTINGS = """
    if epoch == 1:
        os.environ["SCALE"] = "0.5"
        os.environ.pop("GOES", None)
        decimal.getcontext().prec = 7
        torch.set_printoptions(precision=2)
        np.set_printoptions(precision=3)
        np.seterr(divide="raise")
        torch.set_flush_denormal(True)
        warnings.simplefilter("error", ImportWarning)
        logging.getLogger("mine").setLevel(logging.ERROR)
        logging.getLogger("mine").propagate = False
        logging.disable(logging.DEBUG)
"""
REFUSED = {
    "a signal handler": ("signal.signal(signal.SIGUSR2, hear)", "handlers of signals"),
    "a function for the exit": ("atexit.register(print, 'bye')", "functions for the exit"),
    "a finalizer": ("weakref.finalize(model, hear, 1, 2)", "finalizers"),
    "a handler of logs": (
        "logging.getLogger('mine').addHandler(logging.StreamHandler(sys.stdout))",
        "handlers of logs",
    ),
    "a log file": ("logging.getLogger('mine').addHandler(logging.FileHandler('log.txt'))", "log files"),
}


@pytest.fixture
def drill(scripts: Zygote, tmp_path: Path) -> Drill:
    return Drill(scripts, tmp_path, env={"GOES": "1"})


def write(drill: Drill, body: str) -> None:
    (drill.place / "train.py").write_text(SCRIPT.replace("    SET\n", body))


def test_what_can_be_set_comes_back(drill: Drill) -> None:
    write(drill, SETTINGS)
    survives(drill, 11, 3)


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_set_is_refused(drill: Drill, case: str) -> None:
    statement, text = REFUSED[case]
    write(drill, f"    if epoch == 1:\n        {statement}\n")
    assert drill.launch(11) == -9, drill.said()
    assert drill.launch() == 76
    assert f"with other switches ({text}: it was " in drill.said()


def test_nothing_is_saved_while_a_context_variable_is_set(drill: Drill) -> None:
    write(drill, "    if epoch == 1:\n        variable.set(1)\n")
    assert drill.launch(11) == -9
    assert "no save can be made while the context variable __main__.variable is set" in drill.said()
    assert drill.launch() == 0
    assert drill.resumed(), "the saves of the first epoch are there"


LOOKED_AT = """
import contextlib, io, logging
import torch
from torch.overrides import TorchFunctionMode

torch.manual_seed(1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


class Calls(TorchFunctionMode):
    count = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.count += 1
        return function(*args, **(kwargs or {}))


kept = io.StringIO()
with Calls() as calls, contextlib.redirect_stdout(kept):
    for epoch in range(4):
        for row in torch.randn(4, 1, 4):
            loss = model(row).pow(2).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if epoch == 1:
                ends = open("ends.txt", "a", newline="\\r\\n")
        print(epoch, loss.item())
        if epoch > 0:
            print(epoch, file=ends)
print(kept.getvalue(), calls.count)
ends.close()
"""


def test_modes_do_not_see_us_and_streams_in_memory_go_on(drill: Drill) -> None:
    (drill.place / "train.py").write_text(LOOKED_AT)
    survives(drill, 11, 3)


HANDLING = """
import contextlib
import torch

torch.manual_seed(1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


@contextlib.contextmanager
def timed():
    before = model.weight.sum().item()
    yield
    print(before)


def train():
    for row in torch.randn(6, 1, 4):
        loss = model(row).pow(2).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@timed()
def decorated():
    train()


BODY
print(model.weight)
"""
HELD = {
    "except": ("try:\n    raise KeyError('a')\nexcept KeyError:\n    train()", "in an `except`"),
    "finally": (
        "try:\n    try:\n        raise KeyError\n    finally:\n        train()\nexcept KeyError:\n    pass",
        "while an exception is being handled",
    ),
    "decorator": ("decorated()", "under a manager that no variable holds"),
}


@pytest.mark.parametrize("case", HELD)
def test_nothing_is_saved_where_the_interpreter_holds_something(drill: Drill, case: str) -> None:
    body, text = HELD[case]
    (drill.place / "train.py").write_text(HANDLING.replace("BODY", body))
    assert drill.launch(4) == -9
    assert text in drill.said()
    assert drill.launch() == 0
    assert not drill.resumed()
