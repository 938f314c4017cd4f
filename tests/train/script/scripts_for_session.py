"""Small scripts of the shapes that the loop machinery has to tell apart; each prints all that matters."""

HEAD = """
import torch
from torch import nn

torch.manual_seed(5)
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)


def step(scale=1.0):
    x = torch.randn(6, 4)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean() * scale
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def weights():
    return sum(p.double().sum().item() for p in model.parameters())
"""

NESTED = """
def evaluate(rounds):
    total = 0.0
    for _ in range(rounds):
        total += model(torch.ones(2, 4)).sum().item()
    return total


def epoch(number, train):
    total = 0.0
    for i in range(5 if train else 2):
        total += step(1 + 0.1 * i) if train else evaluate(2)
    return total


def main():
    warm = []
    for k in range(4):
        warm.append(step())
    print("warm", len(warm), warm[-1], k)
    history = {"train": [], "eval": []}
    for number in range(4):
        history["eval"].append(epoch(number, train=False))
        history["train"].append(epoch(number, train=True))
        print(number, history["train"][-1], history["eval"][-1])
    print(weights(), sum(history["train"]))


main()
"""

WHILE = """
def until(limit):
    done = 0
    while True:
        loss = step()
        done += 1
        if done >= limit:
            return loss


best, patience, n = 1e9, 0, 0
queue = [3, 1, 4, 2, 5]
first = until(4)
print("first", first)
while queue and (limit := queue.pop()):
    loss = until(limit)
    best, patience = (loss, 0) if loss < best else (best, patience + 1)
    n += 1
    print(n, limit, loss, best, patience)
    if patience > 9:
        break
else:
    print("no patience was needed")
for i in range(6):
    if step() < 0:
        break
else:
    print("never below")
print(weights())
"""

CLOSURES = """
import functools


def counted(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        wrapper.calls += 1
        return function(*args, **kwargs)

    wrapper.calls = 0
    return wrapper


class Trainer:
    seen = 0

    def __init__(self):
        total = 0.0

        def add(value):
            nonlocal total
            total += value
            return total

        self.add = add

    @counted
    @torch.enable_grad()
    def fit(self, epochs):
        def one(scale):
            for i in range(4):
                loss = step(scale)
                Trainer.seen += 1
                running = self.add(loss)
            return running

        for epoch in range(epochs):
            print(epoch, one(1 + epoch), Trainer.seen)
        return running if False else epoch


trainer = Trainer()
print(trainer.fit(4), Trainer.fit.calls, trainer.add(0.0), weights())
"""

EXITS = """
import sys

for i in range(12):
    print(i, step())
sys.exit(3)
"""

RAISES = """
for i in range(12):
    print(i, step())
raise RuntimeError("as it does undisturbed")
"""

CLICK = """
import click


@click.command()
@click.option("--steps", default=3)
def main(steps):
    for i in range(steps):
        print(i, step())


main()
"""

FORKS = """
import os

for i in range(10):
    if i % 4 == 3:
        pid = os.fork()
        if pid == 0:
            for _ in range(50):
                step()
            os._exit(0)
        os.waitpid(pid, 0)
    print(i, step())
print(weights())
"""

THREAD = """
import threading
import time

beat = threading.Thread(target=time.sleep, args=(30,), name="heart", daemon=True)
beat.start()
for i in range(8):
    print(i, step())
"""

OUTSIDE = """
import os

if os.path.exists(os.environ["SWITCH"]):
    raise FileExistsError("somebody was here")
for i in range(12):
    print(i, step())
"""

PARTS = {
    "pkg/__init__.py": "",
    "pkg/__main__.py": "from .loop import fit\n\nif __name__ == '__main__':\n    fit(3)\n",
    "pkg/loop.py": HEAD
    + """
from . import state


def fit(epochs):
    for epoch in range(epochs):
        for i in range(4):
            state.losses.append(step())
        print(epoch, state.losses[-1], len(state.losses))
""",
    "pkg/state.py": "losses = []\n",
}

LARGE = """
import numpy as np

CHANGE = False


def main():
    data = torch.linspace(0, 1, 1 << 24).view(-1, 4)
    target = np.linspace(0, 1, 1 << 19)
    parts = [data[: 1 << 20], data[1 << 20 :]]
    for warm in range(2):
        print(parts[warm].sum().item())
    for epoch in range(3):
        for i in range(4):
            batch = data[4 * i : 4 * i + 4]
            loss = step(float(batch.sum() + target[i]) + 1)
            if CHANGE:
                parts[1][i] += loss
                target[-1 - i] -= epoch
        print(epoch, loss)
    print(weights(), data.double().sum().item(), parts[1].double().sum().item(), target.sum())


main()
"""

LARGE_SWAPPED = """
a, b = torch.linspace(0, 1, 1 << 19), torch.linspace(3, 4, 1 << 19)
for epoch in range(4):
    a, b = b, a
    for i in range(3):
        print(step(float(a[i])))
"""

LARGE_HANDED_DOWN = """
class Store:
    data = None


def fit(data, rounds):
    for i in range(rounds):
        part = data[i:]
        loss = step(1 + float(part[0]))
    return loss


def main():
    data = torch.linspace(0, 1, 1 << 20)
    print(fit(data, 4))
    Store.data = data
    Store.more = torch.linspace(0, 2, 1 << 20)
    for epoch in range(3):
        print(fit(Store.data, 3), fit(Store.more, 2), data.sum().item())


main()
"""

LARGE_IN_LOADER = """
from torch.utils.data import DataLoader, TensorDataset

data = torch.linspace(0, 1, 1 << 20).view(-1, 1 << 17)
loader = DataLoader(TensorDataset(data), batch_size=2, shuffle=True)
del data
for epoch in range(3):
    for (batch,) in loader:
        print(step(1 + float(batch.mean())))
"""

LARGE_TURNED = """
import numpy as np

data = np.linspace(0, 1, 1 << 18)
for epoch in range(5):
    np.negative(data, out=data)
    for i in range(3):
        print(step(1 + float(data[i])))
print(data.sum())
"""

UNHURRIED = """
import time
for _ in range(50):
    step()
    time.sleep(0.01)
"""
