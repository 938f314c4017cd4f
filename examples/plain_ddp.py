"""Distributed training as it is written without everstep: torchrun starts it, torch.save keeps its state.

The same model and data as `charlm.py`. It saves every --save-every steps and begins again from its newest file; what
came after that file is trained again, in a new random state. everstep runs it unchanged and sees its progress by the
growth of its checkpoint folder.

    torchrun --nproc-per-node 2 plain_ddp.py --steps 200
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from charlm import CharModel, Windows, weights_sha256
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def save(path: Path, state: dict[str, object]) -> None:
    """Replace the file at once, so that a kill leaves the old one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    torch.save(state, temporary)
    temporary.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=32, help="windows per rank and step")
    parser.add_argument("--length", type=int, default=48, help="characters per window")
    parser.add_argument("--hidden", type=int, default=160)
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--save-every", type=int, default=20, help="steps")
    parser.add_argument("--text", type=Path, default=Path(__file__).parent / "data" / "apache-2.0.txt")
    parser.add_argument("--dir", type=Path, default=Path(os.environ.get("EVERSTEP_CHECKPOINT_DIR", "checkpoints")))
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    data = Windows(args.text.read_text(), args.length)
    sampler = DistributedSampler(data, drop_last=True)
    loader = DataLoader(data, batch_size=args.batch, sampler=sampler, drop_last=True)
    model = CharModel(len(data.alphabet), args.hidden, args.layers)
    replica = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    step = 0
    path = args.dir / "state.pt"
    if path.exists():
        state = torch.load(path, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    while step < args.steps:
        # Behind a restart the epoch begins anew: some batches are seen twice. `charlm.py` shows how not to.
        sampler.set_epoch(step // len(loader))
        for codes, targets in loader:
            loss = nn.functional.cross_entropy(replica(codes).flatten(0, 1), targets.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if rank == 0:
                print(f"step {step} loss {loss.item():.6f}", flush=True)
            if rank == 0 and (step % args.save_every == 0 or step == args.steps):
                save(path, {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step})
            if step == args.steps:
                break
    if rank == 0:
        print(f"weights sha256 {weights_sha256(model)}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
