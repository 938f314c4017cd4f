"""``greedy``: spot if there is any, else nothing; the safety net does the rest."""

from __future__ import annotations

from everstep.brain.select.course import Course, Memory, Situation
from everstep.brain.select.policies.answers import idle, spot


class Greedy:
    """The cheapest spot, kept until it is lost; idle without.

    Attributes:
        guarded: without the safety net this is ``spot_only``: it waits for spot whatever the deadline says.
    """

    def __init__(self, *, guarded: bool = True) -> None:
        self.guarded = guarded

    def steer(self, situation: Situation, memory: Memory) -> Course:
        """See ``Policy``."""
        return spot(situation, "spot is up") or idle(situation, "no spot is up: wait for it")
