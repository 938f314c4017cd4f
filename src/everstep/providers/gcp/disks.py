"""Disks that outlive their machines, found again by their names and labels.

The vendor keeps names unique in a zone, so a disk that is asked for twice is made once. Its id here is the name and the
vendor's number, ``ev-0123.987``: a name can be used again, a number is not.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from everstep.model.errors import BadRequest, Throttled
from everstep.model.ids import VolumeId
from everstep.ports import LaunchRequest, VolumeSpec
from everstep.providers.gcp import naming
from everstep.providers.gcp.calls import Calls, Json
from everstep.providers.gcp.errors import GONE, IN_USE, THERE, code_of
from everstep.providers.gcp.market import region_of
from everstep.providers.gcp.settings import Settings

_GOING = ("STOPPING", "STOPPED", "TERMINATED", "PENDING_STOP", "DEPROVISIONING")
_JUST_MADE_S = 30.0
_PATIENCE_S = 300.0
"""How long a machine may take to let go of its disk."""


class Disks:
    """Makes and deletes disks."""

    def __init__(
        self, calls: Calls, settings: Settings, *, look_s: float, now: Callable[[], float] = time.time
    ) -> None:
        """Args: look_s: between two looks at something that changes; now: UTC seconds."""
        self._calls = calls
        self._settings = settings
        self._look_s = look_s
        self._now = now
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._zone_of: dict[str, str] = {}
        self._made: dict[str, tuple[float, Json]] = {}

    def recent(self, asked_at: float) -> list[Json]:
        """Disks made a moment ago, which lists that were asked for at that instant (UTC seconds) may not show."""
        return [disk for at, disk in self._made.values() if asked_at - at < _JUST_MADE_S]

    def seen(self, disk: Json) -> None:
        """Remembers where a disk is."""
        self._zone_of[disk["name"]] = naming.last(disk["zone"])

    # --- to have and to delete ---------------------------------------------------------------------------------------

    async def ensure(self, spec: VolumeSpec) -> VolumeId:
        """See ``Provider.ensure_volume``; names are per deployment and zone."""
        if region_of(spec.zone) not in self._settings.regions:
            known = ", ".join(self._settings.regions)
            raise BadRequest(f"zone {spec.zone!r} is in none of the configured regions ({known})")
        name = naming.disk_name(spec)
        async with self._locks[f"{spec.zone}/{name}"]:
            disk = await self._get(spec.zone, name) or await self._create(spec, name)
            self.seen(disk)
            return id_of(disk)

    async def _create(self, spec: VolumeSpec, name: str) -> Json:
        size_gib = max(int(-(-spec.size_gib // 1)), 1)
        resource: dict[str, Any] = {
            "name": name,
            "description": f"everstep {spec.name}",
            "type": f"zones/{spec.zone}/diskTypes/{self._settings.disk_type}",
            "labels": naming.of_volume(spec),
        }
        if self._settings.keep == "boot_disk":
            # It must fit what it boots from, and the size that was asked for is that of the data.
            resource["sourceImage"] = self._settings.gpu_image
            size_gib += await self._image_gib(self._settings.gpu_image)
        resource["sizeGb"] = str(size_gib)
        try:
            # Without a request id: the name is what makes a repeat harmless.
            operation = await self._calls.call("disks", "insert", ("disk_resource", resource), zone=spec.zone)
            await self._calls.done(operation)
        except BadRequest as error:
            if code_of(error) not in THERE:
                raise
        made = await self._get(spec.zone, name)
        if made is None:
            raise Throttled(f"disk {name} was made and is not shown", retry_after_s=10.0)
        self._made[name] = (self._now(), made)
        return made

    async def _image_gib(self, image: str) -> int:
        parts = image.split("/")
        project, family = parts[parts.index("projects") + 1], parts[-1]
        if "family" not in parts:
            return 50
        found = await self._calls.call("images", "get_from_family", project=project, family=family)
        return int(found.get("diskSizeGb", 50))

    async def delete(self, volume: VolumeId) -> None:
        """See ``Provider.delete_volume``; waits for a machine that is going to let go of it."""
        name, number = parted(volume)
        zone = await self._zone(name)
        if zone is None:
            return
        deadline = self._now() + _PATIENCE_S
        while True:
            disk = await self._get(zone, name)
            if disk is None or (number and disk["id"] != number):
                self._made.pop(name, None)
                return  # gone, or another of the same name
            try:
                await self._calls.done(await self._calls.call("disks", "delete", zone=zone, disk=name))
                self._made.pop(name, None)
                return
            except BadRequest as error:
                if code_of(error) in GONE:
                    continue
                if code_of(error) not in IN_USE or not await self._is_let_go(zone, disk):
                    raise
                if self._now() > deadline:
                    raise Throttled(f"{volume} is still attached: {error}", retry_after_s=10.0) from error
            await asyncio.sleep(self._look_s)

    # --- with machines -----------------------------------------------------------------------------------------------

    async def ready_for(self, request: LaunchRequest) -> str:
        """Name of the request's disk, once it can be attached; BadRequest if it never can."""
        assert request.volume is not None
        name, number = parted(request.volume)
        zone = request.offer.zone
        where = await self._zone(name)
        if where is not None and where != zone:
            raise BadRequest(f"disk {request.volume} is in {where}, the machine in {zone}")
        deadline = self._now() + _PATIENCE_S
        while True:
            disk = await self._get(zone, name)
            if disk is None or (number and disk["id"] != number):
                raise BadRequest(f"there is no disk {request.volume} in {zone}")
            holder = next((naming.last(u) for u in disk.get("users", [])), None)
            if holder is None:
                return name
            machine = await self._machine(zone, holder)
            if machine is not None and naming.of(machine).get(naming.TOKEN) == naming.of_launch(request)[naming.TOKEN]:
                return name  # a repeat of the launch that attached it
            if machine is not None and machine["status"] not in _GOING:
                raise BadRequest(f"disk {request.volume} is attached to {holder}")
            if self._now() > deadline:
                raise Throttled(f"disk {request.volume} is still attached to {holder}", retry_after_s=10.0)
            await asyncio.sleep(self._look_s)

    # --- looking -----------------------------------------------------------------------------------------------------

    async def _zone(self, name: str) -> str | None:
        if name not in self._zone_of:
            for disk in await self._calls.everything("disks", "disks", filter=f'name = "{name}"'):
                self.seen(disk)
        return self._zone_of.get(name)

    async def _is_let_go(self, zone: str, disk: Json) -> bool:
        """Whether the machine that has it is on its way out, or has let go meanwhile."""
        users = [naming.last(u) for u in disk.get("users", [])]
        machines = [await self._machine(zone, user) for user in users]
        return all(m is None or m["status"] in _GOING for m in machines)

    async def _get(self, zone: str, name: str) -> Json | None:
        return await self._calls.one("disks", zone=zone, disk=name)

    async def _machine(self, zone: str, name: str) -> Json | None:
        return await self._calls.one("instances", zone=zone, instance=name)


def id_of(disk: Json) -> VolumeId:
    """Name and number."""
    return VolumeId(f"{disk['name']}.{disk['id']}")


def parted(volume: str) -> tuple[str, str]:
    """Name and number of a disk; the number is empty where there is none."""
    name, _, number = volume.partition(".")
    return name, number
