"""An ordinary training that knows nothing of everstep: shuffled data, dropout, momentum, a schedule; slow on purpose.

Started by torchrun it is data-parallel. In its working folder it writes what trainings write: metrics line by line, the
best weights, a history that it reads back. At its end the digest of the weights is printed and written to a file.
With ``ABORT_AT_END`` in its environment it dies of SIGABRT after all that.

    python plain.py --epochs 4 --step-s 0.1 --out digest.txt
"""

from __future__ import annotations

import argparse
import ctypes
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


class Records:
    """What one rank writes, in ``runs`` below the working folder."""

    def __init__(self, rank: int) -> None:
        self._folder = Path("runs").resolve()
        self._folder.mkdir(exist_ok=True)
        self._metrics = (self._folder / f"metrics-{rank}.csv").open("w")
        self._history = self._folder / f"history-{rank}.txt"
        self._best = self._folder / f"best-{rank}.pt"
        self._least = float("inf")
        print("epoch,loss", file=self._metrics)

    def step(self, epoch: int, loss: float) -> None:
        print(f"{epoch},{loss!r}", file=self._metrics)

    def epoch(self, epoch: int, loss: float, model: nn.Module) -> None:
        known = self._history.read_text().splitlines() if epoch else []
        if len(known) != epoch:
            raise RuntimeError(f"the history has {len(known)} epochs before epoch {epoch}")
        with self._history.open("a") as history:
            print(loss, file=history)
        if loss < self._least:
            self._least = loss
            # Wide enough to be too big for a save itself.
            torch.save({"model": model.state_dict(), "ballast": torch.full((300_000,), loss)}, self._best)

    def close(self) -> None:
        self._metrics.close()


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

    records = Records(rank)
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
            records.step(epoch, loss.item())
            time.sleep(args.step_s)
        scheduler.step()
        records.epoch(epoch, total, model)
        if rank == 0:
            print(f"epoch {epoch} loss {total / len(loader):.9f} lr {scheduler.get_last_lr()[0]}", flush=True)
    records.close()
    if rank == 0:
        print(f"weights {digest_of(model)}", flush=True)
        args.out.write_text(digest_of(model))
    if world > 1:
        dist.destroy_process_group()
    if os.environ.get("ABORT_AT_END"):
        # As torch does it now and then: when the interpreter is all but gone.
        ctypes.pythonapi.Py_AtExit(ctypes.CDLL(None).abort)


if __name__ == "__main__":
    main()
