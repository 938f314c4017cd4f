"""Policies of the seam ``brain/select/course.py``, by name."""

from everstep.brain.select.course import Policy
from everstep.brain.select.policies.greedy import Greedy
from everstep.brain.select.policies.on_demand import OnDemand
from everstep.brain.select.policies.uniform_progress import UniformProgress

POLICIES: dict[str, Policy] = {
    "on_demand": OnDemand(),
    "spot_only": Greedy(guarded=False),
    "greedy": Greedy(),
    "uniform_progress": UniformProgress(),
    "up_no_hysteresis": UniformProgress(hysteresis=False),
}
"""Built-in policies. They hold no state: one object serves every job."""

ALIASES: dict[str, str] = {"greedy_spot_safety_net": "greedy"}
"""Names that published comparisons use."""

__all__ = ["ALIASES", "POLICIES"]
