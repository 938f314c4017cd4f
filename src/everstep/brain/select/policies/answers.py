"""How policies that forecast nothing answer: a course with rough costs of every alternative."""

from __future__ import annotations

import math

from everstep.brain.select.course import Course, Memory, Mode, Situation
from everstep.brain.select.rough import BASIS, cheapest_on_demand, cheapest_spot, weigh


def spot(
    situation: Situation, reason: str, *, wake_at: float = math.inf, memory: Memory = None, avoid: str = ""
) -> Course | None:
    """The running spot machine, else the cheapest spot that is up, ``avoid`` (a region) last; None if there is none."""
    place = cheapest_spot(situation, avoid)
    if place is None:
        return None
    return Course(Mode.SPOT, place.name, reason, wake_at, memory, weigh(situation), BASIS)


def on_demand(situation: Situation, reason: str, *, wake_at: float = math.inf, memory: Memory = None) -> Course | None:
    """The running on-demand machine, else the cheapest; None if there is none."""
    place = cheapest_on_demand(situation)
    if place is None:
        return None
    return Course(Mode.ON_DEMAND, place.name, reason, wake_at, memory, weigh(situation), BASIS)


def idle(situation: Situation, reason: str, *, wake_at: float = math.inf, memory: Memory = None) -> Course:
    """Nothing runs."""
    return Course(Mode.IDLE, None, reason, wake_at, memory, weigh(situation), BASIS)


def at(
    situation: Situation, mode: Mode, place: str, reason: str, *, wake_at: float = math.inf, memory: Memory = None
) -> Course:
    """A place that the policy chose itself."""
    return Course(mode, place, reason, wake_at, memory, weigh(situation), BASIS)
