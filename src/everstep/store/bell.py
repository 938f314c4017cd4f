"""Waking those who wait for new lines, from whatever thread wrote them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator


class Listener:
    """One waiter of a bell. A ring between ``clear`` and ``wait`` is not missed."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def clear(self) -> None:
        """Forgets the rings so far; call before looking at what may have changed."""
        self._event.clear()

    async def wait(self, timeout_s: float | None) -> None:
        """Returns at the next ring, or after ``timeout_s``."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._event.wait()

    def wake(self) -> None:
        """Called by the bell, from any thread."""
        # The waiter's loop may have been closed meanwhile: then nobody waits.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._event.set)


class Bell:
    """Rung after each commit; safe to use from any thread and with any number of event loops."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: set[Listener] = set()

    @contextlib.contextmanager
    def listener(self) -> Iterator[Listener]:
        """A listener for the length of a ``with`` block, for the running event loop."""
        listener = Listener()
        with self._lock:
            self._listeners.add(listener)
        try:
            yield listener
        finally:
            with self._lock:
                self._listeners.discard(listener)

    def ring(self) -> None:
        """Wakes every listener."""
        with self._lock:
            listeners = tuple(self._listeners)
        for listener in listeners:
            listener.wake()
