"""Train a small character-level language model (a GRU) on the text of the Apache licence, on any number of nodes.

Real data without a download: the text lies beside this script. Run it alone, or once per rank with the usual variables
(RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT) set. Under everstep it survives whatever happens to its machines: the
weights at the end are, bit for bit, those of an undisturbed run.

    python charlm.py --steps 200 --out weights.pt
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
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from everstep import train


class Windows(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Every window of ``length`` characters, with the same window one character later as its target."""

    def __init__(self, text: str, length: int) -> None:
        self.alphabet = sorted(set(text))
        self._codes = torch.tensor([self.alphabet.index(c) for c in text])
        self._length = length

    def __len__(self) -> int:
        return len(self._codes) - self._length

    def __getitem__(self, at: int) -> tuple[torch.Tensor, torch.Tensor]:
        window = self._codes[at : at + self._length + 1]
        return window[:-1], window[1:]


class CharModel(nn.Module):
    """Embedding, GRU, linear read-out; dropout makes the random state part of the result."""

    def __init__(self, alphabet: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(alphabet, hidden)
        self.gru = nn.GRU(hidden, hidden, layers, batch_first=True)
        self.drop = nn.Dropout(0.1)
        self.read = nn.Linear(hidden, alphabet)

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        return self.read(self.drop(self.gru(self.drop(self.embed(codes)))[0]))


def weights_sha256(model: nn.Module) -> str:
    """Digest of the raw bytes of all tensors, in the order of their names."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=32, help="windows per rank and step")
    parser.add_argument("--length", type=int, default=48, help="characters per window")
    parser.add_argument("--hidden", type=int, default=160)
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--text", type=Path, default=Path(__file__).parent / "data" / "apache-2.0.txt")
    parser.add_argument("--out", type=Path, help="where rank 0 writes the final weights")
    parser.add_argument("--step-s", type=float, default=0.0, help="seconds that a step takes at least: an even pace")
    args = parser.parse_args()

    # One thread: the same order of additions on every machine, and ranks that share a core do not fight for it.
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(args.seed)
    world, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    if world > 1:
        dist.init_process_group("gloo")

    data = Windows(args.text.read_text(), args.length)
    sampler = DistributedSampler(data, num_replicas=world, rank=rank, seed=args.seed, drop_last=True)
    loader = DataLoader(data, batch_size=args.batch, sampler=sampler, drop_last=True)
    model = CharModel(len(data.alphabet), args.hidden, args.layers)
    replica = DistributedDataParallel(model) if world > 1 else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)

    run = train.attach(model=model, optimizer=optimizer, schedule=schedule)
    if rank == 0:
        print(f"{sum(p.numel() for p in model.parameters())} parameters, from checkpoint {run.base}", flush=True)
    began = time.monotonic()
    for step, (codes, targets) in run.steps(loader, total=args.steps):
        loss = nn.functional.cross_entropy(replica(codes).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        run.progress(loss=loss.item())
        if rank == 0:
            print(f"step {step} loss {loss.item():.6f}", flush=True)
        time.sleep(max(0.0, began + args.step_s - time.monotonic()))
        began = time.monotonic()

    if rank == 0:
        if args.out is not None:
            torch.save(model.state_dict(), args.out)
        print(f"weights sha256 {weights_sha256(model)}", flush=True)
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
