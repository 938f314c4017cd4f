"""``with`` statements around training whose managers no variable holds: they come back, or are no place for a save."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.train.script.drill import Drill, survives
from tests.train.script.scripts_for_session import HEAD
from tests.train.zygote import Zygote

pytestmark = pytest.mark.xdist_group("script")

TOOLS = """
import contextlib
import threading

import torch

LOG = []


class Section:
    def __init__(self, name):
        self.name = name
        self.steps = 0

    def __enter__(self):
        self.before = len(LOG)
        return self.name

    def __exit__(self, kind, error, trace):
        print("left", self.name, self.before, len(LOG), self.steps, kind)
        return kind is KeyError


class Average:
    def __init__(self, model):
        self.model = model
        self.shadow = [p.detach().clone() for p in model.parameters()]

    @contextlib.contextmanager
    def swapped(self, rate):
        kept = [p.detach().clone() for p in self.model.parameters()]
        with torch.no_grad():
            for p, s in zip(self.model.parameters(), self.shadow):
                p.copy_(s)
        yield kept
        with torch.no_grad():
            for p, k in zip(self.model.parameters(), kept):
                p.copy_((1 - rate) * p + rate * k)


class Locked(Section):
    def __enter__(self):
        self.lock = threading.Lock()
        self.thread = threading.local()
        return self
"""

SURVIVE = {
    "a class": """
with Section("all") as name:
    for i in range(12):
        LOG.append(step())
print(name, weights())
""",
    "in a function, by epochs": """
def train():
    for epoch in range(3):
        with Section(f"epoch {epoch} after {len(LOG)}"):
            for i in range(5):
                LOG.append(step())
    return len(LOG)

print(train(), weights())
""",
    "a method that yields": """
average = Average(model)
for epoch in range(3):
    with average.swapped(0.25 + epoch / 10) as kept:
        for i in range(5):
            step()
            average.shadow[0] = average.shadow[0] * 0.5 + model[0].weight.detach() * 0.5
    print(epoch, sum(k.sum().item() for k in kept), weights())
""",
    "of another module, beside a library's, two at once": """
def train():
    with torch.enable_grad(), tools.Section("outer") as outer, Average(model).swapped(0.5):
        with tools.Section("inner " + outer):
            for i in range(11):
                tools.LOG.append(step())

train()
print(weights())
""",
    "from a property, and from a subscript": """
class Trainer:
    made = []

    @property
    def section(self):
        return Section(f"at {len(LOG)}")

    def __getitem__(self, number):
        return Section(f"number {number} at {len(LOG)}")

    def fit(self):
        for epoch in range(4):
            with self.section, self[epoch]:
                for i in range(4):
                    LOG.append(step())

Trainer().fit()
print(weights())
""",
    "closing": """
class Counted:
    def __init__(self):
        self.before = len(LOG)

    def close(self):
        print("closed", len(LOG) - self.before)

for epoch in range(4):
    with contextlib.closing(Counted()):
        for i in range(4):
            LOG.append(step())
print(weights())
""",
    "a file that a pass opens": """
@contextlib.contextmanager
def logged(path):
    with open(path, "w") as file:
        yield file

@contextlib.contextmanager
def closed(path):
    file = open(path, "w")
    try:
        yield file
    finally:
        file.close()

for epoch in range(3):
    with logged(f"log-{epoch}") as file, closed(f"other-{epoch}") as other:
        for i in range(5):
            file.write(f"{step()};")
            other.write(f"{i};")
print(weights(), *(open(f"log-{i}").read() for i in range(3)), *(open(f"other-{i}").read() for i in range(3)))
""",
    "which manager is chosen, and what leaves": """
def train(careful):
    for epoch in range(4):
        with (Section("careful") if careful else contextlib.nullcontext()) as name:
            for i in range(5):
                LOG.append(step())
                if i == 3 and epoch == 1:
                    raise KeyError(i)
                if i == 3 and epoch == 2:
                    return name
        print(epoch)

print(train(True), weights())
print(train(False) if len(LOG) < 0 else None)
""",
}


@pytest.fixture
def drill(scripts: Zygote, tmp_path: Path) -> Drill:
    (tmp_path / "tools.py").write_text(TOOLS)
    return Drill(scripts, tmp_path)


def write(drill: Drill, body: str) -> None:
    start = "import os, sys\nsys.path.insert(0, os.getcwd())\nimport contextlib\nimport tools\nfrom tools import *\n"
    (drill.place / "train.py").write_text(start + HEAD + body)


@pytest.mark.expensive(family="managers")
@pytest.mark.parametrize("case", SURVIVE)
def test_managers_come_back(drill: Drill, case: str) -> None:
    write(drill, SURVIVE[case])
    survives(drill, 5, 4)


def test_another_object_than_the_one_that_was_entered_is_refused(drill: Drill) -> None:
    write(
        drill,
        """
SECTIONS = [Section("a"), Section("b")]

def entered():
    return SECTIONS[os.path.exists('mark')]

with entered() as name:
    for i in range(12):
        LOG.append(step())
print(name, weights())
""",
    )
    assert drill.launch(5) == -9
    (drill.place / "mark").touch()
    assert drill.launch() == 76
    assert "the manager (Section) of a `with` in <module> (train.py) is another object" in drill.said()


def test_a_variable_that_is_given_another_manager_meanwhile_is_refused(drill: Drill) -> None:
    write(
        drill,
        """
def train():
    section = Section("first")
    with section:
        for i in range(12):
            LOG.append(step())
            if i == 2:
                section = Section("second")

train()
""",
    )
    assert drill.launch(8) == -9
    assert drill.launch() == 76
    assert "the manager (Section) of a `with` in train (train.py) is another object" in drill.said()


def test_a_manager_that_cannot_be_saved_is_no_place_for_a_save(drill: Drill) -> None:
    write(drill, "with Locked('all'):\n    for i in range(12):\n        LOG.append(step())\nprint(weights())\n")
    rc, plain = drill.plain()
    assert drill.launch(5) == -9
    assert "no save can be made: module __main__: the manager of a `with`.thread (_thread._local)" in drill.said()
    assert drill.launch() == rc
    assert not drill.resumed()
    assert drill.log() == plain


def test_compiled_functions_may_enter_managers(drill: Drill) -> None:
    write(
        drill,
        """
SCALE = [1.0]

class Scaled:
    def __init__(self, by):
        self.by = by
    def __enter__(self):
        SCALE[0] *= self.by
    def __exit__(self, *_):
        SCALE[0] /= self.by

@contextlib.contextmanager
def doubled():
    SCALE[0] *= 2
    try:
        yield
    finally:
        SCALE[0] /= 2

def helper(x):
    with Scaled(4.0), torch.no_grad():
        y = x * SCALE[0]
    trebled, lowered = Scaled(3.0), torch.autocast("cpu", dtype=torch.bfloat16, enabled=False)
    with lowered, trebled:
        y = y + SCALE[0]
    with doubled():
        return y + x * SCALE[0]

compiled = torch.compile(lambda x: helper(x).sum(), backend="eager", fullgraph=True)
total = 0.0
for i in range(12):
    total += compiled(torch.ones(3)).item() + step()
print(total, SCALE)
""",
    )
    survives(drill, 5)
    assert drill.log().endswith(" [1.0]\n")
