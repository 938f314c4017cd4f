import random
import time

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Noisy(Dataset):
    def __len__(self):
        return 80

    def __getitem__(self, index):
        jitter = random.random() + np.random.rand() + torch.rand(()).item()
        return torch.full((4,), index / 80) + 0.1 * jitter * torch.randn(4)


def seed_worker(worker_id):
    seed = torch.initial_seed() % 2**32
    np.random.seed(seed)
    random.seed(seed)


def main():
    torch.manual_seed(33)
    torch.set_num_threads(1)
    generator = torch.Generator()
    generator.manual_seed(5)
    loader = DataLoader(
        Noisy(),
        batch_size=8,
        shuffle=True,
        num_workers=2,
        persistent_workers=True,
        prefetch_factor=3,
        worker_init_fn=seed_worker,
        generator=generator,
    )
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(9):
        total = 0.0
        for x in loader:
            loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
            time.sleep(0.014)
        print(f"epoch {epoch} total {total:.8f}", flush=True)
    torch.save(model.state_dict(), "out.pt")


if __name__ == "__main__":
    main()
