"""A very small real training with `everstep.train`: DDP over gloo, dropout, momentum, shuffled data; slow on purpose.

Everything it does is appended to ``TRAIL`` as by ``stepper.py``. At its end rank 0 writes the digest of the weights.

    TRAIL=/tmp/trail.jsonl python trainer.py --steps 60 --step-s 0.1 --out digest.txt
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from everstep import train

NODE = int(os.environ.get("EVERSTEP_NODE_RANK", "0"))


def tell(run: train.Run, what: str, step: int, **more: object) -> None:
    line = {"t": time.time(), "what": what, "attempt": run.attempt, "node": NODE, "pid": os.getpid()}
    with open(os.environ["TRAIL"], "a") as file:
        file.write(json.dumps({**line, "step": step, **more}) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--step-s", type=float, default=0.1)
    parser.add_argument("--until-attempt", type=int, default=1, help="earlier attempts stop short of the last step")
    parser.add_argument("--share", type=int, default=0, help="so many steps each of those attempts may go further")
    parser.add_argument("--abort-node", type=int, default=-1, help="dies of SIGABRT at the end of the first attempt")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(7)
    world, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    if world > 1:
        dist.init_process_group("gloo")
    data = TensorDataset(torch.randn(256, 16), torch.randn(256, 4))
    sampler = DistributedSampler(data, num_replicas=world, rank=rank, seed=3, drop_last=True)
    loader = DataLoader(data, batch_size=8, sampler=sampler, drop_last=True)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 4))
    replica = DistributedDataParallel(model) if world > 1 else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    run = train.attach(model=model, optimizer=optimizer)
    short = run.attempt < args.until_attempt
    last = min(args.steps, run.attempt * args.share or args.steps)
    tell(run, "began", run.step, base=run.base, master=[os.environ.get(f"MASTER_{x}") for x in ("ADDR", "PORT")])
    for step, (inputs, targets) in run.steps(loader, total=args.steps):
        loss = nn.functional.mse_loss(replica(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(args.step_s)
        while short and step == last:
            time.sleep(0.05)  # what the test has in store must not find the job over
        run.progress(loss=loss.item())
        tell(run, "step", step, loss=loss.item())
    if rank == 0:
        digest = hashlib.sha256()
        for name, tensor in sorted(model.state_dict().items()):
            digest.update(name.encode() + tensor.contiguous().view(torch.uint8).numpy().tobytes())
        args.out.write_text(digest.hexdigest())
    tell(run, "ended", run.step)
    if world > 1:
        dist.destroy_process_group()
    if run.attempt == 1 and args.abort_node == NODE:
        # As torch does it now and then: when the interpreter is all but gone.
        ctypes.pythonapi.Py_AtExit(ctypes.CDLL(None).abort)


if __name__ == "__main__":
    main()
