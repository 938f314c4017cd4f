"""Loops over what nobody else holds, made from what the pass has changed since: a relaunch goes on over the saved."""

from __future__ import annotations

from pathlib import Path

import pytest

from everstep.model import handshake
from tests.train.script.drill import Drill, survives
from tests.train.script.scripts_for_session import HEAD
from tests.train.zygote import Zygote

pytestmark = pytest.mark.xdist_group("script")

START = """
import itertools
from collections import OrderedDict, deque

import numpy as np
from torch.utils.data import DataLoader, Dataset, Subset, SubsetRandomSampler, TensorDataset

X = torch.randn(40, 4)


def fit(x, y=0.0):
    loss = (model(x) - y).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


@torch.no_grad()
def told(x):
    return model(x) + 0.1


class Item:
    def __init__(self, x):
        self.x, self.y = x, told(x)


class Told(Dataset):
    def __init__(self):
        self.y = told(X)

    def __len__(self):
        return len(X)

    def __getitem__(self, i):
        return X[i], self.y[i]


class Scaled:
    def __init__(self):
        self.by = told(X).mean()

    def __call__(self, rows):
        return torch.stack([row[0] for row in rows]) * self.by, torch.stack([row[1] for row in rows])
"""

LOOPS = {
    "a loader over labels of the model's": "for x, y in DataLoader(TensorDataset(X, told(X)), 8, shuffle=True):",
    "a loader beneath enumerate": "for _, (x, y) in enumerate(DataLoader(Told(), 8)):",
    "a subset": "for x, y in DataLoader(Subset(Told(), told(X)[:, 0].argsort()[:40].tolist()), 8):",
    "a sampler": "for x, y in DataLoader(Told(), 8, sampler=SubsetRandomSampler(told(X)[:, 0].topk(40).indices)):",
    "what collates": "for x, y in DataLoader(Told(), 8, collate_fn=Scaled()):",
    "a tuple of views": "for x in X[told(X)[:, 0].argsort()].split(8):",
    "a tuple of views beneath enumerate": "for _, x in enumerate((X * told(X)).split(8)):",
    "tuples and lists beneath zip": "for x, y in zip((X * told(X)).split(8), list((X * told(X * 2)).split(8))):",
    "rows of a tensor": "for x in (X * told(X)).view(5, 8, 4):",
    "rows of an array": "for a in (X * told(X)).view(5, 8, 4).numpy():\n        x = torch.from_numpy(a)",
    "a dict": "for _, x in {k: x for k, x in enumerate((X * told(X)).split(8))}.items():",
    "a deque": "for item in deque(Item(x) for x in X.split(8)):\n        x, y = item.x, item.y",
    "objects": "for item in [Item(x) for x in X.split(8)]:\n        x, y = item.x, item.y",
    "a set": "for n in {round(1e4 * told(X).sum().item()) + k for k in range(5)}:\n        x = X * (1 + n % 9)",
}

REFUSED = {
    "an ordered dict": "for _, x in OrderedDict(enumerate((X * told(X)).split(8))).items():",
    "what is made on the way": "for x in map(torch.from_numpy, np.array_split((X * told(X)).numpy(), 5)):",
    "small tensors": "for _, x in zip(told(X).split(8), X.split(8)):",
    "numbers": "for i in told(X)[:, 0].topk(9).indices.tolist():\n        x = X[i]",
}


@pytest.fixture
def drill(scripts: Zygote, tmp_path: Path) -> Drill:
    return Drill(scripts, tmp_path)


def write(drill: Drill, body: str) -> None:
    (drill.place / "train.py").write_text(HEAD + START + body)


@pytest.mark.expensive(family="loops over temporaries")
@pytest.mark.parametrize("name", LOOPS)
def test_the_loop_goes_on_over_what_it_went_over(drill: Drill, name: str) -> None:
    write(
        drill,
        f"""
for epoch in range(4):
    y = 0.0
    {LOOPS[name]}
        loss = fit(x, y)
    print(epoch, loss)
print(weights())
""",
    )
    survives(drill, 8, 5)


@pytest.mark.parametrize("name", REFUSED)
def test_other_items_than_those_that_were_taken_refuse(drill: Drill, name: str) -> None:
    write(
        drill,
        f"""
for epoch in range(4):
    {REFUSED[name]}
        loss = fit(x)
    print(epoch, loss)
""",
    )
    assert drill.launch(8) == -9
    assert drill.launch() == handshake.EXIT_REFUSED, drill.said()
    assert "the loop at train.py:" in drill.said()


def test_a_loop_around_that_hands_out_another_item_refuses(drill: Drill) -> None:
    write(
        drill,
        """
for epoch in range(2):
    for x, y in DataLoader(TensorDataset(X, told(X)), 8):
        for _ in range(4):
            loss = fit(x, y)
            print(loss)
""",
    )
    assert drill.launch(15) == -9
    # The item that is handed out again was made from what has changed.
    assert drill.launch() == handshake.EXIT_REFUSED, drill.said()
    assert "hands out something else in pass" in drill.said()


def test_what_does_not_change_goes_on_in_loops_around_with_workers(drill: Drill) -> None:
    write(
        drill,
        """
for epoch in range(2):
    for x, y in DataLoader(TensorDataset(X, X[:, :1]), 8, shuffle=True, num_workers=2):
        for _ in range(4):
            loss = fit(x, y)
    print(loss)
print(weights())
""",
    )
    survives(drill, 15)


def test_an_iterator_that_looks_at_the_training_is_not_asked_again(drill: Drill) -> None:
    write(
        drill,
        """
class Patience:
    def __init__(self, most, get):
        self.most, self.get, self.best, self.bad, self.n = most, get, 1e9, 0, 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.n == 12 or self.bad > self.most:
            raise StopIteration
        if self.get() < self.best:
            self.best = self.get()
        else:
            self.bad += 1
            print("bad", self.bad, self.best)
        self.n += 1
        return self.n


now = {"loss": 5.0}
for n in Patience(20, lambda: now["loss"]):
    for _ in range(3):
        now["loss"] = step()
    print(n, now["loss"])
for n in Patience(6, lambda: now["loss"]):
    now["loss"] = step()
print(n, weights())
""",
    )
    survives(drill, 17, 23)


def test_containers_that_were_emptied_before_are_gone_through_from_the_same_place(drill: Drill) -> None:
    write(
        drill,
        """
table, ring = {n: float(n) for n in range(7)}, deque(float(n) for n in range(5))
del table[0], table[3]
for epoch in range(3):
    for key, y in table.items():
        loss = fit(X, y)
        table[key] = y * 0.9
    for y in ring:
        loss = fit(X, y)
    ring.append(ring.popleft() * 0.5)
    print(key, y, loss)
""",
    )
    survives(drill, 8, 8, 7)
