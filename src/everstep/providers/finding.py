"""What a look at a provider found: the lines of ``everstep doctor``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        what: ``permission compute.instances.create``.
        ok: whether it is as it should be.
        found: what was seen, for a person.
        fix: what to do; empty if it is well.
    """

    what: str
    ok: bool
    found: str
    fix: str = ""
