"""Coroutines in virtual time: what they may wait for is the engine's clock and the engine's own promises."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any


class _Pause:
    """What a coroutine yields to be woken later."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __await__(self) -> Generator[_Pause, None, None]:
        yield self


class Promise:
    """Can be awaited until somebody keeps it; the simulator's like of a future without a value."""

    def __init__(self, timeline: Timeline) -> None:
        """Args: timeline: on which those who wait go on."""
        self._timeline = timeline
        self._kept = False
        self._error: Exception | None = None
        self._waiting: list[Strand] = []

    def keep(self, error: Exception | None = None) -> None:
        """Lets those who wait go on, with ``error`` raised in them if there is one. The first call counts."""
        if self._kept:
            return
        self._kept, self._error = True, error
        for strand in self._waiting:
            self._timeline.soon(strand.step)
        self._waiting.clear()

    def done(self) -> bool:
        """Whether it was kept."""
        return self._kept

    def add(self, strand: Strand) -> None:
        """The strand goes on when the promise is kept."""
        if self._kept:
            self._timeline.soon(strand.step)
        else:
            self._waiting.append(strand)

    def __await__(self) -> Generator[Promise, None, None]:
        if not self._kept:
            yield self
        if self._error is not None:
            raise self._error


class Strand:
    """A coroutine that runs in virtual time. An error in it is raised out of the engine: nothing is swallowed."""

    def __init__(self, timeline: Timeline, work: Coroutine[Any, Any, None], name: str) -> None:
        """Args: timeline: where it sleeps; work: the coroutine; name: for error messages."""
        self._timeline = timeline
        self._work = work
        self._over = False
        self._acts: list[Callable[[Strand], object]] = []
        self.name = name

    def step(self) -> None:
        """Runs it until it waits for something."""
        if self._over:
            return
        try:
            wanted = self._work.send(None)
        except StopIteration:
            self._end()
            return
        except BaseException:
            self._end()
            raise
        if isinstance(wanted, _Pause):
            self._timeline.after(wanted.seconds, self.step)
        elif isinstance(wanted, Promise):
            wanted.add(self)
        else:
            self._end()
            raise RuntimeError(f"{self.name} waits for something that has no virtual time: {wanted!r}")

    def _end(self) -> None:
        self._over = True
        for act in self._acts:
            act(self)

    def done(self) -> bool:
        """Whether it is over."""
        return self._over

    def cancel(self) -> None:
        """It does not go on; its ``finally`` clauses run now."""
        if not self._over:
            self._work.close()
            self._end()

    def add_done_callback(self, act: Callable[[Any], object], /) -> None:
        """Calls ``act`` when it is over."""
        self._acts.append(act)


class Timeline:
    """A heap of things to do at instants; ties go by the order in which they were planned. Implements ``Clock``."""

    def __init__(self, start: float) -> None:
        """Args: start: UTC seconds."""
        self._now = start
        self._heap: list[tuple[float, int, list[Callable[[], object]]]] = []
        self._ready: deque[Callable[[], None]] = deque()
        self._numbers = itertools.count()

    def now(self) -> float:
        """UTC seconds of virtual time."""
        return self._now

    async def sleep(self, seconds: float) -> None:
        """Waits in virtual time."""
        await _Pause(max(seconds, 0.0))

    def soon(self, act: Callable[[], None]) -> None:
        """Does something at this very instant, after what is under way."""
        self._ready.append(act)

    def after(self, delay_s: float, act: Callable[[], object]) -> Callable[[], None]:
        """Does something later; what is returned calls it off."""
        todo = [act]
        heapq.heappush(self._heap, (self._now + max(delay_s, 0.0), next(self._numbers), todo))
        return todo.clear

    def spawn(self, work: Coroutine[Any, Any, None], name: str = "") -> Strand:
        """Starts a coroutine at this very instant, after what is under way."""
        strand = Strand(self, work, name)
        self.soon(strand.step)
        return strand

    def settle(self) -> None:
        """Does everything that is to be done at this very instant, in order."""
        while self._ready:
            self._ready.popleft()()

    def next_at(self) -> float | None:
        """Instant of the next thing to do, None if there is none."""
        while self._heap and not self._heap[0][2]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def advance(self, to: float | None = None) -> None:
        """Moves on: to the next thing and does it, or to ``to``, an instant that is not behind it, doing nothing."""
        if to is not None:
            self._now = max(self._now, to)
            return
        at, _, todo = heapq.heappop(self._heap)
        self._now = max(self._now, at)
        for act in todo:
            act()
