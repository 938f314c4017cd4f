"""One job under one policy, in the tick semantics of the published comparisons.

At the start of each tick the policy knows whether spot exists in that tick and picks idle, spot or on-demand. Every
tick on a machine is billed whole. Spot that is gone in a tick is lost at the start of the tick. Each start or change
costs a changeover that may be longer than a tick. The job ends at the first tick boundary where the work is done.
On-demand is always to be had.

Nothing is done per tick: the driver goes to the next flip, price or ``wake_at``, whichever comes first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from everstep.brain.select.course import INSTANT_S, Course, Learner, Mode, Policy, Situation, Standing, View
from everstep.brain.select.net import guard
from everstep.model.errors import EverstepError
from everstep.sim.reference.market import Job, Market


class ImpossibleCourse(EverstepError):
    """A policy wants what is not there."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run came to.

    Attributes:
        cost_usd: everything, ``egress_usd`` included.
        finish_s: seconds after the start; None = the traces ended first.
        spot_exits: spot runs that ended before the job did, lost or left.
        moves: starts in another zone than the one before.
        decisions: how often the policy was asked.
    """

    cost_usd: float
    finish_s: float | None
    spot_exits: int
    deadline_met: bool
    moves: int
    egress_usd: float
    decisions: int


Watcher = Callable[[int, Situation, Course], None]
"""Told of every decision: tick since the start, what was known, what was chosen after the safety net."""


def drive(
    market: Market, job: Job, policy: Policy, *, every_tick: bool = False, watcher: Watcher | None = None
) -> Outcome:
    """Runs ``job`` to its end, or to the end of the traces.

    Args:
        market: where.
        job: what.
        policy: who decides.
        every_tick: ask at each tick instead of only when something changes; the outcome must be the same.
        watcher: is told of every decision.
    """
    run = _Run(market, job)
    memory = policy.recall(_past(market, job)) if isinstance(policy, Learner) else None
    while not run.finished and job.start_tick + run.tick < market.ticks:
        run.look()
        situation = run.situation()
        course = policy.steer(situation, memory)
        memory = course.memory
        if policy.guarded:
            course = guard(situation, course)
        if watcher is not None:
            watcher(run.tick, situation, course)
        run.take(course)
        run.advance(run.tick + 1 if every_tick else run.until(course.wake_at))
    return run.outcome()


def _past(market: Market, job: Job) -> Iterator[View]:
    """What the traces show before the job begins."""
    tick = 0
    while tick < job.start_tick:
        yield View((tick - job.start_tick) * market.tick_s, market.places(tick, None))
        tick = market.next_change(tick)


@dataclass(slots=True)
class _Run:
    market: Market
    job: Job
    tick: int = 0
    mode: Mode = Mode.IDLE
    place: str | None = None
    lost_from: str | None = None
    since_s: float = 0.0
    unpaid_s: float = 0.0
    done_s: float = 0.0
    cost_usd: float = 0.0
    egress_usd: float = 0.0
    spot_exits: int = 0
    moves: int = 0
    decisions: int = 0
    last_place: str | None = None
    region: str | None = None

    @property
    def finished(self) -> bool:
        return self.done_s >= self.job.task_s - INSTANT_S

    @property
    def now_s(self) -> float:
        return self.tick * self.market.tick_s

    def look(self) -> None:
        """Spot that is gone in this tick is lost at its start."""
        self.decisions += 1
        self.lost_from = None
        if self.mode is not Mode.SPOT or self.place is None:
            return
        if not self.market.up(self.place, self.job.start_tick + self.tick):
            self.lost_from = self.place
            self.spot_exits += 1
            self._stand(Mode.IDLE, None, 0.0)

    def situation(self) -> Situation:
        job = self.job
        return Situation(
            now_s=self.now_s,
            began_s=0.0,
            deadline_s=job.deadline_s,
            work_s=job.task_s,
            done_s=self.done_s,
            changeover_s=job.changeover_s,
            tick_s=self.market.tick_s,
            standing=Standing(self.mode, self.place, self.unpaid_s, self.since_s, self.lost_from),
            places=self.market.places(job.start_tick + self.tick, self.region),
            seed=job.seed,
        )

    def take(self, course: Course) -> None:
        """Does what was decided."""
        if course.mode is self.mode and course.place == self.place:
            return
        if self.mode is Mode.SPOT:
            self.spot_exits += 1
        if course.mode is Mode.IDLE:
            self._stand(Mode.IDLE, None, 0.0)
            return
        place = course.place
        if place is None:
            raise ImpossibleCourse(f"a policy chose {course.mode.value} without a place")
        if course.mode is Mode.SPOT and not self.market.up(place, self.job.start_tick + self.tick):
            raise ImpossibleCourse(f"a policy chose spot in {place}, where there is none")
        region = self.market.region(place)
        moved_usd = self.market.move_usd(self.region, region)
        self.egress_usd += moved_usd
        self.cost_usd += moved_usd
        self.moves += self.last_place is not None and self.last_place != place
        self.last_place, self.region = place, region
        self._stand(course.mode, place, self.job.changeover_s)

    def until(self, wake_at: float) -> int:
        """The tick of the next decision: a change of the world, the policy's wish, or the end of the traces."""
        upcoming = self.market.next_change(self.job.start_tick + self.tick) - self.job.start_tick
        tick_s = self.market.tick_s
        if wake_at < upcoming * tick_s:
            upcoming = math.ceil((wake_at - INSTANT_S) / tick_s)
        return max(upcoming, self.tick + 1)

    def advance(self, tick: int) -> None:
        """Time passes up to ``tick``, or to the boundary at which the work is done."""
        if self.mode is not Mode.IDLE and self.place is not None:
            tick_s = self.market.tick_s
            need_s = self.unpaid_s + self.job.task_s - self.done_s
            tick = min(tick, self.tick + math.ceil((need_s - INSTANT_S) / tick_s))
            span_s = (tick - self.tick) * tick_s
            paid_s = min(self.unpaid_s, span_s)
            self.unpaid_s -= paid_s
            self.done_s = min(self.done_s + span_s - paid_s, self.job.task_s)
            if self.mode is Mode.SPOT:
                first = self.job.start_tick + self.tick
                self.cost_usd += self.market.spot_usd(self.place, first, first + tick - self.tick)
            else:
                self.cost_usd += self.market.on_demand_usd(self.place, tick - self.tick)
        self.tick = tick

    def outcome(self) -> Outcome:
        finish_s = self.now_s if self.finished else None
        return Outcome(
            cost_usd=self.cost_usd,
            finish_s=finish_s,
            spot_exits=self.spot_exits,
            deadline_met=finish_s is not None and finish_s <= self.job.deadline_s + INSTANT_S,
            moves=self.moves,
            egress_usd=self.egress_usd,
            decisions=self.decisions,
        )

    def _stand(self, mode: Mode, place: str | None, unpaid_s: float) -> None:
        self.mode, self.place, self.unpaid_s, self.since_s = mode, place, unpaid_s, self.now_s
