"""Policies of installed packages beside ours: selectors as they are, policies of the simulator made live."""

from __future__ import annotations

from everstep.brain.select import SELECTORS, Selector, live
from everstep.plugins import PluginClash, merge

SELECTOR_GROUP = "everstep.selectors"
"""Entry points of this group name a ``Selector``: an object, not a class."""
POLICY_GROUP = "everstep.policies"
"""Entry points of this group name a ``Policy`` of ``brain/select/course.py``; the simulator knows them, too."""


def selectors() -> dict[str, Selector]:
    """Every policy that a task may name.

    Raises:
        PluginClash: a name is claimed twice.
    """
    found: dict[str, Selector] = dict(SELECTORS)
    for group in (SELECTOR_GROUP, POLICY_GROUP):
        for name, load in merge(group, {}).items():
            if name in found:
                raise PluginClash(f"{group}: '{name}' names a policy already; an installed package claims it too")
            found[name] = load() if group == SELECTOR_GROUP else live(name, load())
    return found
