import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

MAX_STEPS = 150


def main():
    torch.manual_seed(2)
    torch.set_num_threads(1)
    data = TensorDataset(torch.randn(70, 5), torch.randint(0, 3, (70,)))
    loader = DataLoader(data, batch_size=16, shuffle=True, drop_last=True)
    net = nn.Sequential(nn.Linear(5, 12), nn.Tanh(), nn.Linear(12, 3))
    opt = torch.optim.AdamW(net.parameters(), lr=3e-3)
    step = 0
    epoch = 0
    batches = iter(loader)
    while step < MAX_STEPS:
        try:
            x, y = next(batches)
        except StopIteration:
            epoch += 1
            batches = iter(loader)
            continue
        loss = nn.functional.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
        time.sleep(0.01)
        if step % 10 == 0:
            print(f"step {step} epoch {epoch} loss {loss.item():.6f}", flush=True)
    torch.save(net.state_dict(), "out.pt")


main()
