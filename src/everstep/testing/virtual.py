"""An asyncio loop in virtual time: nothing is ever waited for, instants are exact, ties go by the order of planning."""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from everstep.control.clock import SystemClock

T = TypeVar("T")


class NothingHappensError(RuntimeError):
    """Everything waits and nothing is planned: in real time this would hang for ever."""


class _Selector(selectors.SelectSelector):
    """Instead of waiting it moves the loop's time on."""

    def __init__(self) -> None:
        super().__init__()
        self.move_on: Callable[[], None] = lambda: None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        if not found and (timeout is None or timeout > 0):
            self.move_on()
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """One timer fires at a time, and only when everything that follows from the one before has been done.

    Args:
        start: ``time()`` at the beginning, seconds.
        last: name of the task whose timers fire after all others of the same instant.
    """

    def __init__(self, start: float = 100_000.0, *, last: str = "") -> None:
        """See the class."""
        selector = _Selector()
        super().__init__(selector)
        selector.move_on = self._move_on
        self._virtual_now = start
        self._last = last
        self._numbers = itertools.count()
        self._timers: list[tuple[float, bool, int, asyncio.TimerHandle]] = []

    def time(self) -> float:
        """Virtual seconds."""
        return self._virtual_now

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """See ``asyncio``."""
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        task = asyncio.current_task(self)
        late = bool(self._last) and task is not None and task.get_name() == self._last
        heapq.heappush(self._timers, (when, late, next(self._numbers), timer))
        return timer

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """See ``asyncio``."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """At once, in this thread: real time must not pass."""
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def _move_on(self) -> None:
        while self._timers:
            when, _, _, timer = heapq.heappop(self._timers)
            if not timer.cancelled():
                self._virtual_now = max(self._virtual_now, when)
                self.call_soon(timer._run)
                return
        raise NothingHappensError("everything waits and nothing is planned")


class VirtualClock(SystemClock):
    """The ``Clock`` of a ``VirtualLoop``; ``step`` moves the pretended system clock."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Args: loop: whose time is told."""
        self._loop = loop
        self._step = 0.0

    def now(self) -> float:
        """See ``SystemClock``."""
        return self._loop.time()

    async def sleep(self, seconds: float) -> None:
        """See ``SystemClock``."""
        await asyncio.sleep(max(seconds, 0.0))

    def step(self, seconds: float) -> None:
        """The system clock jumps."""
        self._step += seconds

    def stepped_s(self) -> float:
        """See ``SystemClock``."""
        return self._step

    def reanchor(self) -> None:
        """See ``SystemClock``: the jump is known from now on."""
        self._step = 0.0


def run_virtual(
    main: Callable[[VirtualClock], Coroutine[Any, Any, T]], *, start: float = 100_000.0, last: str = ""
) -> T:
    """Runs ``main(clock)`` in virtual time and returns what it gives; tasks that it leaves behind are cancelled."""
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(start, last=last)) as runner:
        loop = runner.get_loop()
        return runner.run(main(VirtualClock(loop)))
