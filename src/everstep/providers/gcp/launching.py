"""Starting machines, each idempotent by its name and the request id of its call.

Several that are alike are made by one ``instances.bulkInsert`` (``bulk.py`` says which), all others by an
``instances.insert`` each. A gang that goes into one call is all or nothing by the vendor; one that does not (its
machines have disks, or are more than a call makes) by taking back what was started. A stock-out is told by the
operation, within seconds, while the others wait for theirs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from typing import TypeVar

from everstep.model.errors import BadRequest, PriceAboveMax, ProviderError, Throttled, Unreachable
from everstep.model.ids import InstanceId
from everstep.model.offers import Market
from everstep.ports import Launched, LaunchRequest
from everstep.providers.gcp import bulk, naming
from everstep.providers.gcp.blueprint import Blueprint
from everstep.providers.gcp.calls import Calls, Json
from everstep.providers.gcp.disks import Disks
from everstep.providers.gcp.errors import GONE, THERE, Said, code_of
from everstep.providers.gcp.groups import Groups
from everstep.providers.gcp.looks import Looks
from everstep.providers.gcp.market import GceMarket, instant, region_of
from everstep.providers.gcp.settings import Settings

T = TypeVar("T")
_GENERATIONS = 10
_ASKED_AT_ONCE = 8
"""So many inserts of one launch are under way: half of the threads, so that looks and ends need not wait for them."""


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
        self._bulk = bulk.Bulk(calls)
        self._blueprint = Blueprint(settings)
        # How often the machine of a token was taken back: the next one needs a name of its own.
        self._generations: dict[str, int] = {}
        # How often an insert of a name came to nothing: the vendor answers a known request id with what it did then.
        self._failures: dict[str, int] = {}

    async def launch(
        self, requests: Sequence[LaunchRequest], *, all_or_nothing: bool
    ) -> Sequence[Launched | Exception]:
        """See ``Provider.launch``. Of several for one pool that has no room for all, any may be served."""
        turn = asyncio.Semaphore(_ASKED_AT_ONCE)
        answers: list[Launched | ProviderError] = [Unreachable("not asked yet")] * len(requests)

        async def serve(indices: Sequence[int]) -> None:
            some = [requests[index] for index in indices]
            found = await self._started_together(some, len(some) if all_or_nothing else 1, turn)
            for index, answer in zip(indices, found, strict=True):
                answers[index] = answer

        await asyncio.gather(*(serve(indices) for indices in self._calls_for(requests)))
        failures = [a for a in answers if isinstance(a, ProviderError)]
        if not failures or not all_or_nothing:
            return answers
        final = [e for e in failures if not isinstance(e, Unreachable | Throttled)]
        if not final:
            raise failures[0]  # may still succeed: the same call again finds what has started
        await self._take_back([r for r, a in zip(requests, answers, strict=True) if not _never(a)])
        raise final[0]

    # --- many machines -----------------------------------------------------------------------------------------------

    def _calls_for(self, requests: Sequence[LaunchRequest]) -> list[list[int]]:
        """Indices of requests, those that one call makes together."""
        together: dict[Hashable, list[int]] = {}
        names: set[str] = set()
        for index, request in enumerate(requests):
            name = self._name(request)
            fresh = not (self._failures.get(name) or self._generations.get(request.token) or name in names)
            names.add(name)
            key = bulk.alike(request) if fresh else None
            together.setdefault(index if key is None else key, []).append(index)
        return [alike[at : at + bulk.MOST] for alike in together.values() for at in range(0, len(alike), bulk.MOST)]

    async def _started_together(
        self, requests: Sequence[LaunchRequest], least: int, turn: asyncio.Semaphore
    ) -> list[Launched | ProviderError]:
        """Of one call, in the order of the requests; fewer than ``least`` it does not make."""
        if len(requests) == 1:
            return [await _answered(self._start(requests[0], turn))]
        first, named = requests[0], {self._name(r): r for r in requests}
        async with self._groups.of(first) as group:
            answers = await self._made_together(named, least, group)

            async def settled(request: LaunchRequest, answer: Launched | ProviderError) -> Launched | ProviderError:
                # A call of its own finds a machine that is there already, and does without a group that is refused.
                try:
                    alone = isinstance(answer, ProviderError) and (
                        code_of(answer) in THERE or self._groups.goes_without(request, group, answer)
                    )
                except ProviderError as error:
                    return error
                return await _answered(self._start(request, turn)) if alone else answer

            return list(await asyncio.gather(*(settled(r, a) for r, a in zip(requests, answers, strict=True))))

    async def _made_together(
        self, named: Mapping[str, LaunchRequest], least: int, group: str
    ) -> list[Launched | ProviderError]:
        first = next(iter(named.values()))
        try:
            await self._check(first)
            properties = self._blueprint.properties(named, group=group)
            made = await self._bulk.make(first.offer.zone, named, properties, least=least)
        except ProviderError as error:
            return [error] * len(named)
        if made.failure is not None:
            for name in named:
                self._failures[name] = self._failures.get(name, 0) + 1
            return [made.failure] * len(named)
        waits = (_answered(self._wait(r, group, made.operations[name])) for name, r in named.items())
        return list(await asyncio.gather(*waits))

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
        await self._check(request)
        zone, name = request.offer.zone, self._name(request)
        disk = None if request.volume is None else await self._disks.ready_for(request)
        resource = self._blueprint.instance(request, name, disk=disk, group=group)
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
            self._started(request, launched)  # also one that has ended since: the list is to tell when, and why
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

    async def _check(self, request: LaunchRequest) -> None:
        """Raises for a zone that is not ours, and for a price above the maximum.

        Spot machines have no maximum price at this vendor: the price in force decides.
        """
        zone, most = request.offer.zone, request.max_price_usd_per_h
        if region_of(zone) not in self._settings.regions:
            known = ", ".join(self._settings.regions)
            raise BadRequest(f"zone {zone!r} is in none of the configured regions ({known})")
        if request.offer.market is not Market.SPOT or most is None:
            return
        price = await self._market.spot_usd_per_h(request.offer.zone, request.offer.machine)
        price = request.offer.price_usd_per_h if price is None else price
        if price > most:
            raise PriceAboveMax(
                f"spot costs ${price:.6f} an hour in {request.offer.zone}, at most ${most:.6f} is allowed"
            )

    def _name(self, request: LaunchRequest) -> str:
        return naming.machine_name(request, self._generations.get(request.token, 0))

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


async def _answered(call: Awaitable[T]) -> T | ProviderError:
    try:
        return await call
    except ProviderError as error:
        return error
