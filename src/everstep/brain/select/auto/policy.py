"""``auto`` as a policy of the seam: what it remembers, when it looks, and how it states what it weighed.

It looks at every change of the market and at instants ``STEP_S`` apart; between them it holds its course, so that
asking more often changes nothing.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, replace

from everstep.brain.forecast.availability import AGES_H
from everstep.brain.select import rough
from everstep.brain.select.auto import programme
from everstep.brain.select.auto.beliefs import Outlook, Seen, outlook, usable
from everstep.brain.select.auto.programme import AGES, IDLE, ON_DEMAND, SPOT, Problem, Solution
from everstep.brain.select.auto.zones import Elsewhere, elsewhere, index_usd
from everstep.brain.select.course import INSTANT_S, Alternative, Course, Memory, Mode, Place, Situation
from everstep.brain.select.net import crunch_at
from everstep.brain.select.rough import affordable, cheapest_on_demand

BASIS = "mean over what spot may do, by the hazards seen so far, if every later choice is the best"
_FIRST_S = 4 * 3600.0
_NO_ON_DEMAND = 10.0
"""Times the price of spot: what a job without on-demand would give for an hour of it."""
Action = tuple[Mode, str | None]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is kept from one solution of the programme to the next.

    Attributes:
        view: of the market.
        problem: solved at ``began_s``; ``until_s``: when to solve again.
    """

    view: Outlook
    problem: Problem
    began_s: float
    until_s: float


@dataclass(frozen=True, slots=True)
class Held:
    """The memory: what was seen, the plan, and the course held until ``look_at`` unless ``market`` changes."""

    seen: Seen
    plan: Plan
    look_at: float
    market: tuple[tuple[bool | None, float | None], ...]
    course: Course


class Auto:
    """See the package and the module."""

    guarded = True

    def steer(self, situation: Situation, memory: Memory) -> Course:
        """See ``Policy``."""
        held = memory if isinstance(memory, Held) else None
        crunch = self._crunch(situation, memory)
        if crunch is not None:
            return crunch
        market = tuple([(place.up, place.spot_usd_per_h) for place in situation.places])
        standing = situation.standing
        if (
            held is not None
            and market == held.market
            and situation.now_s < held.look_at - INSTANT_S
            and (standing.mode, standing.place) == (held.course.mode, held.course.place)
        ):
            return replace(held.course, memory=held, wake_at=held.look_at)
        seen = Seen.first(situation) if held is None else held.seen.after(situation)
        plan = None if held is None else held.plan
        if plan is None or situation.now_s >= plan.until_s - INSTANT_S:
            plan = _plan(situation, seen)
        if plan is None:
            return self._without_spot(situation)
        course = _Weighing(situation, seen, plan).course()
        steps = math.floor((situation.now_s - plan.began_s + INSTANT_S) / plan.problem.step_s) + 1
        look_at = plan.began_s + steps * plan.problem.step_s
        return replace(course, wake_at=look_at, memory=Held(seen, plan, look_at, market, course))

    def _crunch(self, situation: Situation, memory: Memory) -> Course | None:
        """When the time left is needed for the work left: on-demand; a running, paid spot machine until it is lost."""
        if situation.now_s < crunch_at(situation, situation.changeover_s) - INSTANT_S:
            return None
        standing = situation.standing
        reason = "the time left is needed for the work left"
        if standing.mode is Mode.SPOT and standing.place is not None and standing.changeover_left_s <= INSTANT_S:
            return _roughly(situation, Mode.SPOT, standing.place, reason, memory)
        place = cheapest_on_demand(situation)
        return None if place is None else _roughly(situation, Mode.ON_DEMAND, place.name, reason, memory)

    def _without_spot(self, situation: Situation) -> Course:
        place = cheapest_on_demand(situation)
        reason = "no spot is sold"
        if place is None:
            return _roughly(situation, Mode.IDLE, None, reason, None)
        return _roughly(situation, Mode.ON_DEMAND, place.name, reason, None)


def _roughly(situation: Situation, mode: Mode, place: str | None, reason: str, memory: Memory) -> Course:
    """Where nothing has to be forecast."""
    weighed = rough.weigh(situation)
    return Course(mode, place, reason, memory=memory, alternatives=weighed, basis=rough.BASIS)


def _left(situation: Situation) -> tuple[float, float]:
    """Time left and slack, seconds; a deadline that is far away, or none, is taken to leave ``MOST_SLACK_S``."""
    slack_s = min(situation.slack_s, programme.MOST_SLACK_S)
    return slack_s + situation.work_left_s + situation.standing.changeover_left_s, slack_s


def _plan(situation: Situation, seen: Seen) -> Plan | None:
    view = outlook(situation, seen)
    if view is None:
        return None
    left_s, slack_s = _left(situation)
    steady = cheapest_on_demand(situation)
    steady_usd = _NO_ON_DEMAND * view.spot_usd_per_h
    if steady is not None:
        steady_usd = (steady.on_demand_usd_per_h or 0.0) / steady.speed
    transfer_usd = sum(place.move_usd for place in situation.places) / len(situation.places)
    problem = Problem(
        rates=view.together,
        spot_usd_per_h=view.spot_usd_per_h + view.drop_per_h * transfer_usd,
        on_demand_usd_per_h=steady_usd,
        left_s=left_s,
        slack_s=slack_s,
        changeover_s=situation.changeover_s,
        step_s=max(programme.STEP_S, situation.tick_s),
        drop_per_h=view.drop_per_h,
    )
    # Early on, what is seen soon doubles what is known.
    period_s = min(max(situation.now_s - situation.began_s, _FIRST_S), programme.PERIOD_S)
    return Plan(view, problem, situation.now_s, situation.now_s + period_s)


class _Weighing:
    """One look."""

    def __init__(self, situation: Situation, seen: Seen, plan: Plan) -> None:
        self.situation, self.seen, self.plan = situation, seen, plan
        self.solution: Solution = programme.solve(plan.problem)
        self.left_s, self.slack_s = _left(situation)
        age_h = seen.any_place.age_h(situation.now_s)
        self.age = bisect_right(AGES_H, age_h + 1e-9) - 1
        self.row = self.age if seen.any_place.up else AGES + self.age
        self.steady = cheapest_on_demand(situation)

    def course(self) -> Course:
        """The action that costs least, with what all cost."""
        situation, standing = self.situation, self.situation.standing
        idle_usd = self._idle_usd()
        costs: dict[Action, float] = {(Mode.IDLE, None): idle_usd}
        for place in situation.places:
            costs[Mode.SPOT, place.name] = math.inf
            costs[Mode.ON_DEMAND, place.name] = self._on_demand_usd(place)
        costs |= self._spot_usd()
        best = min(costs, key=lambda action: (costs[action], action[0], action[1] or ""))
        if math.isinf(costs[best]):
            best = (Mode.IDLE, None)
            costs[best] = costs[best] if math.isfinite(costs[best]) else self._waiting_usd()
        present = (standing.mode, standing.place)
        if best[0] is standing.mode is Mode.SPOT and best != present and not self._worth_moving(costs, present, best):
            best = present
        alternatives = tuple(Alternative(mode, name, usd) for (mode, name), usd in costs.items())
        return Course(best[0], best[1], self._reason(costs, best), alternatives=alternatives, basis=BASIS)

    def _reason(self, costs: dict[Action, float], best: Action) -> str:
        other = min((usd for action, usd in costs.items() if action != best), default=math.inf)
        hours = self.slack_s / 3600.0
        second = "nothing else is to be had" if math.isinf(other) else f"${other:.2f} otherwise"
        return f"${costs[best]:.2f} to come, {second}; {hours:.1f} h of slack"

    def _idle_usd(self) -> float:
        step_s = self.plan.problem.step_s
        if self.slack_s - step_s < self.situation.changeover_s:
            return math.inf
        return self.solution.after(self.left_s, IDLE + self.row, self.slack_s - step_s)

    def _waiting_usd(self) -> float:
        """Of idling where nothing is to be had."""
        return self.plan.view.spot_usd_per_h * self.situation.work_left_s / 3600.0

    def _on_demand_usd(self, place: Place) -> float:
        """Of on-demand there; the programme knows the cheapest, others cost more by their price."""
        if place.on_demand_usd_per_h is None:
            return math.inf
        standing, problem = self.situation.standing, self.plan.problem
        running = standing.mode is Mode.ON_DEMAND and standing.place == place.name
        slack_s = self.slack_s if running else self.slack_s - self.situation.changeover_s
        need_s = self.left_s - slack_s
        usd_per_h = place.on_demand_usd_per_h / place.speed
        usd = 0.0 if running else place.move_usd
        if slack_s < self.situation.changeover_s:
            return usd + usd_per_h * need_s / 3600.0
        usd += problem.on_demand_usd_per_h * min(need_s, problem.step_s) / 3600.0
        usd += self.solution.after(self.left_s, ON_DEMAND + self.row, slack_s)
        return usd + (usd_per_h - problem.on_demand_usd_per_h) * need_s / 3600.0

    def _spot_usd(self) -> dict[Action, float]:
        """Of each spot that can be had."""
        situation, standing = self.situation, self.situation.standing
        running = standing.mode is Mode.SPOT
        slack_s = self.slack_s if running else self.slack_s - situation.changeover_s
        numbers = [n for n, place in enumerate(situation.places) if usable(place) is not False and affordable(place)]
        if not numbers or (slack_s < situation.changeover_s and not running):
            return {}
        problem = self.plan.problem
        usd = problem.spot_usd_per_h * min(self.left_s - slack_s, problem.step_s) / 3600.0
        usd += self.solution.after(self.left_s, SPOT + (self.age if self.row < AGES else 0), slack_s)
        places = situation.places
        if len(places) == 1:
            return {(Mode.SPOT, places[0].name): usd}
        other = self._elsewhere()
        indices = {n: index_usd(situation, n, self.plan.view, self.seen, other) for n in numbers}
        least = min(indices.values())
        return {(Mode.SPOT, places[n].name): usd + index - least for n, index in indices.items()}

    def _elsewhere(self) -> Elsewhere:
        situation, problem = self.situation, self.plan.problem
        d_s = situation.changeover_s
        slack_usd_per_h = 0.0
        if d_s > 0:
            row = SPOT + self.age if self.row < AGES else IDLE + self.row
            less = self.solution.after(self.left_s, row, self.slack_s - d_s)
            more = self.solution.after(self.left_s, row, self.slack_s)
            slack_usd_per_h = min(max((less - more) / d_s * 3600.0, 0.0), problem.on_demand_usd_per_h)
        return elsewhere(situation, self.plan.view, slack_usd_per_h)

    def _worth_moving(self, costs: dict[Action, float], present: Action, best: Action) -> bool:
        """A running machine is left for another only for a clear gain."""
        d_s = self.situation.changeover_s
        if self.situation.standing.changeover_left_s > INSTANT_S or self.slack_s < 2.0 * d_s:
            return False
        if math.isinf(costs[present]):
            return True
        return costs[present] - costs[best] > 3.0 * d_s / 3600.0 * self.plan.view.spot_usd_per_h
