import time

import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(10)
torch.set_num_threads(1)

dataset = TensorDataset(torch.randn(90, 3), torch.randn(90, 1))
loader = DataLoader(dataset, batch_size=8, shuffle=True)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
it = iter(loader)

for step in range(1, 151):
    batch = next(it, None)
    if batch is None:
        it = iter(loader)
        batch = next(it)
    x, y = batch
    loss = (model(x) - y).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.011)
    if step % 10 == 0:
        print(f"iter {step}: {loss.item():.7f}", flush=True)

torch.save(model.state_dict(), "out.pt")
