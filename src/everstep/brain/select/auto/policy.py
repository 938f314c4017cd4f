"""``auto`` as a policy of the seam: what it remembers and when it looks.

It looks at every change of the market and at instants one step of the programme apart; between them it holds its
course, so that asking more often changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from everstep.brain.forecast.availability import Rates
from everstep.brain.forecast.piecewise import Piecewise
from everstep.brain.select import rough
from everstep.brain.select.auto.beliefs import Seen, prospect
from everstep.brain.select.auto.problem import IMPATIENCE, PERIOD_S, Problem, step_for
from everstep.brain.select.auto.weighing import Plan, Weighing, left_and_slack_s
from everstep.brain.select.course import INSTANT_S, Course, Memory, Mode, Situation, View
from everstep.brain.select.net import crunch_at

_QUARTER_S = PERIOD_S / 4
_SLACK_S, _CHANGEOVER_S = PERIOD_S, 60.0
"""Units in which jobs that are asked anew each time count slack and changeover for the programme."""
_FIRST_S = 4 * 3600.0
"""When the programme is solved for the second time."""
_NO_ON_DEMAND = 10.0
"""Times the price of spot: what a job without on-demand would give for an hour of it."""


@dataclass(frozen=True, slots=True)
class Kept:
    """The memory of a job that has begun; the course is held until ``look_at`` unless ``market`` changes."""

    seen: Seen
    plan: Plan
    look_at: float
    market: tuple[tuple[bool | None, float | None], ...]
    course: Course


@dataclass(frozen=True, slots=True)
class Recalled:
    """The memory to begin with: what had been seen at each change of the past, oldest first."""

    seen: tuple[Seen, ...]


class Auto:
    """See the package and the module."""

    guarded = True

    def recall(self, views: Iterable[View]) -> Memory:
        """See ``Learner``."""
        return Recalled(tuple(Seen.each(views)))

    def steer(self, situation: Situation, memory: Memory) -> Course:
        """See ``Policy``."""
        held = memory if isinstance(memory, Kept) else None
        crunch = _crunch(situation, memory)
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
        recalled = memory.seen if isinstance(memory, Recalled) else ()
        plan = held.plan if held is not None else _plan_under_way(situation, recalled)
        seen = _seen(situation, held, market, recalled)
        if plan is None or situation.now_s >= plan.until_s - INSTANT_S:
            plan = _plan(situation, seen, *left_and_slack_s(situation))
        if plan is None:
            return _without_spot(situation)
        course = Weighing(situation, seen, plan).course()
        look_at = plan.until_s
        if not _settled(situation, course):
            steps = math.floor((situation.now_s - plan.began_s + INSTANT_S) / plan.problem.step_s) + 1
            look_at = plan.began_s + steps * plan.problem.step_s
        return replace(course, wake_at=look_at, memory=Kept(seen, plan, look_at, market, course))


_Market = tuple[tuple[bool | None, float | None], ...]


def _seen(situation: Situation, held: Kept | None, market: _Market, recalled: Sequence[Seen]) -> Seen:
    """With what this situation shows. A look that finds all as it was need not be written down, until the next plan."""
    if held is None:
        return recalled[-1].after(situation) if recalled else Seen.first(situation)
    due = situation.now_s >= held.plan.until_s - INSTANT_S
    same = market == held.market and not any(up is None for up, _ in market)
    return held.seen if same and not due else held.seen.after(situation)


def _settled(situation: Situation, course: Course) -> bool:
    """Nothing but its loss ends a run of spot where there is no second place: all else costs more at any time."""
    return len(situation.places) == 1 and course.mode is Mode.SPOT and situation.standing.mode is Mode.SPOT


def _plan_under_way(situation: Situation, recalled: Sequence[Seen]) -> Plan | None:
    """The plan of a job that is asked anew each time, with no memory but the past (live it is so).

    It is made of what had been seen at the latest quarter of a day, in round figures: the same at each decision until
    the next, and for all jobs that are much alike, so that its solution is found again.
    """
    if situation.tick_s > 0.0:
        return None  # a world of ticks keeps the memory: this is its first look
    at_s = math.floor(situation.now_s / _QUARTER_S) * _QUARTER_S
    before = [seen for seen in recalled if seen.at_s <= at_s]
    seen = before[-1].lived(at_s) if before else Seen.nothing(situation, at_s)
    left_s, slack_s = left_and_slack_s(situation)
    plan = _plan(situation, seen, _up_to(left_s, PERIOD_S), _up_to(slack_s, _SLACK_S))
    return None if plan is None else replace(plan, problem=_round(plan.problem))


def _up_to(seconds: float, unit_s: float) -> float:
    """The next whole number of units; the tables of more time and more slack hold those of less."""
    return max(math.ceil(seconds / unit_s), 1) * unit_s


def _round(problem: Problem) -> Problem:
    """Two digits of a hazard and three of a price: less than anybody knows of them."""

    def digits(value: float, count: int) -> float:
        return float(f"{value:.{count}g}")

    def hazard(of: Piecewise) -> Piecewise:
        return Piecewise(of.from_h, tuple([digits(rate, 2) for rate in of.per_h]))

    return replace(
        problem,
        rates=Rates(hazard(problem.rates.loss), hazard(problem.rates.back)),
        spot_usd_per_h=digits(problem.spot_usd_per_h, 3),
        on_demand_usd_per_h=digits(problem.on_demand_usd_per_h, 3),
        changeover_s=math.ceil(problem.changeover_s / _CHANGEOVER_S) * _CHANGEOVER_S,
        drop_per_h=digits(problem.drop_per_h, 2),
        idle_usd_per_h=digits(problem.idle_usd_per_h, 2),
    )


def period_s(passed_s: float) -> float:
    """How long a solution serves. Early on, the next hours double what is known."""
    return min(max(passed_s, _FIRST_S), PERIOD_S)


def _plan(situation: Situation, seen: Seen, left_s: float, slack_s: float) -> Plan | None:
    """As of ``seen``, at today's prices."""
    view = prospect(situation, seen)
    if view is None:
        return None
    steady = rough.cheapest_on_demand(situation)
    steady_usd_per_h = _NO_ON_DEMAND * view.spot_usd_per_h
    if steady is not None:
        steady_usd_per_h = (steady.on_demand_usd_per_h or 0.0) / steady.speed
    problem = Problem(
        rates=view.together,
        spot_usd_per_h=view.spot_usd_per_h + view.drop_per_h * view.transfer_usd,
        on_demand_usd_per_h=steady_usd_per_h,
        left_s=left_s,
        slack_s=slack_s,
        changeover_s=situation.changeover_s,
        step_s=max(step_for(left_s), situation.tick_s),
        drop_per_h=view.drop_per_h,
        idle_usd_per_h=IMPATIENCE * view.spot_usd_per_h,
    )
    return Plan(view, problem, seen.at_s, seen.at_s + period_s(seen.at_s - situation.began_s))


def _crunch(situation: Situation, memory: Memory) -> Course | None:
    """When the time left is needed for the work left: on-demand; a running, paid spot machine until it is lost."""
    if situation.now_s < crunch_at(situation, situation.changeover_s) - INSTANT_S:
        return None
    standing = situation.standing
    reason = "the time left is needed for the work left"
    if standing.mode is Mode.SPOT and standing.changeover_left_s <= INSTANT_S:
        return _roughly(situation, Mode.SPOT, standing.place, reason, memory)
    place = rough.cheapest_on_demand(situation)
    return None if place is None else _roughly(situation, Mode.ON_DEMAND, place.name, reason, memory)


def _without_spot(situation: Situation) -> Course:
    place, reason = rough.cheapest_on_demand(situation), "no spot is sold"
    if place is None:
        return _roughly(situation, Mode.IDLE, None, reason, None)
    return _roughly(situation, Mode.ON_DEMAND, place.name, reason, None)


def _roughly(situation: Situation, mode: Mode, place: str | None, reason: str, memory: Memory) -> Course:
    """Where nothing has to be forecast."""
    weighed = rough.weigh(situation)
    return Course(mode, place, reason, memory=memory, alternatives=weighed, basis=rough.BASIS)
