"""Launches that were refused: the newest are remembered one by one, older ones as a number per reason.

A job that waits for capacity for days is refused every few seconds. Every event of a job looks through what it
remembers, so that must not grow with the wait; the journal has all of them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from everstep.model.ids import LaunchToken
from everstep.model.job import InstancePhase, InstanceState, JobState

REMEMBERED = 64
"""So many of the newest are always remembered."""
MEMORY_S = 600.0
"""A launch that we took for refused may turn up in a sweep of the provider; after so long none does."""


def forgetful(s: JobState, now: float) -> JobState:
    """The job without refusals that can matter no more; they are counted in ``refusals``.

    Kept are those of the newest move, which tell that it is called off, and the newest of each provider, whose terms
    its disks are billed by.
    """
    refused = [m for m in s.instances.values() if m.phase is InstancePhase.REFUSED]
    if len(refused) <= 2 * REMEMBERED:
        return s  # rarely, and then many at once
    refused.sort(key=lambda m: m.launch_no)
    newest_move = max(m.move for m in s.instances.values())
    last = {m.offer.provider: m.token for m in refused}
    old = [
        m
        for m in refused[:-REMEMBERED]
        if now - m.intended_at > MEMORY_S
        and not (m.move and m.move == newest_move)
        and last[m.offer.provider] != m.token
    ]
    if not old:
        return s
    forgotten: set[LaunchToken] = {m.token for m in old}
    told = Counter(s.refusals)
    told.update(_reason(m) for m in old)
    left = {token: m for token, m in s.instances.items() if token not in forgotten}
    return replace(s, instances=left, refusals=dict(told))


def _reason(m: InstanceState) -> str:
    """The meaning of the error: ``no_capacity``."""
    return m.failure.partition(":")[0]
