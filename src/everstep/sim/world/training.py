"""The ranks of one attempt as arithmetic over time: they step together, stand still, or are over."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from everstep.model.pacing import local_interval_s
from everstep.sim.world.conditions import Workload

_LONGEST_S = 1800.0
_BACKGROUND_SHARE = 0.1
"""What a save that goes on in the background takes from training, as ``train`` reckons it."""
_UNKNOWN_HAZARD_PER_H = 0.1
_SLACK = 1e-6


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A published step and the region that it lies in."""

    attempt: int
    step: int
    region: str


@dataclass(slots=True)
class Training:
    """Progress of one attempt.

    Attributes:
        work: what is to be done. step_s: seconds per step of this gang.
        base: step it goes on from.
        first_step_at: when its first step was done, UTC seconds; known once it trains.
        began_at: when training began; None = not yet.
        stall_s: how long saves made it stand still.
        holding: it has saved for the last time and waits for its end. over: it has ended.
        ended_at: when, UTC seconds. saved_by: when the save that was begun last is published.
    """

    work: Workload
    step_s: float
    base: int
    every_s: float | None = None
    hazard_per_h: float = _UNKNOWN_HAZARD_PER_H
    began_at: float | None = None
    stall_s: float = 0.0
    holding: bool = False
    over: bool = False
    ended_at: float | None = None
    saved_by: float = 0.0
    timers: dict[str, Callable[[], None]] = field(default_factory=dict)
    _steps: float = 0.0
    _since: float | None = None

    def begin(self, now: float) -> None:
        """The first step begins."""
        self.began_at = self._since = now

    def step(self, now: float) -> int:
        """Steps that are done, those before this attempt included."""
        return min(self.base + math.floor(self._done(now) + _SLACK), self.work.steps)

    def _done(self, now: float) -> float:
        return self._steps + (0.0 if self._since is None else max(now - self._since, 0.0) / self.step_s)

    @property
    def running(self) -> bool:
        """Steps are being done."""
        return self._since is not None

    @property
    def first_step_at(self) -> float | None:
        """When its first step was, or would be, done if nothing stands in the way."""
        return None if self.began_at is None else self.began_at + self.step_s

    def stand(self, now: float) -> None:
        """Training stands still from now on."""
        self._steps, self._since = self._done(now), None

    def go_on(self, now: float) -> None:
        """Training goes on."""
        if self.began_at is not None and not self.over and not self.holding:
            self._since = now

    def left_s(self, now: float) -> float:
        """Seconds of stepping until all is done."""
        return max((self.work.steps - self.base - self._done(now)) * self.step_s, 0.0)

    def interval_s(self) -> float:
        """Training time between two saves: the task's, or by the local rule from hazard and cost."""
        if self.every_s is not None:
            return max(self.every_s, self.step_s)
        work = self.work
        cost_s = work.stall_s + _BACKGROUND_SHARE * max(work.save_s - work.stall_s, 0.0)
        per_s = self.hazard_per_h / 3600.0
        return max(local_interval_s(cost_s, lambda age_s: age_s * per_s, longest_s=_LONGEST_S), self.step_s)

    def end(self, now: float) -> None:
        """The ranks are through, whatever the reason."""
        self.stand(now)
        self.over, self.ended_at = True, now
        for call_off in self.timers.values():
            call_off()
        self.timers.clear()
