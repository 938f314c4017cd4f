"""A training loop that lives in an installed library, not in the user's code."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


class Trainer:
    """Fits a module that brings `training_step` and `configure_optimizers`."""

    def __init__(self, epochs: int, on_epoch: Callable[[int, float], None]) -> None:
        self.epochs = epochs
        self.on_epoch = on_epoch

    def fit(self, model: Any, loader: Iterable[Any]) -> None:
        """Train for the number of epochs; `on_epoch` hears each epoch's last loss."""
        optimizer = model.configure_optimizers()
        for epoch in range(self.epochs):
            loss = None
            for batch in loader:
                loss = model.training_step(batch)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            if loss is not None:
                self.on_epoch(epoch, loss.item())
