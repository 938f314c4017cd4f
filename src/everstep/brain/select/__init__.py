"""One job against the market: which offer to lease next, or what to wait for.

A policy is a ``Selector``: one method, registered by name here or through the entry-point group ``everstep.selectors``
(the composition root merges those in). Policies are pure; the live controller and the simulator run the same ones.
"""

from everstep.brain.select.greedy import Greedy
from everstep.brain.select.on_demand import OnDemand
from everstep.brain.select.protocol import Choice, Need, Selector
from everstep.brain.select.rotate import Rotate

DEFAULT = "greedy"

SELECTORS: dict[str, Selector] = {"on_demand": OnDemand(), "greedy": Greedy(), "rotate": Rotate()}
"""Built-in policies by name."""

__all__ = ["DEFAULT", "SELECTORS", "Choice", "Greedy", "Need", "OnDemand", "Rotate", "Selector"]
