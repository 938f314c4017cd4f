"""UTC anchored once, then moved on by the monotonic clock: a step of the system clock moves no deadline of ours."""

from __future__ import annotations

import asyncio
import time


class SystemClock:
    """The ``Clock`` of the live loop."""

    def __init__(self) -> None:
        """Anchors UTC now."""
        self._utc = time.time()
        self._mono = time.monotonic()
        self._behind = 0.0

    def now(self) -> float:
        """UTC seconds; never goes back."""
        return self._utc + (time.monotonic() - self._mono)

    async def sleep(self, seconds: float) -> None:
        """Waits."""
        await asyncio.sleep(max(seconds, 0.0))

    def stepped_s(self) -> float:
        """How far the system clock has moved against ours since the anchor, seconds; a step over 5 s is journalled."""
        return time.time() - self.now() - self._behind

    def reanchor(self) -> None:
        """Takes the system clock's word again, but never goes back."""
        now = self.now()
        self._mono = time.monotonic()
        self._utc = max(now, time.time())
        # After a step back the system clock stays behind ours: that is known from now on, and no step again.
        self._behind = min(time.time() - self._utc, 0.0)
