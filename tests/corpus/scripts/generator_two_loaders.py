"""Semi-supervised training: labelled and unlabelled batches from two endless sources, and a mean teacher."""

import copy
import itertools
import random
import time

import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(21)
random.seed(21)
torch.set_num_threads(1)


class Endless:
    def __init__(self, loader, name):
        self.loader = loader
        self.name = name
        self.rounds = 0

    def __iter__(self):
        while True:
            self.rounds += 1
            for batch in self.loader:
                yield batch[0], batch[-1]


def mixed(first, second):
    """Pairs; now and then the second source is asked twice."""
    for number in itertools.count():
        x, y = next(first)
        if random.random() < 0.2:
            next(second)
        u, _ = next(second)
        yield number, x, y, u


points = torch.randn(200, 5)
labels = (points.sum(1, keepdim=True) > 0).float()
labelled = Endless(DataLoader(TensorDataset(points[:30], labels[:30]), batch_size=8, shuffle=True), "labelled")
unlabelled = Endless(DataLoader(TensorDataset(points[30:]), batch_size=16, shuffle=True), "unlabelled")
source = mixed(iter(labelled), iter(unlabelled))

student = torch.nn.Sequential(torch.nn.Linear(5, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
teacher = copy.deepcopy(student).requires_grad_(False)
optimizer = torch.optim.SGD(student.parameters(), lr=0.1, momentum=0.9)

for epoch in range(6):
    total = 0.0
    for number, x, y, u in itertools.islice(source, 18):
        supervised = torch.nn.functional.binary_cross_entropy_with_logits(student(x), y)
        noisy = u + 0.1 * torch.randn_like(u)
        consistency = (student(noisy).sigmoid() - teacher(u).sigmoid()).square().mean()
        loss = supervised + 0.5 * consistency
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for mean, now in zip(teacher.parameters(), student.parameters()):
                mean.lerp_(now, 0.05)
        total += loss.item()
        time.sleep(0.011)
    print(f"epoch {epoch} {total:.6f} batch {number} rounds {labelled.rounds} {unlabelled.rounds}", flush=True)

torch.save({"student": student.state_dict(), "teacher": teacher.state_dict()}, "out.pt")
