"""Many machines by one call: ``instances.bulkInsert`` in a zone.

The vendor makes machines of one call alike in everything but their names (``perInstanceProperties``), so these go
together: launches of one job, in one zone, of one type, market, price and size of disk, whose boot environments differ
in the join token alone. All others have a call each: one that has a disk that is there already (a volume, or the boot
disk of its predecessor), since a call of many can attach it to none of them; one whose name does not tell its token,
since no label of its own would; and one that came to nothing before, or was taken back: the vendor answers a known
request id with what it did then. Launch numbers and join tokens stand in a table that every machine of the call has. A
machine so sees the tokens of its gang; it cannot join by them, since it must prove by Google's signature who it is.

With ``minCount`` = ``count`` the vendor starts all or none. What went wrong with each machine is told by the operation
of its own insert, the one of the whole only says that there are too few.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from everstep.model import handshake as hs
from everstep.model.errors import ProviderError
from everstep.ports import LaunchRequest
from everstep.providers.gcp import errors, naming
from everstep.providers.gcp.calls import Calls, Json

MOST = 100
"""So many machines are made by one call. The vendor takes 5,000, but each of them carries the table of all."""
_AT_ONCE = 8
"""Calls under way. The vendor refuses when more than 10 run at a time: https://docs.cloud.google.com/compute/docs/
troubleshooting/troubleshooting-bulk-vm-creation"""


@dataclass(frozen=True, slots=True)
class Made:
    """What came of a call.

    Attributes:
        operations: by name the operation that tells of that machine, done; empty where none does.
        failure: why none was made; None if any was.
    """

    operations: Mapping[str, Json]
    failure: ProviderError | None = None


class Bulk:
    """Makes many machines with one call, idempotent by their names and request id."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._turn = asyncio.Semaphore(_AT_ONCE)

    async def make(self, zone: str, named: Mapping[str, LaunchRequest], properties: Json, *, least: int) -> Made:
        """Asks, and waits until it is done. Raises a typed ProviderError for a call that is refused.

        Args:
            named: what is wanted, by the names of the machines.
            properties: ``InstanceProperties`` of all of them.
            least: if fewer can be had, none is made.
        """
        names = sorted(named)
        resource = {
            "count": str(len(names)),
            "minCount": str(least),
            "perInstanceProperties": {name: {} for name in names},
            "instanceProperties": properties,
        }
        body = ("bulk_insert_instance_resource_resource", resource)
        request_id = naming.request_id("bulk", str(least), *names)
        async with self._turn:
            asked = await self._calls.call("instances", "bulk_insert", body, zone=zone, request_id=request_id)
            operation = await self._calls.finished(asked)
        failure = errors.failed(operation)
        if failure is None and _is_complete(operation):
            return Made(dict.fromkeys(names, operation))
        if failure is not None and errors.code_of(failure) != errors.TOO_FEW:
            return Made({}, failure)
        inserts = await self._inserts(zone, operation)
        if failure is None:
            return Made({name: inserts.get(name, {}) for name in names})
        found = [error for insert in inserts.values() if (error := errors.failed(insert)) is not None]
        # A name that is taken first: its machine is there, and so there is another way.
        found.sort(key=lambda error: errors.code_of(error) not in errors.THERE)
        return Made({}, found[0] if found else failure)

    async def _inserts(self, zone: str, operation: Json) -> dict[str, Json]:
        """The operations of the single machines, by name."""
        group = operation.get("operationGroupId", "")
        wanted = f'(operationType = "insert") AND (operationGroupId = "{group}")'
        listed = await self._calls.listed("zone_operations", zone=zone, filter=wanted) if group else []
        return {naming.last(insert.get("targetLink", "")): insert for insert in listed}


def alike(request: LaunchRequest) -> Hashable | None:
    """Launches of which this is equal may be made by one call; None for one that needs a call of its own."""
    join = request.user_data.get(hs.BOOT_TOKEN, "")
    if request.volume is not None or naming.whose(naming.machine_name(request, 0)) is None or len(join.split()) != 1:
        return None
    offer, rest = request.offer, {key: value for key, value in request.user_data.items() if key != hs.BOOT_TOKEN}
    sizes = (request.max_price_usd_per_h, request.disk_gib, request.gang)
    return (request.deployment, request.job, offer.key, *sizes, frozenset(rest.items()))


def _is_complete(operation: Json) -> bool:
    """Whether all that was asked for is there."""
    told = operation.get("instancesBulkInsertOperationMetadata", {}).get("perLocationStatus", {}).values()
    wanted, made = (sum(one.get(key, 0) for one in told) for key in ("targetVmCount", "createdVmCount"))
    return bool(wanted == made > 0)
