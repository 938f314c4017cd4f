"""Starting machines: one ``instances.insert`` per machine, idempotent by its name and request id.

Gangs are all or nothing by taking back what was started, not by ``bulkInsert``: that gives every machine the same
metadata, and ours have a join token each; it cannot attach a disk that is there to one of them; and it serves one zone
and machine type. A stock-out is told by the operation, within seconds, while the others wait for theirs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from everstep.model.errors import BadRequest, PriceAboveMax, ProviderError, Throttled, Unreachable
from everstep.model.ids import InstanceId
from everstep.model.offers import Market
from everstep.ports import Launched, LaunchRequest
from everstep.providers.gcp import naming
from everstep.providers.gcp.accelerators import parted, vendors_name
from everstep.providers.gcp.calls import Calls, Json
from everstep.providers.gcp.disks import Disks
from everstep.providers.gcp.errors import GONE, THERE, Said, code_of
from everstep.providers.gcp.groups import Groups
from everstep.providers.gcp.looks import Looks
from everstep.providers.gcp.market import GceMarket, instant, region_of
from everstep.providers.gcp.settings import Settings
from everstep.providers.gcp.startup import DEVICE, boot_script

_GENERATIONS = 10
_ASKED_AT_ONCE = 8
"""So many inserts of one launch are under way: half of the threads, so that looks and ends need not wait for them."""
_SCOPES = ["https://www.googleapis.com/auth/logging.write", "https://www.googleapis.com/auth/monitoring.write"]
"""What a machine's own account may do, where it has one: write logs. It needs the account for its identity token."""


class Launching:
    """Starts machines, takes back what an incomplete gang left."""

    def __init__(
        self,
        calls: Calls,
        settings: Settings,
        disks: Disks,
        groups: Groups,
        market: GceMarket,
        *,
        started: Callable[[LaunchRequest, Launched], None],
        ended: Callable[[str], None],
        look_s: float,
    ) -> None:
        """Args: started: told of every machine at once; ended: of those taken back; look_s: between two looks."""
        self._calls = calls
        self._settings = settings
        self._disks = disks
        self._groups = groups
        self._market = market
        self._started = started
        self._ended = ended
        self._look_s = look_s
        self._looks = Looks(calls)
        # How often the machine of a token was taken back: the next one needs a name of its own.
        self._generations: dict[str, int] = {}
        # How often an insert of a name came to nothing: the vendor answers a known request id with what it did then.
        self._failures: dict[str, int] = {}

    async def launch(
        self, requests: Sequence[LaunchRequest], *, all_or_nothing: bool
    ) -> Sequence[Launched | Exception]:
        """See ``Provider.launch``. Of several for one pool that has no room for all, any may be served."""
        turn = asyncio.Semaphore(_ASKED_AT_ONCE)
        answers = await asyncio.gather(*(_answered(self._start(request, turn)) for request in requests))
        failures = [a for a in answers if isinstance(a, ProviderError)]
        if not failures or not all_or_nothing:
            return answers
        final = [e for e in failures if not isinstance(e, Unreachable | Throttled)]
        if not final:
            raise failures[0]  # may still succeed: the same call again finds what has started
        await self._take_back([r for r, a in zip(requests, answers, strict=True) if not _never(a)])
        raise final[0]

    # --- one machine -------------------------------------------------------------------------------------------------

    async def _start(self, request: LaunchRequest, turn: asyncio.Semaphore) -> Launched:
        """Asked for when it is its turn; then waited for, together with all others."""
        while True:
            async with self._groups.of(request) as group:
                try:
                    async with turn:
                        operation = await self._ask(request, group)
                    return await self._wait(request, group, operation)
                except ProviderError as error:
                    if not self._groups.goes_without(request, group, error):
                        raise

    async def _ask(self, request: LaunchRequest, group: str) -> Json:
        """The operation of the insert; an empty one if the machine is there."""
        zone = request.offer.zone
        if region_of(zone) not in self._settings.regions:
            known = ", ".join(self._settings.regions)
            raise BadRequest(f"zone {zone!r} is in none of the configured regions ({known})")
        await self._check_price(request)
        disk = None if request.volume is None else await self._disks.ready_for(request)
        resource = self._resource(request, disk, group)
        name = resource["name"]
        request_id = naming.request_id(name, str(self._failures.get(name, 0)))
        body = ("instance_resource", resource)
        try:
            return await self._calls.call("instances", "insert", body, zone=zone, request_id=request_id)
        except BadRequest as error:
            if code_of(error) not in THERE:
                raise
            return {}

    async def _wait(self, request: LaunchRequest, group: str, operation: Json) -> Launched:
        while True:
            name = self._name(request)
            if operation:
                try:
                    operation = await self._calls.done(operation)
                except ProviderError as error:
                    if isinstance(error.__cause__, Said):
                        self._failures[name] = self._failures.get(name, 0) + 1
                    raise
            machine = await self._looks.machine(request.offer.zone, name, request.deployment)
            if machine is None and await self._was_taken_back(request, name) and self._more(request):
                operation = await self._ask(request, group)
                continue
            if not operation and machine is not None and machine["status"] == "PROVISIONING":
                await asyncio.sleep(self._look_s)  # another call's: it may still come to nothing
                continue
            launched = self._launched(request, name, machine, operation)
            if machine is not None:
                self._started(request, launched)
            return launched

    def _launched(self, request: LaunchRequest, name: str, machine: Json | None, operation: Json) -> Launched:
        """The answer. Without a machine it is one that has ended since."""
        if machine is not None and not naming.same(machine, request):
            raise BadRequest(f"token {request.token} was used for {name} with other parameters")
        described = machine or {}
        at = instant(described.get("lastStartTimestamp", "")) or instant(described.get("creationTimestamp", ""))
        at = at or instant(operation.get("endTime", "")) or instant(operation.get("insertTime", ""))
        if at is None:
            raise Unreachable(f"{name} is neither there nor was it made")
        return Launched(request.token, InstanceId(name), at, request.offer.price_usd_per_h)

    async def _check_price(self, request: LaunchRequest) -> None:
        """Spot machines have no maximum price at this vendor: the price in force decides."""
        most = request.max_price_usd_per_h
        if request.offer.market is not Market.SPOT or most is None:
            return
        price = await self._market.spot_usd_per_h(request.offer.zone, request.offer.machine)
        price = request.offer.price_usd_per_h if price is None else price
        if price > most:
            raise PriceAboveMax(
                f"spot costs ${price:.6f} an hour in {request.offer.zone}, at most ${most:.6f} is allowed"
            )

    # --- what is asked for -------------------------------------------------------------------------------------------

    def _name(self, request: LaunchRequest) -> str:
        return naming.machine_name(request, self._generations.get(request.token, 0))

    def _resource(self, request: LaunchRequest, disk: str | None, group: str) -> dict[str, Any]:
        """``Instance`` as REST has it."""
        offer, settings = request.offer, self._settings
        kind, attached = parted(offer.machine.name)
        zone = f"zones/{offer.zone}"
        boots_from_volume = disk is not None and settings.keep == "boot_disk"
        resource: dict[str, Any] = {
            "name": self._name(request),
            "description": f"everstep {request.job} {request.launch_no}",
            "machineType": f"{zone}/machineTypes/{kind}",
            "labels": naming.of_launch(request),
            "scheduling": self._scheduling(request, group),
            "networkInterfaces": [self._interface(region_of(offer.zone))],
            "serviceAccounts": [{"email": settings.service_account, "scopes": _SCOPES}],
            "metadata": {"items": [{"key": "startup-script", "value": _script(request, boots_from_volume)}]},
        }
        if group:
            resource["resourcePolicies"] = [group]
        if attached is not None:
            link = f"{zone}/acceleratorTypes/{vendors_name(attached[0])}"
            resource["guestAccelerators"] = [{"acceleratorType": link, "acceleratorCount": attached[1]}]
        kept = {"source": f"{zone}/disks/{disk}", "autoDelete": False, "deviceName": DEVICE, "mode": "READ_WRITE"}
        if boots_from_volume:
            resource["disks"] = [{**kept, "boot": True}]
            return resource
        make: dict[str, Any] = {
            "sourceImage": settings.gpu_image if offer.machine.accelerator else settings.cpu_image,
            "diskType": f"{zone}/diskTypes/{settings.disk_type}",
            "labels": naming.of_own_disk(request),
        }
        own_gib = settings.boot_disk_gib if request.disk_gib is None else request.disk_gib
        make["diskSizeGb"] = str(max(int(-(-own_gib // 1)), 1))
        resource["disks"] = [{"boot": True, "autoDelete": True, "initializeParams": make}]
        if disk is not None:
            resource["disks"].append(kept)
        return resource

    def _scheduling(self, request: LaunchRequest, group: str) -> dict[str, Any]:
        # Nobody restarts it but us: a machine that comes back by itself after a host error has lost its processes.
        scheduling: dict[str, Any] = {"automaticRestart": False, "onHostMaintenance": "TERMINATE"}
        if request.offer.market is not Market.SPOT:
            if not request.offer.machine.accelerator and not group:  # what is placed cannot be moved
                scheduling["onHostMaintenance"] = "MIGRATE"
        elif self._settings.legacy_preemptible:
            scheduling["preemptible"] = True
        else:
            # A stopped machine would go on costing its disk: what is preempted is deleted by the vendor itself.
            scheduling |= {"provisioningModel": "SPOT", "instanceTerminationAction": "DELETE"}
        return scheduling

    def _interface(self, region: str) -> dict[str, Any]:
        subnetwork = self._settings.subnetworks.get(region)
        interface: dict[str, Any] = {"subnetwork": subnetwork} if subnetwork else {"network": self._settings.network}
        if self._settings.external_address:
            interface["accessConfigs"] = [{"type": "ONE_TO_ONE_NAT", "name": "External NAT"}]
        return interface

    # --- its end -----------------------------------------------------------------------------------------------------

    def _more(self, request: LaunchRequest) -> bool:
        generation = self._generations.get(request.token, 0)
        self._generations[request.token] = generation + 1
        return generation < _GENERATIONS

    async def _take_back(self, requests: Sequence[LaunchRequest]) -> None:
        await asyncio.gather(*(self._end(r) for r in requests))

    async def _end(self, request: LaunchRequest) -> None:
        """Deletes a machine that nobody was told of; the request id of the delete says so, for ever."""
        name, zone = self._name(request), request.offer.zone
        try:
            deleting = await self._calls.call("instances", "delete", zone=zone, instance=name, request_id=_mark(name))
        except BadRequest as error:
            if code_of(error) not in GONE:
                raise
            # The insert whose answer was lost did not happen; should it yet, the sweep finds the machine.
            return
        self._generations[request.token] = self._generations.get(request.token, 0) + 1
        self._ended(name)
        # Until it is gone it has room in its pool, and costs.
        await _answered(self._calls.done(deleting))

    async def _was_taken_back(self, request: LaunchRequest, name: str) -> bool:
        """Whether the machine of a name ended before anybody was told of it; then the request is still open."""
        page = await self._calls.call(
            "zone_operations", "list", zone=request.offer.zone, filter=f'clientOperationId = "{_mark(name)}"'
        )
        return bool(page.get("items"))


def _mark(name: str) -> str:
    return naming.request_id(name, "taken back")


def _never(answer: Launched | ProviderError) -> bool:
    """Whether nothing can have started."""
    return isinstance(answer, ProviderError) and not isinstance(answer, Unreachable | Throttled)


async def _answered(call: Awaitable[Any]) -> Any:
    try:
        return await call
    except ProviderError as error:
        return error


def _script(request: LaunchRequest, boots_from_volume: bool) -> str:
    volume = "" if request.volume is None else "boot" if boots_from_volume else "data"
    try:
        return boot_script(request.user_data, volume=volume)
    except ValueError as error:
        raise BadRequest(str(error)) from error
