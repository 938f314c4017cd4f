import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(75)
    torch.set_num_threads(1)
    x = torch.randn(96, 6)
    data = TensorDataset(x, x.sum(1, keepdim=True).tanh())
    sampler = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, batch_size=6, sampler=sampler)
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    torch.manual_seed(1000 + rank)
    for epoch in range(14):
        sampler.set_epoch(epoch)
        total = torch.zeros(1)
        for inputs, targets in loader:
            loss = (model(inputs + 0.05 * torch.randn_like(inputs)) - targets).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
            time.sleep(0.012)
        dist.all_reduce(total)
        if rank == 0:
            print(f"epoch {epoch} total {total.item():.8f}", flush=True)
    if rank == 0:
        torch.save(model.module.state_dict(), "out.pt")
    torch.save(torch.get_rng_state(), f"rng-{os.environ['RANK']}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
