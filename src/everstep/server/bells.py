"""Wake-up calls: who follows something is rung when it changed.

Nothing is queued, so a slow follower holds nothing up.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class Bells:
    """Bells by name. A ring sets the events of all who listen; each clears its own, looks, and waits again."""

    def __init__(self) -> None:
        self._listeners: dict[str, set[asyncio.Event]] = defaultdict(set)

    @contextmanager
    def listening(self, name: str, event: asyncio.Event) -> Iterator[None]:
        """While inside, ``event`` is set by each ring of ``name``."""
        self._listeners[name].add(event)
        try:
            yield
        finally:
            listeners = self._listeners[name]
            listeners.discard(event)
            if not listeners:
                del self._listeners[name]

    @property
    def listeners(self) -> int:
        """How many listen, over all names."""
        return sum(len(events) for events in self._listeners.values())

    def ring(self, name: str) -> None:
        """Something happened to ``name``."""
        for event in self._listeners.get(name, ()):
            event.set()

    def ring_all(self) -> None:
        """Wakes everybody, for example to leave."""
        for events in self._listeners.values():
            for event in events:
                event.set()


async def rung(event: asyncio.Event, timeout_s: float) -> bool:
    """Waits for a ring; False after ``timeout_s``."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    return True
