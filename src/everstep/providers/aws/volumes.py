"""Disks that outlive their machines: EBS volumes, found again by their tags."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from everstep.model.errors import BadRequest, NoCapacity, Throttled
from everstep.model.ids import InstanceId, VolumeId
from everstep.ports import LaunchRequest, VolumeSpec
from everstep.providers.aws import tags
from everstep.providers.aws.calls import Calls
from everstep.providers.aws.errors import GONE, code_of
from everstep.providers.aws.market import VOLUME_TYPE, region_of

DEVICE = "/dev/sdf"
"""https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/device_naming.html: the first one recommended for data."""
_THERE = ("creating", "available", "in-use")
_GOING = ("shutting-down", "terminated")
_JUST_MADE_S = 30.0
_PATIENCE_S = 300.0
"""How long a machine may take to run, or to let go of its disk."""
_GENERATIONS = 20


class Volumes:
    """Makes, attaches and deletes volumes."""

    def __init__(
        self, calls: Calls, regions: tuple[str, ...], *, look_s: float, now: Callable[[], float] = time.time
    ) -> None:
        """Args: look_s: between two looks at something that changes; now: UTC seconds."""
        self._calls = calls
        self._regions = regions
        self._look_s = look_s
        self._now = now
        self._locks: defaultdict[tuple[str, str, str], asyncio.Lock] = defaultdict(asyncio.Lock)
        self._generations: defaultdict[tuple[str, str, str], int] = defaultdict(int)
        self._made: dict[tuple[str, str, str], dict[str, Any]] = {}
        self._region_of: dict[str, str] = {}

    def recent(self, at: float | None = None) -> list[dict[str, Any]]:
        """Volumes made a moment ago, which the vendor's list of ``at`` (UTC seconds; now) may not show yet."""
        return [v for v in self._made.values() if self._is_new(v, at)]

    # --- to have and to delete ---------------------------------------------------------------------------------------

    async def ensure(self, spec: VolumeSpec) -> VolumeId:
        """See ``Provider.ensure_volume``; names are per deployment and zone."""
        region = region_of(spec.zone)
        if region not in self._regions:
            raise BadRequest(f"zone {spec.zone!r} is in none of the configured regions ({', '.join(self._regions)})")
        key = (spec.deployment, spec.name, spec.zone)
        async with self._locks[key]:
            filters = [
                *tags.filters(spec.deployment),
                {"Name": f"tag:{tags.VOLUME}", "Values": [spec.name]},
                {"Name": "availability-zone", "Values": [spec.zone]},
            ]
            listed = await self._calls.pages(region, "describe_volumes", "Volumes", Filters=filters)
            # In the values of filters * and ? stand for any text; in the name of a disk they stand for themselves.
            ours = (v for v in listed if v["State"] in _THERE and tags.of(v).get(tags.VOLUME) == spec.name)
            there = sorted(ours, key=lambda v: (v["CreateTime"], v["VolumeId"]))
            made = self._made.get(key)
            if not there and made is not None and self._is_new(made):
                there = [made]
            volume = there[0] if there else await self._create(region, spec, key)
            self._region_of[volume["VolumeId"]] = region
            return VolumeId(volume["VolumeId"])

    async def delete(self, volume: VolumeId) -> None:
        """See ``Provider.delete_volume``; waits for a machine that is going to let go of it."""
        known = self._region_of.get(volume)
        for region in (known,) if known else self._regions:
            await self._delete_in(region, volume)
        for key, made in list(self._made.items()):
            if made["VolumeId"] == volume:
                del self._made[key]
                self._generations[key] += 1

    async def _create(self, region: str, spec: VolumeSpec, key: tuple[str, str, str]) -> dict[str, Any]:
        size_gib = max(int(-(-spec.size_gib // 1)), 1)
        while True:
            text = "\x1f".join((*key, str(size_gib), str(self._generations[key])))
            made = await self._calls.ec2(
                region,
                "create_volume",
                ClientToken="ev" + hashlib.sha256(text.encode()).hexdigest()[:48],
                AvailabilityZone=spec.zone,
                Size=size_gib,
                VolumeType=VOLUME_TYPE,
                TagSpecifications=[tags.specification("volume", tags.of_volume(spec))],
            )
            # A token that was used before answers with the volume of then, which may be deleted by now.
            if self._is_new(made) or await self._is_there(region, made["VolumeId"]):
                self._made[key] = made
                return made
            self._generations[key] += 1
            if self._generations[key] > _GENERATIONS:
                raise Throttled(f"disk {spec.name!r}: EC2 still answers with deleted volumes", retry_after_s=60.0)

    async def _delete_in(self, region: str, volume: VolumeId) -> None:
        deadline = self._now() + _PATIENCE_S
        while True:
            try:
                await self._calls.ec2(region, "delete_volume", VolumeId=volume)
                return
            except BadRequest as error:
                if code_of(error) in GONE:
                    # Of a disk made a moment ago it means "not yet": to believe it would leave the disk behind.
                    if not any(v["VolumeId"] == volume for v in self.recent()):
                        return
                elif code_of(error) != "VolumeInUse" or not await self._is_let_go(region, volume):
                    raise
                if self._now() > deadline:
                    raise Throttled(f"{volume} is still attached: {error}", retry_after_s=10.0) from error
            await asyncio.sleep(self._look_s)

    # --- with machines -----------------------------------------------------------------------------------------------

    async def ready_for(self, region: str, request: LaunchRequest) -> None:
        """Returns when the request's disk can be attached; BadRequest if it never can."""
        assert request.volume is not None
        deadline = self._now() + _PATIENCE_S
        while True:
            volume = await self._describe(region, request.volume)
            if volume is None:
                raise BadRequest(f"there is no disk {request.volume} in {region}")
            if volume["AvailabilityZone"] != request.offer.zone:
                where = volume["AvailabilityZone"]
                raise BadRequest(f"disk {request.volume} is in {where}, the machine in {request.offer.zone}")
            holder = _holder(volume)
            if volume["State"] == "available" or holder is None:
                return
            machine = await self._machine(region, holder)
            if machine is not None and tags.of(machine).get(tags.TOKEN) == request.token:
                return  # a repeat of the launch that attached it
            if machine is not None and machine["State"]["Name"] not in _GOING:
                raise BadRequest(f"disk {request.volume} is attached to {holder}")
            if self._now() > deadline:
                raise Throttled(f"disk {request.volume} is still attached to {holder}", retry_after_s=10.0)
            await asyncio.sleep(self._look_s)

    async def attach_when_running(self, region: str, volume: VolumeId, instance: InstanceId) -> str:
        """Attaches as soon as the machine runs. Returns the vendor's reason if it ended instead, else an empty text.

        Raises:
            BadRequest: another machine was faster. NoCapacity: it does not get to run.
        """
        deadline = self._now() + _PATIENCE_S
        while True:
            machine = await self._machine(region, instance)
            state = "pending" if machine is None else machine["State"]["Name"]
            if machine is not None and state in (*_GOING, "stopping", "stopped"):
                return str(machine.get("StateReason", {}).get("Code", "")) or state
            if state == "running":
                try:
                    await self._calls.ec2(region, "attach_volume", VolumeId=volume, InstanceId=instance, Device=DEVICE)
                    return ""
                except BadRequest as error:
                    described = await self._describe(region, volume)
                    if described is not None and _holder(described) == instance:
                        return ""
                    if code_of(error) not in ("IncorrectState", "IncorrectInstanceState", *GONE):
                        raise
            if self._now() > deadline:
                raise NoCapacity(f"{instance} does not run after {_PATIENCE_S:.0f} s")
            await asyncio.sleep(self._look_s)

    # --- looking -----------------------------------------------------------------------------------------------------

    def _is_new(self, volume: dict[str, Any], at: float | None = None) -> bool:
        at = self._now() if at is None else at
        return at - float(volume["CreateTime"].timestamp()) < _JUST_MADE_S

    async def _is_there(self, region: str, volume: str) -> bool:
        described = await self._describe(region, VolumeId(volume))
        return described is not None and described["State"] in _THERE

    async def _is_let_go(self, region: str, volume: VolumeId) -> bool:
        """Whether the machine that has it is on its way out, or has let go meanwhile."""
        described = await self._describe(region, volume)
        holder = None if described is None else _holder(described)
        if holder is None:
            return True
        machine = await self._machine(region, holder)
        return machine is None or machine["State"]["Name"] in _GOING

    async def _describe(self, region: str, volume: VolumeId) -> dict[str, Any] | None:
        made = next((v for v in self.recent() if v["VolumeId"] == volume), None)
        try:
            answer = await self._calls.ec2(region, "describe_volumes", VolumeIds=[volume])
        except BadRequest as error:
            if code_of(error) in GONE:
                return made
            raise
        return next(iter(answer["Volumes"]), made)

    async def _machine(self, region: str, instance: str) -> dict[str, Any] | None:
        try:
            answer = await self._calls.ec2(region, "describe_instances", InstanceIds=[instance])
        except BadRequest as error:
            if code_of(error) in GONE:
                return None
            raise
        return next((i for r in answer["Reservations"] for i in r["Instances"]), None)


def _holder(volume: dict[str, Any]) -> str | None:
    held = [
        a["InstanceId"] for a in volume.get("Attachments", []) if a.get("State") in ("attaching", "attached", "busy")
    ]
    return held[0] if held else None
