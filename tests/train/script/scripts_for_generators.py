"""Small scripts that hold generators; each goes behind `scripts_for_session.HEAD` and `LOADERS`."""

LOADERS = """
import itertools
import os

import numpy as np
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

inputs = torch.randn(22, 4)
pairs = TensorDataset(inputs, inputs.sum(1, keepdim=True))


def load(size, **more):
    return DataLoader(pairs, batch_size=size, shuffle=True, **more)


def fit(x, y):
    loss = (model(x) - y).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def cycle(loader):
    while True:
        for batch in loader:
            yield batch
"""

CYCLE = """
data = cycle(load(4, num_workers=int(os.environ.get("WORKERS", "0"))))
for i in range(26):
    x, y = next(data)
    loss = fit(x, y)
    if i % 4 == 3:
        print(i, loss)
print(weights(), [row.tolist() for row in next(data)], torch.rand(1).item())
"""

TWO_LOADERS = """
def main():
    labelled, unlabelled = cycle(load(4)), cycle(load(3, generator=torch.Generator().manual_seed(3)))
    draws = np.random.default_rng(4)

    def noises():
        while True:
            scale = draws.random()
            for _ in range(3):
                yield scale * torch.randn(4, 4)

    noise = noises()
    for epoch in range(4):
        for i in range(5):
            (x, y), (other, _) = next(labelled), next(unlabelled)
            loss = fit(x + next(noise)[: len(x)], y) + fit(other, model(other).detach())
        print(epoch, loss, draws.random())
    print(weights(), next(unlabelled)[0].sum().item())


main()
"""

EPOCHS = """
class Source:
    def __init__(self):
        self.count = 0
        self.loader = load(5)

    def batches(self, epochs):
        order = []
        for epoch in range(epochs):
            seen = 0
            for number, (x, y) in enumerate(self.loader):
                self.count += 1
                order.append(self.count)
                if number == 2:
                    yield "note", (epoch, sum(order), seen)
                seen += len(x)
                yield "batch", (x, y)
                if seen > 15:
                    break
            else:
                yield "note", "all of it"
        return order


source = Source()
data = source.batches(7)
while True:
    try:
        kind, what = next(data)
    except StopIteration as over:
        print(len(over.value))
        break
    if kind == "note":
        print(what)
    else:
        fit(*what)
print(weights(), source.count, torch.rand(1).item())
"""

DELEGATES = """
def parts(loader, times):
    for _ in range(times):
        yield from loader
    return times


def stages():
    times = 1
    while True:
        done = yield from parts(load(6), times)
        times += done
        for batch in DataLoader(pairs, 7, shuffle=True):
            yield batch


data = stages()
for i in range(27):
    print(i, fit(*next(data)))
print(weights(), torch.rand(1).item())
"""

EXPRESSIONS = """
def main():
    scale = 1.0
    noise = (scale * torch.randn(5, 4) for _ in itertools.count())
    rates = (0.01 / (n + 1) for n in range(40))
    batches = ((x, y) for x, y in load(4) if len(x) == 4)
    for epoch in range(5):
        for i in range(4):
            for group in optimizer.param_groups:
                group["lr"] = next(rates)
            x = next(noise)
            loss = fit(x, x.mean(1, keepdim=True))
        scale *= 0.8
        print(epoch, loss, next(batches)[1].sum().item())
    print(weights(), next(rates), scale)


main()
"""

WRAPPED = """
data = cycle(load(4))
numbered = enumerate(data)
pairs_of = zip(itertools.count(5), cycle(load(5)))
doubled = map(lambda batch: batch[0] * 2, cycle(load(3)))
some = itertools.islice(cycle(load(6)), 3, None)
for i in range(23):
    number, (x, y) = next(numbered)
    fit(x, y)
    count, (x, y) = next(pairs_of)
    fit(next(doubled), torch.zeros(()))
    loss = fit(*next(some))
    if i % 5 == 4:
        print(number, count, loss, next(data)[1].sum().item())
print(weights())
"""

LOOPED = """
def main():
    data = cycle(load(4))
    for epoch in range(4):
        for i, (x, y) in enumerate(itertools.islice(data, 5)):
            loss = fit(x, y)
        print(epoch, loss, next(data)[1].sum().item())
    for number, (x, y) in enumerate(data):
        loss = fit(x, y)
        if number == 7:
            break
    for x, y in data:
        loss += fit(x, y)
        if loss > 0 and (number := number + 1) > 14:
            break
    print(weights(), loss, next(data)[1].sum().item())


main()
"""

HANDED_ON = """
class Ahead:
    # Takes one item ahead of a source that others use as well.
    def __init__(self, source):
        self.source = source
        self.next = next(source)

    def __iter__(self):
        return self

    def __next__(self):
        found, self.next = self.next, next(self.source)
        return found


data = cycle(load(4))
for number, (x, y) in enumerate(Ahead(data)):
    loss = fit(x, y)
    if number == 16:
        break
print(loss)
x, y = next(data)
print(fit(x, y), weights())
"""

GUARDED = """
def lines(path):
    try:
        with open(path, "rb") as file:
            for line in file:
                yield [float(word) for word in line.split()]
    finally:
        print("read")


with open("numbers.txt", "w") as file:
    for row in range(30):
        file.write(" ".join(str(((row + 1) * k) % 7) for k in range(4)) + "\\n")
data = lines("numbers.txt")
print(next(data))
for i in range(20):
    x = torch.tensor([next(data)])
    loss = fit(x, x[:, :1])
    if i % 5 == 0:
        print(i, loss)
print(list(data)[-1], weights())
"""

MADE_IN_A_PASS = """
def main():
    kept = []
    for epoch in range(5):
        size = 3 + epoch

        def some(count):
            for i in range(count):
                yield torch.randn(size, 4), i

        batches = some(9)
        for _ in range(4):
            x, i = next(batches)
            loss = fit(x, x[:, :1] * i)
        kept.append(batches)
        print(epoch, loss, [next(one)[1] for one in kept])
    print(weights())


main()
"""

SHARED_SCOPE = """
def main():
    for epoch in range(4):
        scale = 1.0
        noise = (scale * torch.randn(5, 4) for _ in range(20))
        for i in range(5):
            x = next(noise)
            loss = fit(x, x[:, :1])
            scale *= 0.9
        print(epoch, loss)
    print(weights())


main()
"""

SHARED_SCOPE_IN_A_PASS = """
def main():
    scale = 1.0
    for i in range(20):
        if i % 8 == 0:
            noise = (scale * torch.randn(5, 4) for _ in range(20))
        x = next(noise)
        loss = fit(x, x[:, :1])
        scale *= 0.9
    print(weights())


main()
"""

SHARED_SCOPE_OF_A_FUNCTION = """
def main():
    scale = 1.0
    for i in range(20):
        if i % 8 == 0:
            make = lambda: scale * torch.randn(5, 4)
        x = make()
        loss = fit(x, x[:, :1])
        scale *= 0.9
    print(weights())


main()
"""

NUMBERED = """
numbered = enumerate(load(4))
for number, (x, y) in numbered:
    loss = fit(x, y)
    if number == 4:
        break
print(loss, next(numbered)[0], weights())
"""

LOCKED = """
import threading

lock = threading.Lock()


def numbers():
    with lock:
        for i in range(100):
            yield torch.randn(3, 4)


data = numbers()
for i in range(20):
    x = next(data)
    fit(x, x[:, :1])
print(weights())
"""

IN_AN_EXPRESSION = """
def numbers():
    heard = []
    for i in range(100):
        heard.append((yield torch.randn(3, 4)))


data = numbers()
for i in range(20):
    x = next(data)
    fit(x, x[:, :1])
print(weights())
"""

IN_FINALLY = """
def numbers():
    while True:
        try:
            x = torch.randn(3, 4)
        finally:
            yield x


data = numbers()
for i in range(20):
    x = next(data)
    fit(x, x[:, :1])
print(weights())
"""

NESTED_EXPRESSION = """
data = (torch.randn(3, 4) * a for a in range(9) for b in range(9))
for i in range(20):
    x = next(data)
    fit(x, x[:, :1])
print(weights())
"""

OF_A_LIBRARY = """
data = model.modules()
next(data)
for i in range(20):
    x = torch.randn(3, 4)
    fit(x, x[:, :1])
print(weights(), next(data))
"""

STREAM = """
class Walk(IterableDataset):
    # All batches of an epoch come from one generator; the first items are all equal.
    def __init__(self):
        self.rows = self.walk()

    def walk(self):
        for i in itertools.count():
            yield torch.full((4,), max(0.0, i - 50.0))

    def __iter__(self):
        return itertools.islice(self.rows, 60)


walk = Walk()
for epoch in range(2):
    for x in DataLoader(walk, 3):
        loss = fit(x, x[:, :1])
    print(epoch, loss)
print(weights())
"""

COROUTINES = """
import asyncio


async def numbers():
    for i in range(100):
        yield torch.randn(3, 4)


turns = asyncio.new_event_loop()
data = numbers()
for i in range(20):
    x = turns.run_until_complete(anext(data))
    fit(x, x[:, :1])
print(weights())
"""

TRAINER = """
def training(epochs):
    losses = []
    for epoch in range(epochs):
        for x, y in load(6):
            losses.append(fit(x, y))
        yield epoch, sum(losses)
        del losses[1:]


if os.environ.get("HOW") == "next":
    rounds = training(9)
    while True:
        try:
            epoch, total = next(rounds)
        except StopIteration:
            break
        print(epoch, total)
else:
    for epoch, total in training(9):
        print(epoch, total)
print(weights())
"""

COMPILED = """
def columns(x):
    for column in range(2):
        yield x[:, column : column + 1]


def spans(x):
    yield from columns(x)
    yield x.mean(1, keepdim=True)


@torch.compile(backend="aot_eager", fullgraph=True)
def loss_of(output, target):
    total = 0.0
    for part in spans(target):
        total = total + (output - part).square().mean()
    return total


data = cycle(load(4))
for i in range(20):
    x, y = next(data)
    loss = loss_of(model(x), x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if i % 4 == 3:
        print(i, loss.item())
print(weights())
"""

MANAGED = """
from contextlib import contextmanager

entered = []


@contextmanager
def section(name):
    entered.append(name)
    scale = len(entered)
    try:
        yield scale
    finally:
        entered.append("left " + name)
        print(entered)


def training():
    with section("outer") as scale:
        for i in range(12):
            x = torch.randn(4, 4)
            loss = fit(x, x[:, :1] * scale)
    print(loss)


held = section("held")
scale = held.__enter__()
training()
for i in range(12):
    x = torch.randn(4, 4)
    loss = fit(x, x[:, :1] * scale)
held.__exit__(None, None, None)
print(loss, weights(), entered)
"""
