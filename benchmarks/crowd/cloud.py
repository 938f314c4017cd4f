"""The provider that the server under test loads: its machines are objects in the process of the crowd.

The crowd keeps the truth; this side mirrors it over a Unix socket (JSON lines), so that a server that was killed finds
its machines again. Plugged in through an entry point, like any provider of others.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from benchmarks.crowd import census
from everstep.model.causes import InstanceEnd
from everstep.model.ids import DeploymentId, InstanceId, JobId, LaunchToken, VolumeId
from everstep.model.offers import MachineType, Market, Offer
from everstep.ports import (
    HistoryPoint,
    HistoryQuery,
    Launched,
    LaunchRequest,
    Notice,
    OfferQuery,
    ProviderResource,
    ResourceKind,
    VolumeSpec,
)

ZONES = 8
TYPES = 4
_LISTED_S = 60.0
_PRICE_PERIOD_S = 10.0
_LINE_BYTES = 1 << 20


class Cloud:
    """Implements ``Provider``, ``SharedFolder`` and ``OnThisHost``.

    Args:
        path: socket of the crowd.
        poll_s: how often the server should look at the list of machines.
    """

    def __init__(self, path: str, poll_s: float = 1.0) -> None:
        self.name = "crowd"
        self.on_this_host = True
        self.poll_s = poll_s
        self._path = path
        self._machines: dict[str, ProviderResource] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._connecting = asyncio.Lock()
        self._following: asyncio.Task[None] | None = None
        census.install()

    # --- Provider ---------------------------------------------------------------------------------------------------

    async def offers(self, query: OfferQuery) -> Sequence[Offer]:
        """Every type in every zone, spot and on demand; the price of one zone moves every ten seconds."""
        turn = int(time.time() / _PRICE_PERIOD_S)
        return [
            _offer(z, t, m, turn) for z in range(ZONES) for t in range(TYPES) for m in (Market.SPOT, Market.ON_DEMAND)
        ]

    async def launch(
        self, requests: Sequence[LaunchRequest], *, all_or_nothing: bool
    ) -> Sequence[Launched | Exception]:
        """Always succeeds; the machine's agent joins a moment later."""
        writer = await self._connected()
        return [self._launch(writer, request) for request in requests]

    def _launch(self, writer: asyncio.StreamWriter, request: LaunchRequest) -> Launched:
        instance = f"i-{request.token[-20:]}"
        found = self._machines.get(instance)
        if found is None:
            machine = {
                "id": instance,
                "deployment": request.deployment,
                "job": request.job,
                "launch_no": request.launch_no,
                "token": request.token,
                "zone": request.offer.zone,
                "machine_type": request.offer.machine.name,
                "market": request.offer.market.value,
                "started_at": time.time(),
                "price_usd_per_h": request.offer.price_usd_per_h,
            }
            found = self._machines[instance] = _resource(machine)
            _tell(writer, {"launch": machine, "user_data": dict(request.user_data)})
        return Launched(request.token, InstanceId(instance), found.started_at, found.price_usd_per_h)

    async def resources(self, deployment: DeploymentId) -> Sequence[ProviderResource]:
        """All machines, ended ones for a minute."""
        await self._connected()
        horizon = time.time() - _LISTED_S
        gone = [r.id for r in self._machines.values() if r.ended_at is not None and r.ended_at < horizon]
        for instance in gone:
            del self._machines[instance]
        return list(self._machines.values())

    async def terminate(self, instances: Sequence[InstanceId]) -> None:
        """At once."""
        writer = await self._connected()
        for instance in instances:
            self._end(instance, time.time(), InstanceEnd.OWNER)
            _tell(writer, {"terminate": instance})

    async def ensure_volume(self, spec: VolumeSpec) -> VolumeId:
        """Never asked for: all machines of a zone share a folder."""
        raise NotImplementedError

    async def delete_volume(self, volume: VolumeId) -> None:
        """Never asked for."""

    async def notices(self, deployment: DeploymentId) -> Sequence[Notice]:
        """None: the agents tell them."""
        return ()

    async def history(self, query: HistoryQuery) -> Sequence[HistoryPoint]:
        """None is kept."""
        return ()

    def shared_folder(self, zone: str) -> str | None:
        """One for each zone."""
        return f"/shared/{zone}"

    # --- The crowd's side -------------------------------------------------------------------------------------------

    async def _connected(self) -> asyncio.StreamWriter:
        if self._writer is None:
            async with self._connecting:
                if self._writer is None:
                    reader, writer = await asyncio.open_unix_connection(self._path, limit=_LINE_BYTES)
                    while (line := await reader.readline()) != b"{}\n":
                        self._heard(json.loads(line))
                    self._following = asyncio.get_running_loop().create_task(self._follow(reader))
                    self._writer = writer
        return self._writer

    async def _follow(self, reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            self._heard(json.loads(line))

    def _heard(self, message: dict[str, Any]) -> None:
        if "machine" in message:
            self._machines[message["machine"]["id"]] = _resource(message["machine"])
        if "ended" in message:
            self._end(message["ended"], message["at"], InstanceEnd(message["end"]))

    def _end(self, instance: str, at: float, end: InstanceEnd) -> None:
        machine = self._machines.get(instance)
        if machine is not None and machine.alive:
            self._machines[instance] = replace(machine, alive=False, ended_at=at, end=end)


def _tell(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    writer.write(json.dumps(message).encode() + b"\n")


def _resource(m: dict[str, Any]) -> ProviderResource:
    return ProviderResource(
        kind=ResourceKind.INSTANCE,
        id=m["id"],
        deployment=DeploymentId(m["deployment"]),
        job=JobId(m["job"]),
        launch_no=m["launch_no"],
        token=LaunchToken(m["token"]),
        zone=m["zone"],
        machine_type=m["machine_type"],
        market=Market(m["market"]),
        alive=True,
        started_at=m["started_at"],
        price_usd_per_h=m["price_usd_per_h"],
    )


def machine_type(number: int) -> str:
    """Name of a machine type; a job asks for one."""
    return f"m{number % TYPES}"


def _offer(zone: int, kind: int, market: Market, turn: int) -> Offer:
    wobble = (turn // ZONES % 5) * 0.01 if zone == turn % ZONES else 0.0
    price = 1.0 + 0.01 * zone + wobble if market is Market.SPOT else 3.0
    machine = MachineType(machine_type(kind), "V100", kind + 1, 8, 61)
    return Offer("crowd", "here", f"here-{zone}", machine, market, price, 3.0, 0.0, "made up", notice_s=2.0)
