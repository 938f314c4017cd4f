"""Small scripts of shapes that were once not resumed; each goes behind `scripts_for_session.HEAD`."""

COMPILED = """
@torch.compile(backend="aot_eager")
def loss_of(output, target):
    total = 0.0
    for column in range(2):
        total = total + (output - target[:, column : column + 1]).square().mean()
    return total


fast = torch.compile(model, backend="aot_eager")


def main():
    for epoch in range(4):
        for _ in range(4):
            x = torch.randn(6, 4)
            loss = loss_of(fast(x), x.roll(1, dims=1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(epoch, loss.item())
    print(weights())


main()
"""

STREAM = """
from torch.utils.data import DataLoader, IterableDataset


class Walk(IterableDataset):
    def __init__(self):
        self.level = 0.0
        self.seen = []

    def __iter__(self):
        for i in range(15):
            self.level = 0.9 * self.level + torch.randn(()).item()
            self.seen.append((i, self.level))
            yield torch.tensor([self.level] * 4)


def train(x):
    loss = (model[0](x).mean() - x.sum()).square()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


walk, held = Walk(), Walk()
for epoch in range(2):
    for x in DataLoader(walk, 4):
        loss = train(x)
    print(epoch, loss, walk.level, len(walk.seen))
batches = iter(DataLoader(held, 2))
while (x := next(batches, None)) is not None:
    loss = train(x)
print(loss, held.level, len(held.seen))
"""

SHARED_DRAWS = """
from torch.utils.data import DataLoader, IterableDataset


class Noise(IterableDataset):
    def __iter__(self):
        for _ in range(40):
            yield torch.randn(4)


for x in DataLoader(Noise(), 4):
    loss = step()
    print(loss, x.sum())
"""

STRANGERS = """
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
for i in range(8):
    print(i, step())
"""

LIST_COMPREHENSION = """

def fit(scale):
    for _ in range(5):
        loss = step(scale)
    return loss


results = [(number, fit(scale), model) for number, scale in enumerate((1.0, 0.5, 0.2)) if scale < 1 or fit(2.0)]
print([(number, loss) for number, loss, _ in results], [one is model for *_, one in results])
for _ in range(3):
    print(fit(0.1))
"""

COMPREHENSION = """

def fit(scale):
    for _ in range(5):
        loss = step(scale)
    return loss


print(list({scale: fit(scale) for scale in (1.0, 0.5)}.values()))
for _ in range(3):
    print(fit(0.1))
"""

LEFT_EARLY = """

def epoch(number):
    for k in range(9):
        loss = step()
        if k == 2:
            break
    return loss


for number in range(5):
    print(number, epoch(number))
"""

FIT = """

def fit():
    for epoch in range(3):
        for _ in range(4):
            loss = step()
        print(epoch, loss, weights())
"""

PIPE = """
import os

pipe = None
for i in range(12):
    if pipe is None:
        pipe = os.fdopen(os.pipe()[1], 'w')
    pipe.write(f'{i}')
    print(i, step())
"""
