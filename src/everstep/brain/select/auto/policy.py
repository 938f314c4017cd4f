"""``auto`` as a policy of the seam: what it remembers and when it looks.

It looks at every change of the market and at instants one step of the programme apart; between them it holds its
course, so that asking more often changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from everstep.brain.select import rough
from everstep.brain.select.auto.beliefs import Seen, prospect
from everstep.brain.select.auto.problem import MOST_SLACK_S, PERIOD_S, STEP_S, Problem
from everstep.brain.select.auto.weighing import Plan, Weighing, left_and_slack_s
from everstep.brain.select.course import INSTANT_S, Course, Memory, Mode, Situation, View
from everstep.brain.select.net import crunch_at

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
        known = held.seen if held is not None else recalled[-1] if recalled else None
        seen = Seen.first(situation) if known is None else known.after(situation)
        plan = held.plan if held is not None else _plan_under_way(situation, recalled)
        if plan is None or situation.now_s >= plan.until_s - INSTANT_S:
            plan = _plan(situation, seen, *left_and_slack_s(situation))
        if plan is None:
            return _without_spot(situation)
        course = Weighing(situation, seen, plan).course()
        steps = math.floor((situation.now_s - plan.began_s + INSTANT_S) / plan.problem.step_s) + 1
        look_at = plan.began_s + steps * plan.problem.step_s
        return replace(course, wake_at=look_at, memory=Kept(seen, plan, look_at, market, course))


def _plan_under_way(situation: Situation, recalled: Sequence[Seen]) -> Plan | None:
    """The plan of a job that is asked anew each time, with no memory but the past (live it is so).

    It is that of the latest instant at which a job with a memory would have solved the programme, from what had been
    seen then: the same at each decision until the next such instant, so that its solution is found again.
    """
    passed_s, at_s = situation.now_s - situation.began_s, 0.0
    while at_s + _period_s(at_s) <= passed_s:
        at_s += _period_s(at_s)
    at_s += situation.began_s
    before = [seen for seen in recalled if seen.at_s <= at_s]
    slack_s = situation.deadline_s - situation.began_s - situation.work_s
    if passed_s <= 0.0 or not before or not 0.0 < slack_s <= MOST_SLACK_S:
        return None
    return _plan(situation, before[-1].lived(at_s), situation.deadline_s - at_s, slack_s)


def _period_s(passed_s: float) -> float:
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
        step_s=max(STEP_S, situation.tick_s),
        drop_per_h=view.drop_per_h,
    )
    return Plan(view, problem, seen.at_s, seen.at_s + _period_s(seen.at_s - situation.began_s))


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
