"""Why and when machines ended: what is left of a deleted machine is its operations.

The vendor keeps operations for about two weeks (https://docs.cloud.google.com/compute/docs/api/how-tos/
api-requests-responses), those that it did by itself included (``compute.instances.preempted``, ``.hostError``;
https://docs.cloud.google.com/compute/docs/logging/audit-logging#system-event).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from everstep.model.causes import InstanceEnd
from everstep.model.offers import Market
from everstep.providers.gcp.calls import Json
from everstep.providers.gcp.market import LEGACY_LIFE_S, instant
from everstep.providers.gcp.naming import last

PREEMPTED = "compute.instances.preempted"
BY_ITSELF: Mapping[str, InstanceEnd] = {
    PREEMPTED: InstanceEnd.PREEMPTED,
    "compute.instances.hostError": InstanceEnd.LOST,
    # The vendor takes the machine back for its own reasons.
    "compute.instances.terminateOnHostMaintenance": InstanceEnd.PREEMPTED,
    # The machine shut itself down.
    "compute.instances.guestTerminate": InstanceEnd.OWNER,
}
"""What the vendor calls what it does to machines."""
_ASKED = ("delete", "stop")
KINDS = (*BY_ITSELF, *_ASKED)
_BIRTH = "insert"
FILTER = " OR ".join(f'(operationType = "{kind}")' for kind in (*KINDS, _BIRTH))
"""Operations that begin or end machines."""
FILTER_PREEMPTED = f'operationType = "{PREEMPTED}"'
_LIFE_SLACK_S = 120.0


@dataclass(frozen=True, slots=True)
class End:
    """When (UTC seconds) and why; None = the vendor does not say."""

    at: float
    why: InstanceEnd | None


def by_machine(operations: Iterable[Json]) -> dict[str, list[Json]]:
    """Operations that end machines, by the machine's name, oldest first.

    Of those that a call for many made and took back, since they were too few, nobody was told: they are left out.
    """
    found: dict[str, list[Json]] = {}
    for operation in operations:
        target = operation.get("targetLink", "")
        of_a_machine = operation.get("operationType") in KINDS and "/instances/" in target
        if of_a_machine and not operation.get("error") and "operationGroupId" not in operation:
            found.setdefault(last(target), []).append(operation)
    for own in found.values():
        own.sort(key=_begun)
    return found


def births(operations: Iterable[Json]) -> dict[str, float]:
    """When machines began to run, UTC seconds, by their names: an insert is done then. Of those that came to be."""
    found = {}
    for operation in operations:
        target, at = operation.get("targetLink", ""), instant(operation.get("endTime", ""))
        is_birth = operation.get("operationType") == _BIRTH and "/instances/" in target
        if is_birth and at is not None and not operation.get("error"):
            found[last(target)] = at
    return found


def end_of(
    operations: Iterable[Json], *, started_at: float, market: Market, notice_s: float, seen_gone_at: float
) -> End | None:
    """The end that the operations of a machine that is over tell; None if they tell nothing.

    Args:
        notice_s: from a preemption's signal to the forced stop. The vendor writes down the signal; a machine that shuts
            itself down sooner is billed a few seconds less than this says.
        seen_gone_at: when it was first seen to be over, or stopped by its own time stamp.
    """
    reclaimed: End | None = None
    for operation in operations:
        kind, begun = str(operation["operationType"]), _begun(operation)
        if begun < started_at - 1.0:
            continue  # of an earlier machine of that name
        if kind in _ASKED:
            if reclaimed is not None and begun >= reclaimed.at:
                return reclaimed  # we put away what was over
            return End(instant(operation.get("endTime", "")) or seen_gone_at, InstanceEnd.OWNER)
        if reclaimed is None:
            why = BY_ITSELF[kind]
            at = min(begun + notice_s, seen_gone_at) if kind == PREEMPTED else begun
            if kind == PREEMPTED and (market is Market.ON_DEMAND or _lived_its_life(started_at, begun)):
                why = InstanceEnd.MAX_LIFE
            reclaimed = End(max(at, started_at), why)
    return reclaimed


def _lived_its_life(started_at: float, begun: float) -> bool:
    return abs(begun - started_at - LEGACY_LIFE_S) < _LIFE_SLACK_S


def _begun(operation: Json) -> float:
    return instant(operation.get("insertTime", "")) or 0.0
