"""A training that goes on until its save has been audited; with ``--hidden`` it has state that no save can hold."""

from __future__ import annotations

import argparse
import ctypes
import os
import time
from pathlib import Path

import torch
from torch import nn

MOST_STEPS = 20_000


def told() -> bool:
    """Whether the verdict is there; never in the audit itself, to which nobody listens."""
    facts = Path(os.environ.get("EVERSTEP_REPORT_DIR", "nowhere"), "facts-0.jsonl")
    return facts.exists() and '"audit"' in facts.read_text()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--hidden", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(3)
    if args.hidden:
        ctypes.CDLL(None).srand(1)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(MOST_STEPS):
        # The random numbers of the C library: a new process begins them anew.
        scale = 1 + ctypes.CDLL(None).rand() % 1000 / 1000 if args.hidden else 1.0
        loss = model(torch.randn(8, 4)).square().mean() * scale
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.02)
        if told():
            break
    print("ended", flush=True)


if __name__ == "__main__":
    main()
