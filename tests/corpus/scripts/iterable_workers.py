import random
import time

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Shards(IterableDataset):
    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        worker = get_worker_info()
        mine = list(range(worker.id, len(self.rows), worker.num_workers))
        random.shuffle(mine)
        for i in mine:
            yield self.rows[i] + 0.1 * torch.randn(3)


def main():
    torch.manual_seed(31)
    torch.set_num_threads(1)
    loader = DataLoader(Shards(torch.randn(96, 3)), batch_size=8, num_workers=2)
    model = torch.nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(7):
        for x in loader:
            loss = (model(x) - x.flip(1)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(0.015)
        print(f"{epoch} loss {loss.item():.7f}", flush=True)
    torch.save(model.state_dict(), "out.pt")


if __name__ == "__main__":
    main()
