import random
import time

import torch
from torch.utils.data import DataLoader, Dataset, Sampler, WeightedRandomSampler


class Words(Dataset):
    def __init__(self, count):
        self.rows = [torch.randn(random.randint(2, 9)) for _ in range(count)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index], index


class ByLength(Sampler):
    """Batches of rows of similar length, in an order that differs every epoch."""

    def __init__(self, data, size):
        self.order = sorted(range(len(data)), key=lambda i: len(data.rows[i]))
        self.size = size
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        chunks = [self.order[i : i + self.size] for i in range(0, len(self.order), self.size)]
        random.Random(self.epoch).shuffle(chunks)
        yield from chunks

    def __len__(self):
        return -(-len(self.order) // self.size)


def pad(rows):
    values = torch.nn.utils.rnn.pad_sequence([row for row, _ in rows], batch_first=True)
    return values.sum(1, keepdim=True), values.mean(1, keepdim=True)


def main():
    random.seed(29)
    torch.manual_seed(29)
    torch.set_num_threads(1)
    data = Words(60)
    sampler = ByLength(data, 6)
    bucketed = DataLoader(data, batch_sampler=sampler, collate_fn=pad)
    draws = WeightedRandomSampler(torch.linspace(0.1, 1.0, 60), 30, generator=torch.Generator().manual_seed(1))
    weighted = DataLoader(data, batch_size=6, sampler=draws, collate_fn=pad)
    model = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(9):
        sampler.set_epoch(epoch)
        for loader in (bucketed, weighted):
            for x, y in loader:
                loss = (model(x) - y).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                time.sleep(0.012)
            print(epoch, len(loader), f"{loss.item():.8f}", flush=True)
    torch.save(model.state_dict(), "out.pt")


main()
