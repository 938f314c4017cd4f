"""A training script of a few milliseconds a step, whose result depends on everything that must come back.

Dropout and augmentation draw random numbers, the schedule and an average have state, the loader shuffles. The last line
names the weights. TINY_* variables choose variants; TINY_DIE_AT kills the process in the middle of that step.
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from everstep import train


class Noisy(Dataset):
    """Draws from torch and from python for each item."""

    def __len__(self) -> int:
        return 23

    def __getitem__(self, at: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.arange(4.0) + at + torch.rand(4) + random.random()
        return x, x.sum().sin().reshape(1)


class Average:
    """State of the user's own."""

    def __init__(self, model: nn.Module) -> None:
        self.mean = [p.detach().clone() for p in model.parameters()]

    def update(self, model: nn.Module) -> None:
        for mean, p in zip(self.mean, model.parameters(), strict=True):
            mean.lerp_(p.detach(), 0.1)

    def state_dict(self) -> dict[str, object]:
        return {"mean": self.mean}

    def load_state_dict(self, state: dict[str, object]) -> None:
        self.mean = list(state["mean"])  # type: ignore[call-overload]


torch.manual_seed(3)
random.seed(4)
torch.set_num_threads(1)
world, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
if world > 1:
    dist.init_process_group("gloo")
total = int(os.environ.get("TINY_STEPS", "20"))
die_at = int(os.environ.get("TINY_DIE_AT", "0"))
model: nn.Module = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 1))
inner = model
if world > 1:
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 30)
average = Average(inner)
data = Noisy()
sampler = DistributedSampler(data, seed=5) if world > 1 else None
loader = DataLoader(
    data, batch_size=4, shuffle=sampler is None, sampler=sampler, num_workers=int(os.environ.get("TINY_WORKERS", "0"))
)

run = train.attach(model=model, optimizer=optimizer, schedule=schedule, average=average)
torch.rand(7)  # whatever a script draws before its loop
print(f"from {run.base} attempt {run.attempt}", flush=True)


def one_step(step: int, x: torch.Tensor, y: torch.Tensor) -> None:
    loss = (model(x) - y).square().mean() * (1 + random.random())
    optimizer.zero_grad()
    loss.backward()
    if step == die_at:
        os.kill(os.getpid(), signal.SIGKILL)
    optimizer.step()
    schedule.step()
    average.update(inner)
    print(f"step {step} loss {loss.item():.9f}", flush=True)
    run.progress(loss=loss.item())
    time.sleep(float(os.environ.get("TINY_STEP_S", "0")))


if os.environ.get("TINY_OWN_LOOP"):
    with run:
        while run.step < total:
            x = torch.rand(4, 4)
            one_step(run.step + 1, x, x.sum(1, keepdim=True))
            run.step_done(total=total)
else:
    for step, (x, y) in run.steps(loader, total=total):
        one_step(step, x, y)

digest = hashlib.sha256()
for tensor in [*inner.parameters(), *average.mean]:
    digest.update(tensor.detach().numpy().tobytes())
print(f"weights {digest.hexdigest()}", flush=True)
