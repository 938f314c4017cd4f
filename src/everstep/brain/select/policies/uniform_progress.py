"""``uniform_progress``: as much done at every instant as if the work were spread evenly up to the deadline.

Wu et al., "Can't Be Late: Optimizing Spot Instance Savings under Deadlines", NSDI 2024. Behind the even line: spot if
there is any, else on-demand. Ahead of it: spot, else idle.
"""

from __future__ import annotations

import math
from dataclasses import replace

from everstep.brain.select.course import INSTANT_S, Course, Memory, Mode, Situation
from everstep.brain.select.net import crunch_at
from everstep.brain.select.policies.answers import idle, on_demand, spot
from everstep.brain.select.rough import affordable


class UniformProgress:
    """See the module.

    With ``hysteresis``, a job on on-demand stays there while there is no spot, even when ahead, and leaves it for spot
    only when it is ahead of where it would have to be two changeovers later. Either way it starts nothing but on-demand
    once the time left is no more than the work left and two changeovers. With ``elsewhere`` (failover) a lost spot
    machine is replaced in another region if there is spot; its memory is the region of the last loss.
    """

    guarded = True

    def __init__(self, *, hysteresis: bool = True, elsewhere: bool = False) -> None:
        self.hysteresis, self.elsewhere = hysteresis, elsewhere

    def steer(self, situation: Situation, memory: Memory) -> Course:
        """See ``Policy``."""
        avoid = self._avoided(situation, memory) if self.elsewhere else ""
        course = self._choose(situation, avoid)
        return replace(course, memory=avoid) if avoid else course

    def _avoided(self, situation: Situation, memory: Memory) -> str:
        lost = situation.place(situation.standing.lost_from)
        return lost.region if lost is not None else memory if isinstance(memory, str) else ""

    def _choose(self, situation: Situation, avoid: str) -> Course:
        mode = situation.standing.mode
        crunch = crunch_at(situation, 2.0 * situation.changeover_s)
        if mode is not Mode.SPOT and situation.now_s >= crunch - INSTANT_S:
            course = on_demand(situation, "too late to start anything but on-demand")
            if course is not None:
                return course
        if mode is Mode.ON_DEMAND and self.hysteresis:
            return self._leave(situation, avoid)
        return self._go(situation, crunch, avoid)

    def _go(self, situation: Situation, crunch: float, avoid: str) -> Course:
        taken = spot(situation, "spot is up", avoid=avoid)
        if taken is not None:
            return taken
        ahead_s = _ahead_s(situation, 0.0)
        if ahead_s < 0:
            # With hysteresis only spot coming up ends it, and that is not asked of the clock.
            wake_at = math.inf if self.hysteresis else _catches_up_at(situation, ahead_s)
            steady = on_demand(situation, f"no spot is up and {-ahead_s:.0f} s behind the even line", wake_at=wake_at)
            if steady is not None:
                return steady
        pace = situation.work_s / (situation.deadline_s - situation.began_s)
        falls_behind_at = situation.now_s + ahead_s / pace if pace > 0 else math.inf
        reason = f"no spot is up and {ahead_s:.0f} s ahead of the even line"
        return idle(situation, reason, wake_at=min(falls_behind_at, crunch))

    def _leave(self, situation: Situation, avoid: str) -> Course:
        """From on-demand, with hysteresis."""
        ahead_s = _ahead_s(situation, 2.0 * situation.changeover_s)
        up = any(place.up and affordable(place) for place in situation.places)
        if up and ahead_s > 0:
            reason = "spot is up, and ahead of the even line by more than two changeovers need"
            taken = spot(situation, reason, avoid=avoid)
            if taken is not None:
                return taken
        reason = "no spot is up: stay" if not up else "spot is up, but not far enough ahead to change over twice"
        wake_at = _catches_up_at(situation, ahead_s) if up else math.inf
        return on_demand(situation, reason, wake_at=wake_at) or idle(situation, reason)


def _ahead_s(situation: Situation, later_s: float) -> float:
    """Work done beyond what the even line asks for ``later_s`` seconds from now."""
    span_s = situation.deadline_s - situation.began_s
    if math.isinf(span_s):
        return math.inf
    return situation.done_s - (situation.now_s - situation.began_s + later_s) * situation.work_s / span_s


def _catches_up_at(situation: Situation, ahead_s: float) -> float:
    """When a job on on-demand (started now, if it does not run yet) that is ``-ahead_s`` behind will have caught up."""
    pace = situation.work_s / (situation.deadline_s - situation.began_s)
    if pace >= 1.0:
        return math.inf
    standing = situation.standing
    unpaid_s = standing.changeover_left_s if standing.mode is Mode.ON_DEMAND else situation.changeover_s
    return situation.now_s + (unpaid_s - ahead_s) / (1.0 - pace)
