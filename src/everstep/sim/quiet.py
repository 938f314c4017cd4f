"""Following providers that tell when there is something to see: the looks that would find nothing are not made.

The rhythm stays: the market is looked at on the same grid of instants as live, a provider's list likewise, and sooner
when something is suspicious. Only where nothing changed is the look left out, so a quiet month costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from everstep.brain.snapshot import Heard
from everstep.control.surroundings import GATHER_S, Pace
from everstep.model.ids import InstanceId
from everstep.sim.lookout import Lookout
from everstep.sim.strand import Timeline
from everstep.sim.world.cloud import News

_MOMENT_S = 0.01
_SUSPICION_S = 1.4
"""From the last word of an agent to the question what became of its machine: 1.25 s, and the rhythm of glances."""


@runtime_checkable
class TellsNews(Protocol):
    """A provider that tells when there is something to see."""

    on_news: Callable[[News], None]


class QuietLookout(Lookout):
    """As ``Lookout``, for providers that tell. Silence of agents is not looked for: the provider's word counts."""

    def begin(self, timeline: Timeline, pace: Pace) -> None:
        """Starts listening; the first look was taken already (``look``)."""
        self._timeline = timeline
        self._begun_at = timeline.now()
        self._pace = pace
        self._market_due = False
        self._list_at: float | None = None
        self._call_off: Callable[[], None] = lambda: None
        for provider in self._providers.values():
            if not isinstance(provider, TellsNews):
                raise TypeError(f"provider {provider.name} does not tell its news")
            provider.on_news = self._hear

    def poll_soon(self) -> None:
        """See ``Surroundings``."""
        if hasattr(self, "_pace"):
            self._list_by(self._timeline.now() + GATHER_S)

    def _hear(self, news: News) -> None:
        now = self._timeline.now()
        if news is News.MARKET:
            if not self._market_due:
                self._market_due = True
                # What else changes at this very instant is seen by the same look.
                self._timeline.after(max(self._next(self._pace.offers_s) - now, _MOMENT_S), self._market)
        else:
            at = self._next(self._pace.poll_s)
            self._list_by(min(at if at > now else now + self._pace.poll_s, now + _SUSPICION_S))

    def _next(self, rhythm_s: float) -> float:
        """The next instant, this one included, of a grid that began with everything else."""
        passed = self._timeline.now() - self._begun_at
        return self._begun_at + math.ceil(passed / rhythm_s - 1e-9) * rhythm_s

    def _market(self) -> None:
        self._market_due = False
        self._timeline.spawn(self.look_at_market(), "market")

    def _list_by(self, at: float) -> None:
        if self._list_at is not None and self._list_at <= at:
            return
        self._call_off()
        self._list_at = at
        self._call_off = self._timeline.after(at - self._timeline.now(), self._look)

    def _look(self) -> None:
        self._list_at = None

        async def look() -> None:
            for watch in self.watches:
                await watch.poll()

        self._timeline.spawn(look(), "look")


class Ears(dict[InstanceId, Heard]):
    """What was heard of machines, asked of the world at the moment somebody wants to know, instead of every second."""

    def __init__(self, ask: Callable[[InstanceId], tuple[float, int | None, int | None] | None]) -> None:
        """Args: ask: (UTC seconds of the last word, step, total) of a machine; None = nothing was heard of it."""
        super().__init__()
        self._ask = ask

    def get(self, key: InstanceId, default: Heard | None = None) -> Heard | None:  # type: ignore[override]
        """What was heard of a machine."""
        told = self._ask(key)
        if told is None:
            return super().get(key, default)
        at, step, total = told
        return Heard(at, step, None if step is None else at, total)
