"""Time as the agent tells it: UTC read once at start, monotonic from then on (a stepped system clock moves nothing)."""

from __future__ import annotations

import time


class Clock:
    """UTC seconds that never run backwards."""

    def __init__(self) -> None:
        self._mono0 = time.monotonic()
        self._utc0 = time.time()

    def utc(self) -> float:
        """UTC seconds since 1970."""
        return self._utc0 + (time.monotonic() - self._mono0)
