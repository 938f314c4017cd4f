import time
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple

import torch


class Phase(Enum):
    WARMUP = auto()
    TRAIN = auto()
    COOLDOWN = auto()


class Record(NamedTuple):
    step: int
    phase: Phase
    loss: float


@dataclass(frozen=True)
class Config:
    lr: float = 0.02
    steps: int = 140


@dataclass
class State:
    phase: Phase = Phase.WARMUP
    step: int = 0
    records: list[Record] = field(default_factory=list)
    by_phase: dict[Phase, int] = field(default_factory=dict)


class Window:
    __slots__ = ("size", "values")

    def __init__(self, size):
        self.size = size
        self.values = []

    def push(self, value):
        self.values = [*self.values, value][-self.size :]
        return sum(self.values) / len(self.values)


def next_phase(state, config):
    if state.step > config.steps * 0.8:
        return Phase.COOLDOWN
    return Phase.TRAIN if state.step > 20 else Phase.WARMUP


def main():
    torch.manual_seed(38)
    torch.set_num_threads(1)
    config, state, window = Config(), State(), Window(12)
    factor = {Phase.WARMUP: 0.1, Phase.TRAIN: 1.0, Phase.COOLDOWN: 0.2}
    model = torch.nn.Linear(5, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=config.lr)
    while state.step < config.steps:
        state.phase = next_phase(state, config)
        optimizer.param_groups[0]["lr"] = config.lr * factor[state.phase]
        x = torch.randn(7, 5)
        loss = (model(x) - x.square().sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        state.step += 1
        state.by_phase[state.phase] = state.by_phase.get(state.phase, 0) + 1
        state.records.append(Record(state.step, state.phase, window.push(loss.item())))
        if state.phase is Phase.COOLDOWN or state.step % 10 == 0:
            print(state.records[-1], {phase.name: n for phase, n in state.by_phase.items()}, flush=True)
        time.sleep(0.011)
    torch.save({"model": model.state_dict(), "losses": [r.loss for r in state.records]}, "out.pt")


main()
