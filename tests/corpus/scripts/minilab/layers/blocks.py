import torch

from .. import VERSION


class Block(torch.nn.Module):
    calls = 0

    def __init__(self, before, after):
        super().__init__()
        self.version = VERSION
        self.linear = torch.nn.Linear(before, after)
        self.scale = torch.nn.Parameter(torch.ones(after))

    def forward(self, x):
        Block.calls += 1
        return torch.tanh(self.linear(x)) * self.scale
