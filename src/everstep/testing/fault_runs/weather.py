"""What goes wrong between us and a vendor, drawn from a seed: refusals, lost requests, lost answers, late ones."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, TypeVar

from everstep.control.controller import LOOP
from everstep.model.errors import Unreachable
from everstep.testing.faults import Fault
from everstep.testing.virtual import VirtualClock, VirtualLoop

T = TypeVar("T")
PATIENCE_S = 30.0
"""After so long a client gives up: the read timeout of both providers."""


@dataclass(frozen=True, slots=True)
class Sure:
    """One fault that is certain: the ``number``-th call of that name meets it."""

    call: str
    kind: str
    late: bool
    number: int = 1


@dataclass(frozen=True, slots=True)
class Trip:
    """The way of one call.

    Attributes:
        there_s: until the vendor has it; later than ``PATIENCE_S`` it happens when nobody waits any more.
        back_s: until the answer is here; None: it never comes.
        lost: the vendor never hears of it.
    """

    there_s: float
    back_s: float | None
    lost: bool = False


class Weather:
    """Draws what happens to each call.

    Args:
        rng: chance.
        kinds: faults that a call of that name may meet, by kind of the fake.
        sure: one that is certain.
        share: of the calls that meet a fault of the vendor; as many again are lost or late.

    Attributes:
        calm: nothing goes wrong any more.
        met: what happened, by (call, kind, late).
    """

    def __init__(
        self, rng: Random, kinds: Callable[[str], Sequence[str]], *, sure: Sure | None = None, share: float = 0.06
    ) -> None:
        self.calm = False
        self.met: Counter[tuple[str, str, bool]] = Counter()
        self._rng = rng
        self._kinds = kinds
        self._sure = sure
        self._share = share
        self._made: Counter[str] = Counter()

    def meets(self, call: str, zone: str) -> Fault | None:
        """The fault that a call meets at the vendor's; see ``OrderedFaults.weather``."""
        self._made[call] += 1
        sure = self._sure
        kinds = self._kinds(call)
        if self.calm:
            return None
        if sure is not None and sure.call == call and self._made[call] >= sure.number:
            self._sure = None
            return self._fault(call, sure.kind, sure.late, zone)
        if not kinds or self._rng.random() >= self._share:
            return None
        # Whether the effect happens first: only where the vendor breaks down, never where it says a clear no.
        kind = self._rng.choice(kinds)
        late = kind in ("internal", "unavailable", "cut") and self._rng.random() < 0.5
        return self._fault(call, kind, late, zone)

    def trip(self) -> Trip:
        """The way of the next call."""
        rng = self._rng
        there_s, back_s = rng.uniform(0.01, 0.1), rng.uniform(0.01, 0.1)
        chance = 1.0 if self.calm else rng.random()
        if chance < self._share / 4:
            return Trip(there_s, None, lost=True)
        if chance < self._share / 2:
            return Trip(there_s, None)
        if chance < self._share * 3 / 4:
            return Trip(rng.uniform(PATIENCE_S, 3 * PATIENCE_S), None)
        if chance < self._share:
            slow_s = rng.uniform(1.0, PATIENCE_S - 1.0)
            return Trip(there_s + slow_s / 2, back_s + slow_s / 2)
        return Trip(there_s, back_s)

    def _fault(self, call: str, kind: str, late: bool, zone: str) -> Fault:
        self.met[call, kind, late] += 1
        return Fault(call, kind, late, 0.0, 1, zone)


class WeatherLoop(VirtualLoop):
    """Virtual time in which the calls that providers make in threads take their way through the weather."""

    def __init__(self, weather: Weather, start: float) -> None:
        """See the class."""
        super().__init__(start, last=LOOP)
        self._weather = weather

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """The call happens when it is there, also if nobody waits for it any more."""
        if executor is None:
            return super().run_in_executor(executor, func, *args)
        future: asyncio.Future[T] = self.create_future()
        trip = self._weather.trip()

        def answer(settle: Callable[[], None]) -> None:
            if not future.done():
                settle()

        def act() -> None:
            try:
                result = func(*args)
            except Exception as error:
                told = error
                settle = lambda: future.set_exception(told)  # noqa: E731
            else:
                settle = lambda: future.set_result(result)  # noqa: E731
            if trip.back_s is not None:
                self.call_later(trip.back_s, answer, settle)

        if not trip.lost:
            self.call_later(trip.there_s, act)
        if trip.back_s is None:
            silence = Unreachable(f"no answer in {PATIENCE_S:.0f} s")
            self.call_later(PATIENCE_S, answer, lambda: future.set_exception(silence))
        return future


def run_in_weather(main: Callable[[VirtualClock], Coroutine[Any, Any, T]], weather: Weather, *, start: float) -> T:
    """Runs ``main(clock)`` in virtual time and weather; tasks that it leaves behind are cancelled."""
    with asyncio.Runner(loop_factory=lambda: WeatherLoop(weather, start)) as runner:
        loop = runner.get_loop()
        return runner.run(main(VirtualClock(loop)))
