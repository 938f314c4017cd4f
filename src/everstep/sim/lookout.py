"""The surroundings in virtual time: the same looks in the same rhythm as live, without tasks."""

from __future__ import annotations

from collections.abc import Callable

from everstep.control.surroundings import GATHER_S, GLANCE_S, Pace, Surroundings
from everstep.control.watch import Watch
from everstep.sim.strand import Timeline


class Lookout(Surroundings):
    """Follows providers and market on a timeline. See ``Surroundings`` for the rest."""

    def begin(self, timeline: Timeline, pace: Pace) -> None:
        """Starts looking; the first look was taken already (``look``)."""
        self._timeline = timeline
        self._offers_s = pace.offers_s
        timeline.after(pace.offers_s, self._market)
        timeline.after(GLANCE_S, self._glance)
        self._rounds = [_Round(timeline, w, float(getattr(w.provider, "poll_s", pace.poll_s))) for w in self.watches]
        for one in self._rounds:
            one.look()

    def poll_soon(self) -> None:
        """See ``Surroundings``."""
        for one in getattr(self, "_rounds", ()):
            one.soon()

    def _market(self) -> None:
        async def look() -> None:
            await self.look_at_market()
            self._timeline.after(self._offers_s, self._market)

        self._timeline.spawn(look(), "market")

    def _glance(self) -> None:
        self.glance()
        self._timeline.after(GLANCE_S, self._glance)


class _Round:
    """Looks at one provider again and again, sooner when asked."""

    def __init__(self, timeline: Timeline, watch: Watch, poll_s: float) -> None:
        self._timeline = timeline
        self._watch = watch
        self._poll_s = poll_s
        self._looking = False
        self._asked = False
        self._call_off: Callable[[], None] | None = None

    def look(self) -> None:
        self._call_off = None
        self._asked = False
        self._looking = True
        self._timeline.spawn(self._look(), f"watch {self._watch.provider.name}")

    async def _look(self) -> None:
        await self._watch.poll()
        self._looking = False
        if self._asked:
            self._gather()
        else:
            self._call_off = self._timeline.after(self._poll_s, self.look)

    def soon(self) -> None:
        if self._asked:
            return
        self._asked = True
        if not self._looking:
            self._gather()

    def _gather(self) -> None:
        if self._call_off is not None:
            self._call_off()
        self._call_off = None
        self._timeline.after(GATHER_S, self.look)
