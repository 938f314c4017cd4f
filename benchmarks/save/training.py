"""A training whose state and step time can be chosen apart: experts of which each step trains a few, with Adam.

All experts have Adam's state; those without a gradient are left alone by the optimizer, as in a mixture of experts.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import nn

_WIDTH = 1024
_BATCH = 32
_ACTIVE = 2
#: Parameter and two moments of Adam, 4 bytes each.
EXPERT_BYTES = (_WIDTH * _WIDTH + _WIDTH) * 12


@dataclass
class Training:
    """``step`` trains once; ``passes`` forward and backward passes make up its length."""

    model: nn.ModuleList
    optimizer: torch.optim.Optimizer
    passes: int
    device: str
    done: int = 0

    @staticmethod
    def of(state_bytes: int, passes: int, device: str) -> Training:
        torch.manual_seed(0)
        experts = max(_ACTIVE, round(state_bytes / EXPERT_BYTES))
        model = nn.ModuleList(nn.Linear(_WIDTH, _WIDTH) for _ in range(experts)).to(device)
        training = Training(model, torch.optim.Adam(model.parameters()), passes, device)
        # Once all together, so that all state of the optimizer is there.
        x = torch.randn(1, _WIDTH, device=device)
        torch.stack([expert(x) for expert in model]).mean().backward()
        training.optimizer.step()
        return training

    def step(self) -> None:
        chosen = [self.model[(self.done * _ACTIVE + n) % len(self.model)] for n in range(_ACTIVE)]
        self.optimizer.zero_grad()
        for _ in range(self.passes):
            x = torch.randn(_BATCH, _WIDTH, device=self.device)
            for expert in chosen:
                x = torch.relu(expert(x))
            x.square().mean().backward()
        self.optimizer.step()
        if self.device != "cpu":
            # A loop that looks at its loss: what the device has not done yet is not done.
            torch.cuda.synchronize()
        self.done += 1

    def state(self) -> dict[str, object]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    @property
    def state_bytes(self) -> int:
        tensors = [*self.model.parameters(), *(t for s in self.optimizer.state.values() for t in s.values())]
        return sum(tensor.nbytes for tensor in tensors)


def passes_for(step_s: float, device: str) -> int:
    """How many passes make a step of that length here and now."""
    training = Training.of(8 * EXPERT_BYTES, 1, device)
    taken = {}
    for passes in (2, 12):
        training.passes = passes
        times = []
        for _ in range(12):
            began = time.perf_counter()
            training.step()
            times.append(time.perf_counter() - began)
        taken[passes] = sorted(times)[len(times) // 2]
    each = max(1e-6, (taken[12] - taken[2]) / 10)
    return max(1, round(2 + (step_s - taken[2]) / each))
