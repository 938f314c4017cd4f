"""``optimal``: the least cost for one who knows the whole future; one zone or many. The yardstick of the policies.

An exact dynamic programme over (tick, what the job stands on, slack used). Slack is time left less work left less
changeover not yet paid; it only ever shrinks: by a tick when idle, by a changeover at a start. On that lattice of ticks
and changeovers nothing is rounded. A changeover is charged in full at the start: who knows the future starts nothing
that is lost before its changeover is paid, since idling instead is never dearer (costs of moving must obey the triangle
inequality: no detour through a third region is cheaper).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from everstep.brain.select.course import Course, Memory, Mode, Situation
from everstep.model.errors import EverstepError
from everstep.sim.reference.drive import Outcome, Watcher, drive
from everstep.sim.reference.market import Job, Market, Zone

MOST_STEPS = 40_000
"""Points of the slack lattice. Above it (odd changeovers) the changeover is rounded up: feasible, an upper bound."""


class NoPlan(EverstepError):
    """Not even on-demand from the start meets the deadline."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What somebody who knows the future would do.

    Attributes:
        cost_usd: of the whole job.
        steps: what to run on in each tick until the work is done.
    """

    cost_usd: float
    steps: tuple[tuple[Mode, str | None], ...]


def optimal(market: Market, job: Job, *, watcher: Watcher | None = None) -> Outcome:
    """Runs the job by the best plan there is.

    Raises:
        NoPlan: the deadline cannot be met.
    """
    return drive(market, job, _Script(best_plan(market, job), market.tick_s), watcher=watcher)


def best_plan(market: Market, job: Job) -> Plan:
    """The cheapest way to meet the deadline. Raises NoPlan if there is none."""
    programme = _Programme(market, job)
    return programme.solve()


class _Script:
    """Follows a plan."""

    guarded = False

    def __init__(self, plan: Plan, tick_s: float) -> None:
        self._plan, self._tick_s = plan, tick_s
        lengths = [(step, len(list(run))) for step, run in groupby(plan.steps)]
        self._until: list[int] = []
        for _, length in lengths:
            self._until += [len(self._until) + length] * length

    def steer(self, situation: Situation, memory: Memory) -> Course:
        tick = round(situation.now_s / self._tick_s)
        mode, place = self._plan.steps[tick]
        return Course(mode, place, "the best plan, knowing the future", self._until[tick] * self._tick_s)


@dataclass(frozen=True, slots=True)
class _Lattice:
    """Slack used, in units: ``idle`` and ``start`` are what a tick and a changeover use, ``most`` all there is."""

    unit_s: float
    idle: int
    start: int
    most: int

    @classmethod
    def of(cls, tick_s: float, changeover_s: float, slack_s: float) -> _Lattice:
        # Milliseconds: finer than any trace or option is written.
        unit_s = math.gcd(round(tick_s * 1000), round(changeover_s * 1000)) / 1000
        if slack_s / unit_s > MOST_STEPS:
            unit_s = tick_s / max(1, math.floor(MOST_STEPS * tick_s / slack_s))
        start = math.ceil(changeover_s / unit_s - 1e-6)
        return cls(unit_s, round(tick_s / unit_s), start, math.floor(slack_s / unit_s + 1e-6))


class _Programme:
    """States: idle with the checkpoint in each location, then a machine of each target.

    Targets are the zones' spot, then the cheapest on-demand of each location. Of equals, running comes before idling.
    """

    def __init__(self, market: Market, job: Job) -> None:
        self.market, self.job = market, job
        self.ticks = job.last_tick(market.tick_s) - job.start_tick
        slack_s = self.ticks * market.tick_s - job.task_s
        self.lattice = _Lattice.of(market.tick_s, job.changeover_s, slack_s)
        if self.lattice.most < self.lattice.start:
            raise NoPlan("on-demand from the start would miss the deadline")
        regions = list(dict.fromkeys(zone.region for zone in market.zones))
        costs = market.checkpoint_gb and any(market.move_usd(a, b) for a in regions for b in regions)
        # Location 0: no checkpoint yet; where moving is free there is no other.
        self.locations: list[str | None] = [None, *regions] if costs else [None]
        self.zones = list(market.zones)
        self.steady = self._steady()
        self.homes = [self._location(zone) for zone in (*self.zones, *self.steady)]
        targets = [zone.region for zone in (*self.zones, *self.steady)]
        self.moving = np.array([[market.move_usd(source, target) for target in targets] for source in self.locations])

    def _location(self, zone: Zone) -> int:
        return self.locations.index(zone.region) if len(self.locations) > 1 else 0

    def _steady(self) -> list[Zone]:
        """The cheapest on-demand of each location."""
        best: dict[int, Zone] = {}
        for zone in self.market.zones:
            held = best.setdefault(self._location(zone), zone)
            if zone.on_demand_usd_per_h < held.on_demand_usd_per_h:
                best[self._location(zone)] = zone
        return list(best.values())

    def _prices(self) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """USD per tick and whether it is to be had; both of shape (ticks, targets)."""
        first, end = self.job.start_tick, self.job.start_tick + self.ticks
        shape = (self.ticks, len(self.homes))
        usd, up = np.empty(shape), np.ones(shape, dtype=bool)
        for number, zone in enumerate(self.zones):
            spot = zone.spot_usd_per_h
            usd[:, number] = spot if isinstance(spot, float) else spot[first:end]
            up[:, number] = zone.up[first:end]
        for number, zone in enumerate(self.steady, start=len(self.zones)):
            usd[:, number] = zone.on_demand_usd_per_h
        return usd * self.market.tick_s / 3600.0, up

    def solve(self) -> Plan:
        usd, up = self._prices()
        lattice, places = self.lattice, len(self.locations)
        size = lattice.most + 1
        later = np.full((places + len(self.homes), size), math.inf)
        later[:, self._done(self.ticks)] = 0.0
        choices = np.zeros((self.ticks, places + len(self.homes), size), dtype=np.uint8)
        for tick in range(self.ticks - 1, -1, -1):
            later = self._back(later, usd[tick], up[tick], choices[tick])
            later[:, self._done(tick)] = 0.0
        if not math.isfinite(later[0, 0]):
            raise NoPlan("on-demand from the start would miss the deadline")
        return Plan(float(later[0, 0]), self._forward(choices))

    def _done(self, tick: int) -> slice:
        """Lattice points at which no work is left at that boundary: slack is all the time left."""
        left_s = (self.ticks - tick) * self.market.tick_s
        slack_s = self.ticks * self.market.tick_s - self.job.task_s
        used = math.floor((slack_s - left_s + 1e-6) / self.lattice.unit_s)
        return slice(0, max(used + 1, 0))

    def _back(
        self, later: NDArray[np.float64], usd: NDArray[np.float64], up: NDArray[np.bool_], chosen: NDArray[np.uint8]
    ) -> NDArray[np.float64]:
        """Values at the start of a tick from those at its end; fills ``chosen``: the target, their number for idle."""
        lattice, places = self.lattice, len(self.locations)
        now = np.empty_like(later)
        running = later[places:]
        starts = np.full((1 + len(self.homes), later.shape[1]), math.inf)
        cut = later.shape[1] - lattice.start
        starts[:-1, :cut] = np.where(up[:, None], running[:, lattice.start :], math.inf) + usd[:, None]
        reach = later.shape[1] - lattice.idle
        for place in range(places):
            weighed = starts if places == 1 else starts.copy()
            weighed[-1] = math.inf
            if reach > 0:
                weighed[-1, :reach] = later[place, lattice.idle :]
            if places > 1:
                weighed[:-1] += self.moving[place][:, None]
            chosen[place] = weighed.argmin(axis=0)
            now[place] = weighed.min(axis=0)
        for target, home in enumerate(self.homes):
            state = places + target
            kept = running[target] + usd[target] if up[target] else np.inf
            better = kept <= now[home]
            now[state] = np.where(better, kept, now[home])
            chosen[state] = np.where(better, target, chosen[home])
        return now

    def _forward(self, choices: NDArray[np.uint8]) -> tuple[tuple[Mode, str | None], ...]:
        places = len(self.locations)
        steps: list[tuple[Mode, str | None]] = []
        state, used, tick = 0, 0, 0
        while tick < self.ticks and used >= self._done(tick).stop:
            choice = int(choices[tick, state, used])
            home = state if state < places else self.homes[state - places]
            if choice == len(self.homes):
                state, used = home, used + self.lattice.idle
                steps.append((Mode.IDLE, None))
            else:
                used += 0 if state == places + choice else self.lattice.start
                state = places + choice
                spot = choice < len(self.zones)
                zone = self.zones[choice] if spot else self.steady[choice - len(self.zones)]
                steps.append((Mode.SPOT if spot else Mode.ON_DEMAND, zone.name))
            tick += 1
        return tuple(steps)
