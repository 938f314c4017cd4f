"""Leases and fences: one rule for every store.

Expiry is judged by the wall clock, because a lease must outlive the process that took it and no monotonic clock does.
A clock that steps forward may hand a lease over early, one that steps back may keep it too long. Neither can corrupt
the journal: what protects it is the number, which grows with each new holder and is checked inside the transaction
that writes. The clock only decides how soon somebody else may take over.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from everstep.model.errors import LeaseHeld, StaleFence
from everstep.ports import Fence


@dataclass(frozen=True, slots=True)
class LeaseRow:
    """A lease as it is stored; ``expires_at`` in UTC seconds."""

    holder: str
    number: int
    expires_at: float


def check_lease(name: str, holder: str, ttl_s: float) -> None:
    """Raises ValueError for a lease nobody can hold. ``ttl_s`` = 0 is allowed: the holder gives its lease back."""
    if not name or not holder:
        raise ValueError("a lease needs a name and a holder")
    if not (math.isfinite(ttl_s) and ttl_s >= 0):
        raise ValueError(f"a lease of {ttl_s} s cannot be kept")


def grant(name: str, row: LeaseRow | None, *, holder: str, ttl_s: float, now: float) -> LeaseRow:
    """The lease after ``holder`` asked for it at ``now``.

    Raises:
        LeaseHeld: another holder's lease has not run out.
    """
    if row is None:
        return LeaseRow(holder, 1, now + ttl_s)
    if row.holder == holder:
        return LeaseRow(holder, row.number, now + ttl_s)
    if row.expires_at > now:
        raise LeaseHeld(f"{row.holder} holds the lease '{name}' for another {row.expires_at - now:.0f} s")
    return LeaseRow(holder, row.number + 1, now + ttl_s)


def check_fence(fence: Fence, row: LeaseRow | None) -> None:
    """Raises StaleFence unless the fence is that of the newest lease of its name."""
    if row is None:
        raise StaleFence(f"there is no lease '{fence.name}'; {fence.holder} must not write")
    if (row.holder, row.number) != (fence.holder, fence.number):
        raise StaleFence(
            f"{fence.holder} lost the lease '{fence.name}' (number {fence.number}): "
            f"{row.holder} has number {row.number}"
        )
