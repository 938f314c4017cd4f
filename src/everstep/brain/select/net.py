"""The safety net: outside of every policy, acts last. While on-demand is to be had, the deadline is kept.

Once the time left is no more than the work left and one changeover, counted in whole ticks where there are ticks, the
job goes on-demand and stays. A running spot machine whose changeover is paid may stay until it is lost: losing it then
costs no more than going on-demand now.
"""

from __future__ import annotations

import math

from everstep.brain.select.course import INSTANT_S, Course, Mode, Situation
from everstep.brain.select.rough import cheapest_on_demand


def crunch_at(situation: Situation, reserve_s: float) -> float:
    """From when on the work left and ``reserve_s`` fill the time left, if no work is done until then.

    Seconds on the clock of the situation. With ticks it is the first tick k for which
    ceil((work left + reserve) / tick) >= floor((deadline - k tick) / tick).
    """
    need_s = situation.work_s - situation.done_s + reserve_s
    tick_s = situation.tick_s
    if tick_s <= 0:
        return situation.deadline_s - need_s
    if math.isinf(situation.deadline_s):
        return math.inf
    ticks = math.floor((situation.deadline_s - situation.began_s + INSTANT_S) / tick_s)
    return situation.began_s + (ticks - math.ceil((need_s - INSTANT_S) / tick_s)) * tick_s


def guard(situation: Situation, course: Course) -> Course:
    """``course``, or what the deadline demands instead; its ``wake_at`` also covers when the net would speak."""
    crunch = crunch_at(situation, situation.changeover_s)
    standing = situation.standing
    if situation.now_s >= crunch - INSTANT_S:
        return _hold(situation, course)
    if course.mode is Mode.ON_DEMAND:
        return course
    if course.mode is Mode.SPOT:
        kept = standing.mode is Mode.SPOT and standing.place == course.place
        unpaid_s = standing.changeover_left_s if kept else situation.changeover_s
        # Once its changeover is paid, a running machine is left alone.
        if situation.now_s + unpaid_s <= crunch + INSTANT_S:
            return course
    if crunch >= course.wake_at:
        return course
    return Course(course.mode, course.place, course.reason, crunch, course.memory, course.alternatives, course.basis)


def _hold(situation: Situation, course: Course) -> Course:
    """What the deadline demands now."""
    standing = situation.standing
    if standing.mode is Mode.SPOT and standing.changeover_left_s <= INSTANT_S:
        if course.mode is Mode.ON_DEMAND or (course.mode is Mode.SPOT and course.place == standing.place):
            return course
        return course.instead(Mode.SPOT, standing.place, "safety net: the running spot machine stays until it is lost")
    if course.mode is Mode.ON_DEMAND and (standing.mode is not Mode.ON_DEMAND or course.place == standing.place):
        return course
    if standing.mode is Mode.ON_DEMAND:
        return course.instead(Mode.ON_DEMAND, standing.place, "safety net: the time left is needed for the work left")
    place = cheapest_on_demand(situation)
    if place is None:
        return course
    return course.instead(Mode.ON_DEMAND, place.name, "safety net: the time left is needed for the work left")
