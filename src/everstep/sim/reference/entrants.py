"""Policies by the names that rows and options give: built in, aliases of published names, installed by packages."""

from __future__ import annotations

from functools import cache

from everstep.brain.select.course import Policy
from everstep.brain.select.policies import ALIASES, POLICIES
from everstep.plugins import PluginClash, merge

GROUP = "everstep.policies"
"""Entry points of this group name a ``Policy``: an object, not a class."""
OPTIMAL = "optimal"
"""Not a policy, since it knows the future; the simulator's yardstick."""
_PUBLISHED = {"optimal_dp": OPTIMAL}


def named(name: str) -> str:
    """The name that an alias stands for.

    Raises:
        KeyError: there is no such policy.
    """
    name = ALIASES.get(name, _PUBLISHED.get(name, name))
    if name != OPTIMAL and name not in POLICIES and name not in _installed():
        raise KeyError(name)
    return name


def names() -> list[str]:
    """Every name, aliases left out: ours from the plainest to the cleverest, then those of packages."""
    return [*POLICIES, *sorted(_installed()), OPTIMAL]


def entrant(name: str) -> Policy:
    """The policy of that name, aliases resolved before."""
    return POLICIES[name] if name in POLICIES else _installed()[name]


@cache
def _installed() -> dict[str, Policy]:
    """Policies of other packages; looked up only when a name is not one of ours."""
    found = {name: load() for name, load in merge(GROUP, {}).items()}
    clash = sorted(found.keys() & {*POLICIES, *ALIASES, *_PUBLISHED, OPTIMAL})
    if clash:
        raise PluginClash(f"{GROUP}: '{clash[0]}' is a name of everstep's own; an installed package claims it too")
    return found
