"""Moves: machines leased beside ones that work, to go on there once all of them are ready.

A move is named by the number of its first launch. It is over when one of its machines works in an attempt, and called
off when one of them cannot be counted on before that; then the rest of them go.
"""

from __future__ import annotations

from everstep.model.job import InstancePhase, InstanceState, JobState


def movers(s: JobState) -> tuple[InstanceState, ...]:
    """The machines of the newest move; none if one of them has ever worked in an attempt."""
    newest = max((m.move for m in s.instances.values()), default=0)
    if not newest:
        return ()
    found = tuple(m for m in s.instances.values() if m.move == newest)
    tokens = {m.token for m in found}
    return () if any(tokens.intersection(a.members) for a in s.attempts) else found


def called_off(s: JobState) -> bool:
    """One of the movers cannot be counted on."""
    return any(m.doomed for m in movers(s))


def movers_ready(s: JobState) -> bool:
    """There is a move, and everything is prepared for it."""
    found = movers(s)
    return bool(found) and all(m.phase is InstancePhase.READY and not m.doomed for m in found)


def unfinished(s: JobState, machine: InstanceState) -> bool:
    """The machine is of a move that is not ready: to go on there would be half a move."""
    return machine.move > 0 and machine in movers(s) and not movers_ready(s)
