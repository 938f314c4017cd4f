"""An ordinary training that knows nothing of everstep: shuffled data, dropout, momentum, a schedule; slow on purpose.

Started by torchrun it is data-parallel. At its end the digest of the weights is printed and written to a file.

    python plain.py --epochs 4 --step-s 0.1 --out digest.txt
"""

from __future__ import annotations

import argparse
import hashlib
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def digest_of(model: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode() + tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--step-s", type=float, default=0.1)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(7)
    world, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    if world > 1:
        dist.init_process_group("gloo")
    data = TensorDataset(torch.randn(128, 16), torch.randn(128, 4))
    sampler = DistributedSampler(data, seed=3) if world > 1 else None
    loader = DataLoader(data, batch_size=8, sampler=sampler, shuffle=sampler is None)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 4))
    replica = DistributedDataParallel(model) if world > 1 else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)

    for epoch in range(args.epochs):
        if sampler is not None:
            sampler.set_epoch(epoch)
        total = 0.0
        for inputs, targets in loader:
            loss = nn.functional.mse_loss(replica(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
            time.sleep(args.step_s)
        scheduler.step()
        if rank == 0:
            print(f"epoch {epoch} loss {total / len(loader):.9f} lr {scheduler.get_last_lr()[0]}", flush=True)
    if rank == 0:
        print(f"weights {digest_of(model)}", flush=True)
        args.out.write_text(digest_of(model))
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
