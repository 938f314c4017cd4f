"""The agent's only loop: actions posted by any thread, and timers, run one after the other in one thread."""

from __future__ import annotations

import heapq
import itertools
import logging
import queue
import time
from typing import Callable

log = logging.getLogger(__name__)

Action = Callable[[], None]


class Timer:
    """A pending delayed action; ``cancel`` may be called at any time, from any thread."""

    def __init__(self, action: Action) -> None:
        self._action = action
        self.cancelled = False

    def cancel(self) -> None:
        """Never run the action, unless it already ran."""
        self.cancelled = True

    def fire(self) -> None:
        """Run the action unless it was cancelled."""
        if not self.cancelled:
            self._action()


class Mailbox:
    """Runs posted actions in the thread that calls :meth:`run`. An action that raises is logged; the loop goes on."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        # Not a SimpleQueue: a signal near the end of its timed get() makes it wait for ever (seen on 3.9 to 3.12).
        self._posted: queue.Queue[Action] = queue.Queue()
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._running = True

    def post(self, action: Action) -> None:
        """Run ``action`` soon. Safe from any thread, but not from signal handlers."""
        self._posted.put(action)

    def later(self, delay_s: float, action: Action) -> Timer:
        """Run ``action`` after ``delay_s`` seconds. Only from the loop's own thread."""
        timer = Timer(action)
        heapq.heappush(self._timers, (self._monotonic() + delay_s, next(self._order), timer))
        return timer

    def every(self, interval_s: float, action: Action) -> None:
        """Run ``action`` now and then every ``interval_s`` seconds until the loop stops."""

        def again() -> None:
            self.later(interval_s, again)
            action()

        self.post(again)

    def stop(self) -> None:
        """Leave :meth:`run` after the current action."""
        self._running = False
        self.post(lambda: None)

    def run(self) -> None:
        """Serve until :meth:`stop`."""
        while self._running:
            try:
                action = self._posted.get(timeout=self._until_next_timer_s())
            except queue.Empty:
                action = None
            if action is not None:
                self._guarded(action)
            while self._timers and self._timers[0][0] <= self._monotonic():
                self._guarded(heapq.heappop(self._timers)[2].fire)

    def _until_next_timer_s(self) -> float:
        if not self._timers:
            return 1.0
        return min(1.0, max(0.0, self._timers[0][0] - self._monotonic()))

    @staticmethod
    def _guarded(action: Action) -> None:
        try:
            action()
        except Exception:  # the agent must outlive every surprise: training depends on it
            log.exception("an action of the agent failed")
