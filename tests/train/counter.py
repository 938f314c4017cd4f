"""The smallest thing that can be trained and saved."""

from __future__ import annotations

import torch


class Counter:
    """A tensor of ``size`` that a test adds to."""

    def __init__(self, size: int = 1) -> None:
        self.value = torch.zeros(size)

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        if state["value"].shape != self.value.shape:
            raise ValueError("another size")
        self.value = state["value"]
