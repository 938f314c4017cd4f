import time

import torch
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset):
    """A noisy walk; what it has seen stays with it from epoch to epoch."""

    def __init__(self, length):
        self.length = length
        self.level = 0.0

    def __iter__(self):
        for _ in range(self.length):
            self.level = 0.95 * self.level + torch.randn(()).item()
            yield torch.tensor([self.level, self.level**2]), torch.tensor([abs(self.level)])


def main():
    torch.manual_seed(30)
    torch.set_num_threads(1)
    stream = Stream(100)
    loader = DataLoader(stream, batch_size=8)
    model = torch.nn.Sequential(torch.nn.Linear(2, 10), torch.nn.ReLU(), torch.nn.Linear(10, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(11):
        for x, y in loader:
            loss = (model(x) - y).abs().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(0.011)
        print(f"{epoch} loss {loss.item():.7f} level {stream.level:.7f}", flush=True)
    torch.save(model.state_dict(), "out.pt")


if __name__ == "__main__":
    main()
