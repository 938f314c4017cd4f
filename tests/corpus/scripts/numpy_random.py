import time

import numpy as np
import torch

np.random.seed(61)
torch.set_num_threads(1)

data = np.random.randn(100, 4).astype("float32")
labels = (data**2).sum(1, keepdims=True)
w1 = torch.tensor(np.random.randn(4, 12).astype("float32") * 0.3, requires_grad=True)
w2 = torch.tensor(np.random.randn(12, 1).astype("float32") * 0.3, requires_grad=True)
optimizer = torch.optim.Adam([w1, w2], lr=0.01)
running = np.zeros(5)

for epoch in range(14):
    order = np.random.permutation(len(data))
    for start in range(0, len(order), 10):
        pick = order[start : start + 10]
        drop = np.random.binomial(1, 0.9, 12).astype("float32")
        x, y = torch.from_numpy(data[pick]), torch.from_numpy(labels[pick])
        loss = (((x @ w1).relu() * torch.from_numpy(drop)) @ w2 - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        running = np.roll(running, 1)
        running[0] = loss.item()
        time.sleep(0.01)
    print(epoch, running.round(6).tolist(), flush=True)

torch.save([w1.detach(), w2.detach()], "out.pt")
np.savetxt("running.txt", running)
