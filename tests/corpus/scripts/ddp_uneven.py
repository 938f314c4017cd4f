import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

ACCUMULATE = 3


def main():
    dist.init_process_group(backend="gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(76)
    torch.set_num_threads(1)
    module = torch.nn.Sequential(
        torch.nn.Linear(4, 12), torch.nn.BatchNorm1d(12), torch.nn.Tanh(), torch.nn.Linear(12, 1)
    )
    model = DistributedDataParallel(module)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=60)
    generator = torch.Generator().manual_seed(rank)
    best = float("inf")
    for step in range(60):
        for micro in range(ACCUMULATE):
            x = torch.randn(5 + rank, 4, generator=generator)
            with model.no_sync() if micro < ACCUMULATE - 1 else nullcontext():
                loss = (model(x) - x.amax(1, keepdim=True)).square().mean() / ACCUMULATE
                loss.backward()
            time.sleep(0.008)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        if step % 5 == 4:
            score = loss.detach().clone()
            dist.all_reduce(score)
            dist.barrier()
            if rank == 0:
                print(f"step {step} score {score.item() / world:.8f} lr {scheduler.get_last_lr()[0]:.8f}", flush=True)
                if score.item() < best:
                    best = score.item()
                    torch.save(module.state_dict(), "best.pt")
    gathered = [None] * world
    dist.all_gather_object(gathered, generator.get_state().sum().item())
    if rank == 0:
        print("generators", gathered)
        torch.save(model.state_dict(), "out.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
