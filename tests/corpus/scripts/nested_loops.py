import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)
torch.set_num_threads(1)

x = torch.randn(96, 6)
y = x @ torch.randn(6, 2)
tasks = [TensorDataset(x[i * 32 : (i + 1) * 32], y[i * 32 : (i + 1) * 32]) for i in range(3)]
model = nn.Linear(6, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
history = []

for rnd in range(4):
    for number, task in enumerate(tasks):
        loader = DataLoader(task, batch_size=8, shuffle=True)
        for xb, yb in loader:
            for _ in range(3):
                noise = 0.01 * torch.randn_like(xb)
                loss = nn.functional.mse_loss(model(xb + noise), yb)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                time.sleep(0.008)
            history.append(loss.item())
        print(f"round {rnd} task {number} loss {history[-1]:.6f}", flush=True)

torch.save({"model": model.state_dict(), "history": history}, "out.pt")
