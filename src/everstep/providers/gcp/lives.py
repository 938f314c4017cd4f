"""When a machine of limited life is replaced: before the vendor ends it, and not all of a fleet at once.

Preemptible machines of the old kind end 24 hours after their start. Jobs that began together would lose their machines
together, and all ask one pool for new ones in the same minute. So each job plans its own end, up to two hours early: by
its name, so that every server and every look says the same. All machines of one job go together, since the losses of a
gang that come at once are one recovery, and one by one are many.
"""

from __future__ import annotations

import hashlib

SPREAD_S = 7200.0
"""Over so long the ends of a fleet are spread: a twelfth of a life."""


def planned_end(started_at: float, life_s: float, *, deployment: str, job: str) -> float:
    """When a machine is to be replaced, UTC seconds: at the end of its life, or up to ``SPREAD_S`` earlier.

    Args:
        started_at: UTC seconds.
        life_s: after which the vendor ends it.
    """
    return started_at + life_s - _share(deployment, job) * min(SPREAD_S, life_s / 12)


def _share(deployment: str, job: str) -> float:
    """From 0 up to 1, evenly over jobs."""
    digest = hashlib.sha256(f"{deployment}\x1f{job}".encode()).digest()
    return int.from_bytes(digest[:6], "big") / 2.0**48
