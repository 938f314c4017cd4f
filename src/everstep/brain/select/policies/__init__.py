"""Policies of the seam ``brain/select/course.py``, by name."""

from everstep.brain.select.auto import Auto
from everstep.brain.select.course import Policy
from everstep.brain.select.policies.cheapest import Cheapest
from everstep.brain.select.policies.greedy import Greedy
from everstep.brain.select.policies.incl import Incl
from everstep.brain.select.policies.on_demand import OnDemand
from everstep.brain.select.policies.spell import Spell
from everstep.brain.select.policies.uniform_progress import UniformProgress
from everstep.brain.select.policies.utility import Utility

POLICIES: dict[str, Policy] = {
    "on_demand": OnDemand(),
    "spot_only": Greedy(guarded=False),
    "greedy": Greedy(),
    "spell": Spell(),
    "incl": Incl(),
    "uniform_progress": UniformProgress(),
    "up_no_hysteresis": UniformProgress(hysteresis=False),
    "failover": UniformProgress(elsewhere=True),
    "cheapest": Cheapest(),
    "utility": Utility(),
    "auto": Auto(),
}
"""Built-in policies. They hold no state: one object serves every job."""

ALIASES: dict[str, str] = {"greedy_spot_safety_net": "greedy"}
"""Names that published comparisons use."""

__all__ = ["ALIASES", "POLICIES"]
