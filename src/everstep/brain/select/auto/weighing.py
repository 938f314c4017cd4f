"""What each action is expected to cost now: one look at the tables, then the zones' index."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property

from everstep.brain.forecast.availability import AGES_H
from everstep.brain.select.auto.beliefs import Prospect, Seen, usable
from everstep.brain.select.auto.problem import AGES, IDLE, ON_DEMAND, SPOT, Problem, most_slack_s
from everstep.brain.select.auto.zones import Elsewhere, elsewhere, index_usd, mean_up_h, patience_usd_per_h
from everstep.brain.select.course import INSTANT_S, Alternative, Course, Mode, Place, Situation
from everstep.brain.select.rough import affordable, cheapest_spot

BASIS = "mean over what spot may do, by the hazards seen so far, if every later choice is the best"
Action = tuple[Mode, str | None]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is kept from one solution of the programme to the next.

    Attributes:
        view: of the market.
        problem: solved at ``began_s``; ``until_s``: when to solve again.
    """

    view: Prospect
    problem: Problem
    began_s: float
    until_s: float


def left_and_slack_s(situation: Situation) -> tuple[float, float]:
    """A deadline that is far away, or none, is taken to leave as much slack as counts."""
    slack_s = min(situation.slack_s, most_slack_s(situation.work_left_s))
    return slack_s + situation.work_left_s + situation.standing.changeover_left_s, slack_s


class Weighing:
    """One look."""

    def __init__(self, situation: Situation, seen: Seen, plan: Plan) -> None:
        self.situation, self.seen, self.plan = situation, seen, plan
        # Not before it is needed: whoever only imports policies shall not wait for numpy.
        from everstep.brain.select.auto.programme import solve

        self.problem, self.solution = plan.problem, solve(plan.problem)
        self.left_s, self.slack_s = left_and_slack_s(situation)
        age = bisect_right(AGES_H, seen.any_place.age_h(situation.now_s) + 1e-9) - 1
        self.up = seen.any_place.up
        self.row = age if self.up else AGES + age
        self.spot_row = SPOT + (age if self.up else 0)
        self.present = (situation.standing.mode, situation.standing.place)
        self.waits_for = ""

    def course(self) -> Course:
        """The action that costs least, with what all of them cost."""
        costs = self._costs()
        best = min(costs, key=lambda action: (self._weight(action, costs[action]), action[0], action[1] or ""))
        if math.isinf(costs[best]):
            # Late, and on-demand is not to be had: spot is better than standing still. Else what it would cost, should
            # it come back.
            place = cheapest_spot(self.situation)
            best = (Mode.IDLE, None) if place is None else (Mode.SPOT, place.name)
            costs[best] = self.problem.spot_usd_per_h * self.situation.work_left_s / 3600.0
        elif best[0] is self.present[0] is Mode.SPOT and best != self.present and not self._worth_moving(costs, best):
            best = self.present
        alternatives = tuple([Alternative(mode, name, usd) for (mode, name), usd in costs.items()])
        return Course(best[0], best[1], self._reason(costs, best), alternatives=alternatives, basis=BASIS)

    def _weight(self, action: Action, usd: float) -> float:
        """By which actions are chosen: without a deadline nobody is in such a hurry as to go on-demand."""
        hurried = action[0] is Mode.ON_DEMAND and math.isinf(self.situation.deadline_s)
        return math.inf if hurried else usd

    def _costs(self) -> dict[Action, float]:
        """Of every action; infinite where it is not to be had, or would risk the deadline."""
        idle_usd = math.inf
        if self._may_wait(self.slack_s):
            idle_usd = self.solution.after(self.left_s, IDLE + self.row, self.slack_s - self.problem.step_s)
            idle_usd += self.problem.idle_usd_per_h * self.problem.step_s / 3600.0
        costs: dict[Action, float] = {(Mode.IDLE, None): idle_usd}
        for place in self.situation.places:
            costs[Mode.SPOT, place.name] = math.inf
            costs[Mode.ON_DEMAND, place.name] = self._on_demand_usd(place)
        self._weigh_spot(costs)
        return costs

    def _may_wait(self, slack_s: float) -> bool:
        """Waiting for a step leaves time to start on-demand."""
        return slack_s - self.problem.step_s >= self.situation.changeover_s

    def _on_demand_usd(self, place: Place) -> float:
        """The programme knows the cheapest; others cost more by their price."""
        if place.on_demand_usd_per_h is None:
            return math.inf
        running = self.present == (Mode.ON_DEMAND, place.name)
        slack_s = self.slack_s if running else self.slack_s - self.situation.changeover_s
        need_s = self.left_s - slack_s
        usd_per_h = place.on_demand_usd_per_h / place.speed
        usd = 0.0 if running else place.move_usd
        if slack_s < self.situation.changeover_s:
            return usd + usd_per_h * need_s / 3600.0
        usd += self._steady_usd(slack_s) if running else self._started_usd
        return usd + (usd_per_h - self.problem.on_demand_usd_per_h) * need_s / 3600.0

    @cached_property
    def _started_usd(self) -> float:
        """The same for all places."""
        return self._steady_usd(self.slack_s - self.situation.changeover_s)

    def _steady_usd(self, slack_s: float) -> float:
        """Of the cheapest on-demand, with that slack once its changeover is paid."""
        usd = self.problem.on_demand_usd_per_h * min(self.left_s - slack_s, self.problem.step_s) / 3600.0
        return usd + self.solution.after(self.left_s, ON_DEMAND + self.row, slack_s)

    def _weigh_spot(self, costs: dict[Action, float]) -> None:
        """Spot wherever it can be had, and waiting for better than that."""
        situation = self.situation
        running = self.present[0] is Mode.SPOT
        slack_s = self.slack_s if running else self.slack_s - situation.changeover_s
        numbers = [n for n, place in enumerate(situation.places) if self._to_be_had(place)]
        if not numbers or (slack_s < situation.changeover_s and not running):
            return
        usd = self.problem.spot_usd_per_h * min(self.left_s - slack_s, self.problem.step_s) / 3600.0
        usd += self.solution.after(self.left_s, self.spot_row, slack_s)
        places = situation.places
        if math.isinf(situation.deadline_s):
            # Without a deadline nothing else would ever end the wait.
            costs[Mode.IDLE, None] = math.inf
        if len(places) == 1:
            # The programme was solved with another price, if it has moved since.
            dearer = (places[0].spot_usd_per_h or 0.0) / places[0].speed - self.plan.view.spot_usd_per_h
            costs[Mode.SPOT, places[0].name] = usd + dearer * mean_up_h(situation, 0, self.plan.view, self.seen)
            return
        other = self._elsewhere()
        indices = {n: index_usd(situation, n, self.plan.view, self.seen, other) for n in numbers}
        least = min(indices, key=lambda n: indices[n])
        for n, index in indices.items():
            costs[Mode.SPOT, places[n].name] = usd + index - indices[least]
        if not running and self._may_wait(slack_s) and math.isfinite(situation.deadline_s):
            gain = patience_usd_per_h(situation, indices, self.plan.view, self.seen, other)
            gain -= self.problem.idle_usd_per_h
            less = self.solution.after(self.left_s, self.spot_row, slack_s - self.problem.step_s)
            wait_usd = usd - gain * self.problem.step_s / 3600.0
            wait_usd += less - self.solution.after(self.left_s, self.spot_row, slack_s)
            if wait_usd < costs[Mode.IDLE, None]:
                costs[Mode.IDLE, None] = wait_usd
                self.waits_for = f"better than spot in {places[least].name} may come up; "

    def _to_be_had(self, place: Place) -> bool:
        if self.present == (Mode.SPOT, place.name):
            return True
        return usable(place) is not False and affordable(place)

    def _elsewhere(self) -> Elsewhere:
        """With the shadow price of slack: what one changeover less of it would cost, per hour.

        No more than on-demand, beyond which the programme, which knows no second place, is too anxious.
        """
        d_s, most = self.situation.changeover_s, self.problem.on_demand_usd_per_h
        slack_usd_per_h = 0.0
        if d_s > 0:
            row = self.spot_row if self.up else self.row
            less = self.solution.after(self.left_s, row, self.slack_s - d_s)
            more = self.solution.after(self.left_s, row, self.slack_s)
            slack_usd_per_h = min(max((less - more) / d_s * 3600.0, 0.0), most)
        return elsewhere(self.situation, self.plan.view, slack_usd_per_h)

    def _worth_moving(self, costs: dict[Action, float], best: Action) -> bool:
        """A running machine is left for another only once its changeover is paid, with slack, and for a clear gain."""
        d_s = self.situation.changeover_s
        if self.situation.standing.changeover_left_s > INSTANT_S or self.slack_s < 2.0 * d_s:
            return False
        return costs[self.present] - costs[best] > 3.0 * d_s / 3600.0 * self.plan.view.spot_usd_per_h

    def _reason(self, costs: dict[Action, float], best: Action) -> str:
        others = [(usd, mode.value.replace("_", "-")) for (mode, _), usd in costs.items() if mode is not best[0]]
        usd, mode = min(others, default=(math.inf, ""))
        second = "nothing else is to be had" if math.isinf(usd) else f"{mode} ${usd:.2f}"
        waits_for = self.waits_for if best[0] is Mode.IDLE else ""
        hours = self.slack_s / 3600.0
        return f"{waits_for}${costs[best]:.2f} expected to come, {second}; {hours:.1f} h of slack"
