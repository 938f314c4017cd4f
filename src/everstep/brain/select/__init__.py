"""One job against the market: which offer to lease next, or what to wait for.

A policy is a ``Selector``: one method, registered by name here or through the entry-point group ``everstep.selectors``
(the composition root merges those in). Policies of the seam ``course.py``, which the simulator drives, are selectors
through ``live.py``. All are pure.
"""

from everstep.brain.select.course import Policy
from everstep.brain.select.greedy import Greedy
from everstep.brain.select.live import Live, Wants
from everstep.brain.select.on_demand import OnDemand
from everstep.brain.select.policies import ALIASES, POLICIES
from everstep.brain.select.protocol import Choice, Held, Mover, Need, Outlook, Selector
from everstep.brain.select.rotate import Rotate

TIMED, UNTIMED = "auto", "greedy"
"""Who decides for a task that names no policy: where work and deadline are known, and where not. Without a deadline
nobody has said what an hour is worth; ``greedy`` then trains whenever anything is to be had."""

_WANTS = {
    "spot_only": Wants(work=False, deadline=False),
    "spell": Wants(work=False, deadline=False),
    "incl": Wants(work=False, deadline=False),
    "cheapest": Wants(deadline=False),
    "auto": Wants(deadline=False),
    "utility": Wants(on_demand=True),
    "greedy_spot_safety_net": Wants(),
}
"""Of the others: work and deadline."""


def live(name: str, policy: Policy) -> Selector:
    """A policy of the seam under that name, to be used live."""
    return Live(name, policy, _WANTS.get(name))


_PLAIN: dict[str, Selector] = {"on_demand": OnDemand(), "greedy": Greedy(), "rotate": Rotate()}
"""Those that look at the offers of the moment alone, each in place of a policy of the seam of its name."""

SELECTORS: dict[str, Selector] = {
    **_PLAIN,
    # The published greedy waits for spot until the deadline's safety net speaks; ours, above, does not wait.
    **{name: live(name, POLICIES[meant]) for name, meant in ALIASES.items()},
    **{name: live(name, policy) for name, policy in POLICIES.items() if name not in _PLAIN},
}
"""Built-in policies by name, from the plainest to the cleverest: so they are listed to people."""

__all__ = [
    "SELECTORS",
    "TIMED",
    "UNTIMED",
    "Choice",
    "Greedy",
    "Held",
    "Live",
    "Mover",
    "Need",
    "OnDemand",
    "Outlook",
    "Rotate",
    "Selector",
    "Wants",
    "live",
]
