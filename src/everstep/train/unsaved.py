"""A run that saves nothing, because the task says so (``checkpoint.mode: off``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from everstep.train.saves import Saves


class Unsaved(Saves):
    """In the place of `Saves`: no save is ever begun, and none succeeds."""

    missing = "and nothing is saved: checkpoint.mode is off"

    def begin(self, step: int, state: Callable[[], dict[str, Any]], *, began: float | None = None) -> None:
        """Nothing."""

    def now(self, step: int, state: Callable[[], dict[str, Any]], *, began: float | None = None) -> bool:
        """False: there is no checkpoint."""
        return False
