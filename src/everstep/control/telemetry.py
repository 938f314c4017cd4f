"""What agents tell that is not worth a journal line: last word, progress, metrics. Lossy, in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from everstep.brain.plan import Heard
from everstep.model.ids import InstanceId

MOST_WARNINGS = 20


@dataclass(slots=True)
class Observed:
    """Live view of one machine. Times are UTC seconds of the server's clock."""

    last_heard: float
    attempt: int | None = None
    step: int | None = None
    step_at: float | None = None
    total: int | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    ranks_alive: int = 0
    first_step: int | None = None
    """First step told in this attempt; None again once a later one was told. The first may be where it started from."""
    restarted: bool = False
    """Not heard since the server started: judged only after a full lease."""
    warnings: list[str] = field(default_factory=list)
    """What its agent warned of, each once, the oldest first; not more than `MOST_WARNINGS`."""


class Telemetry:
    """Observations by machine, and the form of them that decisions look at."""

    def __init__(self, heard: dict[InstanceId, Heard]) -> None:
        """Args: heard: the mapping that decisions read; kept up to date here."""
        self.observed: dict[InstanceId, Observed] = {}
        self._heard = heard

    def word(self, instance: InstanceId, now: float) -> Observed:
        """The machine gave a sign of life."""
        seen = self.observed.get(instance)
        if seen is None:
            seen = self.observed[instance] = Observed(now)
        seen.last_heard = now
        seen.restarted = False
        self._heard[instance] = Heard(now, seen.step, seen.step_at, seen.total)
        return seen

    def progress(
        self, instance: InstanceId, now: float, *, attempt: int, step: int, total: int | None, metrics: dict[str, float]
    ) -> bool:
        """Takes in a progress message; returns whether it is news.

        News is the first of an attempt, the first step beyond that one (evidence that it does get on), and a new total.
        """
        seen = self.word(instance, now)
        first = seen.attempt != attempt or seen.step is None
        moved = not first and seen.first_step is not None and step > seen.first_step
        news = first or moved or (total is not None and total != seen.total)
        if first or moved:
            seen.first_step = step if first else None
        seen.attempt, seen.step, seen.step_at, seen.metrics = attempt, step, now, metrics
        seen.total = total if total is not None else seen.total
        self._heard[instance] = Heard(now, step, now, seen.total)
        return news

    def alive(
        self, instance: InstanceId, *, attempt: int | None, ranks_alive: int, warnings: Sequence[str] = ()
    ) -> None:
        """Takes in a heartbeat. Steps of an older attempt say nothing about the one that runs now."""
        seen = self.observed.get(instance)
        if seen is None:
            return
        seen.ranks_alive = ranks_alive
        for text in warnings:
            if text not in seen.warnings and len(seen.warnings) < MOST_WARNINGS:
                seen.warnings.append(text)
        if attempt is not None and attempt != seen.attempt:
            seen.attempt, seen.step, seen.step_at, seen.metrics, seen.first_step = attempt, None, None, {}, None
            self._heard[instance] = Heard(seen.last_heard, None, None, seen.total)

    def grace(self, instance: InstanceId, until: float) -> None:
        """After a restart of the server: nobody is judged before ``until`` (rule 2).

        Nobody counts as heard either: a machine that has given no sign of life is no healthy one (rule 4).
        """
        self.observed[instance] = Observed(until, restarted=True)
        self._heard.pop(instance, None)

    def end_grace(self, now: float) -> list[InstanceId]:
        """Machines that gave no sign of life for all their grace: from now on they are judged by it."""
        over = [i for i, seen in self.observed.items() if seen.restarted and seen.last_heard <= now]
        for instance in over:
            self.observed[instance].restarted = False
            self._heard[instance] = Heard(self.observed[instance].last_heard)
        return over

    def forget(self, instance: InstanceId) -> None:
        """The machine is gone."""
        self.observed.pop(instance, None)
        self._heard.pop(instance, None)
