"""Small training scripts of each kind that a check tells apart, as texts."""

from __future__ import annotations

_MODEL = """
import os
import random
import time

import torch

torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def one_step(x):
    optimizer.zero_grad()
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()
    time.sleep(0.01)
    return loss.item()
"""

ATTACHED = """
from everstep import train
"""
ATTACHED += (
    _MODEL
    + """
data = torch.utils.data.TensorDataset(torch.arange(160.0).reshape(40, 4) / 160)
loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
run = train.attach(model=model, optimizer=optimizer)
for step, (x,) in run.steps(loader, total=60):
    one_step(x)
torch.save(model.state_dict(), "out.pt")
"""
)

UNMODIFIED = (
    _MODEL
    + """
for step in range(60):
    print(step, one_step(torch.rand(4, 4) * random.random()))
torch.save(model.state_dict(), "out.pt")
"""
)

TIME_SEEDED = (
    _MODEL
    + """
torch.manual_seed(time.time_ns())
for step in range(20):
    one_step(torch.rand(4, 4))
"""
)

OWN_CHECKPOINTS = (
    _MODEL
    + """
begin = 0
if os.path.exists("ckpt.pt"):
    state = torch.load("ckpt.pt")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    begin = state["step"]
for step in range(begin, 60):
    one_step(torch.rand(4, 4))
    if step % 5 == 4:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
        torch.save(state, "ckpt.tmp")
        os.replace("ckpt.tmp", "ckpt.pt")
"""
)

REFUSING = (
    _MODEL
    + """
attempts = open("attempts", "a+")
attempts.seek(0)
if attempts.read():
    import sys

    print("everstep: train.py:30: sampler: cannot be rebuilt", file=sys.stderr)
    sys.exit(76)
attempts.write("1")
attempts.flush()
for step in range(60):
    one_step(torch.rand(4, 4))
"""
)

FAILING = UNMODIFIED.replace("torch.save", "raise ValueError('no more data')\ntorch.save")

ACCUMULATING = (
    ATTACHED.replace(
        "run = ",
        """

class Gradients:
    def state_dict(self):
        return [parameter.grad for parameter in model.parameters()]

    def load_state_dict(self, state):
        for parameter, gradient in zip(model.parameters(), state):
            parameter.grad = gradient


run = """,
    )
    .replace("optimizer=optimizer)", "optimizer=optimizer, gradients=Gradients())")
    .replace(
        "    one_step(x)",
        """    (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
    time.sleep(0.01)
    if step % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()""",
    )
    .replace("total=60", "total=100")
)
