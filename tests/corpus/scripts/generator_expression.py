"""Generator expressions over a range, a list and a loader, under enumerate, zip, map and islice."""

import itertools
import time

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(3)
torch.set_num_threads(1)
draws = np.random.default_rng(3)

data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
loader = DataLoader(data, batch_size=6, shuffle=True)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)

rates = (0.1 / (1 + 0.02 * n) for n in range(1000))
weights = (float(w) * 2 for w in draws.random(1000) if w > 0.25)
scaled = map(lambda pair: pair[0] * pair[1], zip(rates, weights))
names = enumerate(name for name in ["warm", "hot", "cool", "cold", "out"])
batches = ((x * (1 + 0.1 * draws.random()), y) for x, y in itertools.chain(loader, loader, loader, loader))

for _ in range(4):
    for x, y in itertools.islice(batches, 9):
        optimizer.param_groups[0]["lr"] = next(scaled)
        loss = (model(x.float()) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.016)
        print(f"{loss.item():.7f} {optimizer.param_groups[0]['lr']:.6f}", flush=True)
    print("epoch", next(names), f"{draws.random():.6f}", flush=True)

torch.save(model.state_dict(), "out.pt")
