"""Starting machines: one ``RunInstances`` per machine, idempotent by its token."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from everstep.model.errors import BadRequest, NoCapacity, ProviderError, Throttled, Unreachable
from everstep.model.ids import InstanceId
from everstep.model.offers import Market, Pool
from everstep.ports import Launched, LaunchRequest
from everstep.providers.aws import tags
from everstep.providers.aws.calls import Calls
from everstep.providers.aws.errors import code_of
from everstep.providers.aws.groups import UNKNOWN, Groups
from everstep.providers.aws.market import VOLUME_TYPE, region_of
from everstep.providers.aws.settings import Settings
from everstep.providers.aws.user_data import boot_script
from everstep.providers.aws.volumes import Volumes

_VISIBLE_TRIES = 8
_GENERATIONS = 20


class Launching:
    """Starts machines, attaches their disks, takes back what an incomplete gang left."""

    def __init__(
        self,
        calls: Calls,
        settings: Settings,
        volumes: Volumes,
        groups: Groups,
        *,
        terminate: Callable[[Sequence[InstanceId]], Awaitable[None]],
        started: Callable[[LaunchRequest, Launched], None],
        taken_back: Callable[[InstanceId], None],
        look_s: float,
    ) -> None:
        """Args: started, taken_back: told of every machine at once; look_s: between two looks at one that boots."""
        self._calls = calls
        self._settings = settings
        self._volumes = volumes
        self._groups = groups
        self._terminate = terminate
        self._started = started
        self._taken_back = taken_back
        self._look_s = look_s
        # How often the machine of a token was taken back: the next try needs a token of its own.
        self._generations: dict[str, int] = {}

    async def launch(
        self, requests: Sequence[LaunchRequest], *, all_or_nothing: bool
    ) -> Sequence[Launched | Exception]:
        """See ``Provider.launch``. In one pool the first request is served first: what is left may not do for all."""
        answers: list[Launched | ProviderError] = [Unreachable("not asked yet")] * len(requests)
        pools: dict[Pool, list[int]] = {}
        for index, request in enumerate(requests):
            pools.setdefault(request.offer.pool, []).append(index)

        async def serve(indices: list[int]) -> None:
            # One after the other costs little: EC2 refills two RunInstances per second in any case.
            for index in indices:
                answers[index] = await _answered(self._start(requests[index]))

        await asyncio.gather(*(serve(indices) for indices in pools.values()))
        if not (all_or_nothing and any(isinstance(a, ProviderError) for a in answers)):
            pairs = zip(requests, answers, strict=True)
            answers = list(await asyncio.gather(*(self._finish(r, a) for r, a in pairs)))
        failures = [a for a in answers if isinstance(a, ProviderError)]
        if not failures or not all_or_nothing:
            return answers
        final = [e for e in failures if not isinstance(e, Unreachable | Throttled)]
        if not final:
            raise failures[0]  # may still succeed: the same call again finds what has started
        made = [(r, a.instance) for r, a in zip(requests, answers, strict=True) if isinstance(a, Launched)]
        for request, answer in zip(requests, answers, strict=True):
            if isinstance(answer, Unreachable):
                found = await self._of_token(region_of(request.offer.zone), self._token(request))
                made += [] if found is None else [(request, InstanceId(found["InstanceId"]))]
        await self._take_back(made)
        raise final[0]

    # --- one machine -------------------------------------------------------------------------------------------------

    async def _start(self, request: LaunchRequest) -> Launched:
        region = region_of(request.offer.zone)
        if region not in self._settings.regions:
            known = ", ".join(self._settings.regions)
            raise BadRequest(f"zone {request.offer.zone!r} is in none of the configured regions ({known})")
        if request.volume is not None:
            await self._volumes.ready_for(region, request)
        instance = await self._run(region, request)
        launched = Launched(
            request.token,
            InstanceId(instance["InstanceId"]),
            instance["LaunchTime"].timestamp(),
            request.offer.price_usd_per_h,
        )
        self._started(request, launched)
        return launched

    async def _finish(self, request: LaunchRequest, answer: Launched | ProviderError) -> Launched | ProviderError:
        if request.volume is None or isinstance(answer, ProviderError):
            return answer
        return await _answered(self._with_disk(region_of(request.offer.zone), request, answer))

    async def _run(self, region: str, request: LaunchRequest) -> dict[str, Any]:
        while True:
            found = await self._run_once(region, request)
            generation = self._generations.get(request.token, 0)
            # Taken back before anybody was told of it: the request is still open, under a token of its own.
            if tags.VOID not in tags.of(found) or generation >= _GENERATIONS:
                return found
            self._generations[request.token] = generation + 1

    async def _run_once(self, region: str, request: LaunchRequest) -> dict[str, Any]:
        """The machine of the token. Of one that has ended EC2 answers with its state, or refuses the token."""
        async with self._groups.of(request) as group:
            return await self._run_in(region, request, group)

    async def _run_in(self, region: str, request: LaunchRequest, group: str) -> dict[str, Any]:
        parameters = self._parameters(region, request)
        if group:
            parameters["Placement"] = {**parameters.get("Placement", {}), "GroupName": group}
        try:
            answer = await self._calls.ec2(region, "run_instances", **parameters)
            instance: dict[str, Any] = answer["Instances"][0]
            if instance["State"]["Name"] not in ("shutting-down", "terminated"):
                return instance
            return await self._of_token(region, str(parameters["ClientToken"])) or instance
        except BadRequest as error:
            if code_of(error) == UNKNOWN:
                # Not shown yet, or deleted since: the same call again makes it, and then the machine.
                self._groups.forget(region, group)
                raise Throttled(str(error), retry_after_s=self._look_s) from error
            if code_of(error) not in ("IdempotentInstanceTerminated", "IdempotentParameterMismatch"):
                raise
            found = await self._of_token(region, str(parameters["ClientToken"]))
            if found is None or not tags.same(found, request):
                raise
            # The machine of this very request: it has ended since, or the server's address changed in between.
            return found

    async def _of_token(self, region: str, token: str) -> dict[str, Any] | None:
        """The machine that was started with a client token, once it shows."""
        for _ in range(_VISIBLE_TRIES):
            reservations = await self._calls.pages(
                region, "describe_instances", "Reservations", Filters=[{"Name": "client-token", "Values": [token]}]
            )
            for reservation in reservations:
                for instance in reservation["Instances"]:
                    found: dict[str, Any] = instance
                    return found
            await asyncio.sleep(self._look_s)
        return None

    def _token(self, request: LaunchRequest) -> str:
        generation = self._generations.get(request.token, 0)
        return request.token if generation == 0 else f"{request.token}-{generation}"

    def _parameters(self, region: str, request: LaunchRequest) -> dict[str, Any]:
        offer = request.offer
        image = self._settings.gpu_image if offer.machine.accelerator else self._settings.cpu_image
        parameters: dict[str, Any] = {
            "ClientToken": self._token(request),
            "ImageId": image,
            "InstanceType": offer.machine.name,
            "MinCount": 1,
            "MaxCount": 1,
            "UserData": _script(request.user_data, request.volume),
            # A machine that shuts itself down must not go on costing its disk.
            "InstanceInitiatedShutdownBehavior": "terminate",
            "MetadataOptions": {"HttpTokens": "required", "HttpEndpoint": "enabled", "HttpPutResponseHopLimit": 2},
            "TagSpecifications": tags.specifications(request),
        }
        subnet = self._settings.subnets.get(offer.zone)
        if subnet is None:
            parameters["Placement"] = {"AvailabilityZone": offer.zone}
        else:
            parameters["SubnetId"] = subnet
        groups = self._settings.security_groups.get(region)
        if groups:
            parameters["SecurityGroupIds"] = list(groups)
        size = self._settings.boot_disk_gib if request.disk_gib is None else _whole_gib(request.disk_gib)
        disk = {"VolumeSize": size, "VolumeType": VOLUME_TYPE, "DeleteOnTermination": True}
        parameters["BlockDeviceMappings"] = [{"DeviceName": self._settings.root_device, "Ebs": disk}]
        if offer.market is Market.SPOT:
            options: dict[str, Any] = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
            if request.max_price_usd_per_h is not None:
                options["MaxPrice"] = f"{request.max_price_usd_per_h:.6f}"
            parameters["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": options}
        return parameters

    # --- its disk, and its end ---------------------------------------------------------------------------------------

    async def _with_disk(self, region: str, request: LaunchRequest, launched: Launched) -> Launched:
        """Waits until the machine runs and attaches the disk; a machine that cannot have it is taken back."""
        assert request.volume is not None
        try:
            state = await self._volumes.attach_when_running(region, request.volume, launched.instance)
        except (Unreachable, Throttled):
            raise  # the same call again finds the machine by its token and goes on from there
        except ProviderError:
            await self._take_back([(request, launched.instance)])
            raise
        if state == "Server.InsufficientInstanceCapacity":
            raise NoCapacity(f"{launched.instance} ended while it was started: {state}")
        return launched

    async def _take_back(self, made: Sequence[tuple[LaunchRequest, InstanceId]]) -> None:
        if not made:
            return
        # Marked, so that a repeat after a crash does not take the dead machine for its answer.
        for _, instance in made:
            self._taken_back(instance)
        unmarked = [(r, i) for r, i in made if not await self._mark(r, i)]
        for request, _ in made:
            self._generations[request.token] = self._generations.get(request.token, 0) + 1
        try:
            await self._terminate([instance for _, instance in made])
        finally:
            for request, instance in unmarked:  # was not visible yet; by now it may be
                await self._mark(request, instance)

    async def _mark(self, request: LaunchRequest, instance: InstanceId) -> bool:
        mark = [{"Key": tags.VOID, "Value": "1"}]
        try:
            await self._calls.ec2(region_of(request.offer.zone), "create_tags", Resources=[instance], Tags=mark)
        except ProviderError:
            return False
        return True


async def _answered(call: Awaitable[Launched]) -> Launched | ProviderError:
    try:
        return await call
    except ProviderError as error:
        return error


def _script(boot: Mapping[str, str], volume: str | None) -> str:
    try:
        return boot_script(boot, volume=volume)
    except ValueError as error:
        raise BadRequest(str(error)) from error


def _whole_gib(gib: float) -> int:
    return max(int(-(-gib // 1)), 1)
