"""``auto``: the default policy: a stochastic programme for one place, an index on top of it for many."""

from everstep.brain.select.auto.policy import Auto

__all__ = ["Auto"]
