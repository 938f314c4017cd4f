"""``on_demand``: never spot."""

from __future__ import annotations

from everstep.brain.select.course import Course, Memory, Situation
from everstep.brain.select.policies.answers import idle, on_demand


class OnDemand:
    """The cheapest on-demand machine, from the start to the end."""

    guarded = True

    def steer(self, situation: Situation, memory: Memory) -> Course:
        """See ``Policy``."""
        return on_demand(situation, "on-demand from start to end") or idle(situation, "no on-demand is to be had")
