import time

import torch
from torch.utils.data import DataLoader, TensorDataset


def cycle(loader):
    while True:
        for batch in loader:
            yield batch


def main():
    torch.manual_seed(12)
    torch.set_num_threads(1)
    loader = DataLoader(TensorDataset(torch.randn(50, 4), torch.randn(50, 2)), batch_size=8, shuffle=True)
    data = cycle(loader)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
    for step in range(140):
        x, y = next(data)
        loss = (model(x) - y).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.012)
        if step % 10 == 9:
            print(step, f"{loss.item():.7f}", flush=True)
    torch.save(model.state_dict(), "out.pt")


main()
