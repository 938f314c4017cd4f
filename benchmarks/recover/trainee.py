"""The training that both systems keep alive: two ranks, DDP over gloo, ``everstep.train`` on a shared folder.

It writes what it reached, and when, to ``--marks``: one JSON object a line, appended by all ranks of all attempts.
"""

import argparse
import json
import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from everstep import train


class Marks:
    """Appends marks; each line is one ``write``, so that the lines of two ranks never mix."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._pid, self._rank = os.getpid(), int(os.environ["RANK"])
        self._host = os.environ.get("BENCH_HOST") or os.environ.get("EVERSTEP_INSTANCE", "")

    def tell(self, what: str, step: int = 0) -> None:
        mark = {"t": time.time(), "what": what, "rank": self._rank, "pid": self._pid, "host": self._host, "step": step}
        os.write(self._file, (json.dumps(mark) + "\n").encode())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--marks", type=Path, required=True)
    parser.add_argument("--dir", type=Path, required=True, help="the checkpoint folder, seen by all hosts")
    parser.add_argument("--every-s", type=float, default=0.5, help="seconds between saves")
    parser.add_argument("--step-s", type=float, default=0.03, help="seconds of each step in which nothing is computed")
    parser.add_argument("--steps", type=int, default=10_000_000)
    args = parser.parse_args()
    marks = Marks(args.marks)
    marks.tell("imported")

    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    marks.tell("rendezvous")

    rows = torch.randn(4096, 64)
    data = TensorDataset(rows, rows.sum(1, keepdim=True))
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(data, drop_last=True)
    loader = DataLoader(data, batch_size=16, sampler=sampler, drop_last=True)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))
    replica = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    run = train.attach(dir=args.dir, every=args.every_s, shared=True, model=model, optimizer=optimizer)
    if "TORCHELASTIC_RUN_ID" in os.environ:
        # torchrun ends what is left of a broken gang by SIGTERM and waits 30 s for it: a rank that hangs in a
        # collective would not hear that as a wish to save, so it dies of it at once, as plain scripts do.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    marks.tell("restored", run.step)
    for step, (inputs, targets) in run.steps(loader, total=args.steps):
        loss = nn.functional.mse_loss(replica(inputs), targets)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        time.sleep(args.step_s)
        marks.tell("step", step)


if __name__ == "__main__":
    main()
