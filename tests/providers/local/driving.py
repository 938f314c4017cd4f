"""Short words for tests that drive a real box."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from everstep.model.ids import DeploymentId, InstanceId, JobId, LaunchToken, VolumeId
from everstep.model.offers import Market, Offer
from everstep.ports import Launched, LaunchRequest, OfferQuery, ProviderResource
from everstep.providers.local import LocalProvider
from everstep.providers.local.machines import INSTANCE_MARK, box_mark
from everstep.providers.local.processes import ProcessKey, lookup, members

DEPLOYMENT = DeploymentId("d")
JOB = JobId("j")
PATIENCE_S = 20.0


async def offer(box: LocalProvider, zone: str = "z-a", market: Market = Market.SPOT) -> Offer:
    (found,) = [o for o in await box.offers(OfferQuery()) if o.zone == zone and o.market == market]
    return found


def request(wanted: Offer, number: int = 1, volume: VolumeId | None = None, **user_data: str) -> LaunchRequest:
    return LaunchRequest(
        LaunchToken(f"t{number}"), DEPLOYMENT, JOB, number, wanted, None, {"EVERSTEP_TOKEN": "x", **user_data}, volume
    )


async def launch(box: LocalProvider, *requests: LaunchRequest) -> list[InstanceId]:
    answers = await box.launch(requests, all_or_nothing=True)
    return [a.instance for a in answers if isinstance(a, Launched)]


async def start(box: LocalProvider, number: int = 1, volume: VolumeId | None = None, **user_data: str) -> InstanceId:
    """One spot machine, its stand-in agent ready."""
    (instance,) = await launch(box, request(await offer(box), number, volume, **user_data))
    await until(lambda: (root(box, instance) / "env").exists())
    return instance


def root(box: LocalProvider, instance: str) -> Path:
    return box.home / "instances" / instance / "root"


def agent_env(box: LocalProvider, instance: str) -> dict[str, str]:
    lines = (root(box, instance) / "env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines)


async def row(box: LocalProvider, instance: str) -> dict[str, Any]:
    status = await box.status()
    (found,) = [r for r in status["instances"] if r["id"] == instance]
    return dict(found)


async def processes_of(box: LocalProvider, instance: str) -> set[ProcessKey]:
    """Every process of an instance, its init too."""
    init = lookup((await row(box, instance))["pid"])
    needle = f"{INSTANCE_MARK}={box_mark(box.home)}/{instance}"
    return members(init.key if init else None, needle) | ({init.key} if init else set())


async def resource(box: LocalProvider, instance: str) -> ProviderResource:
    (found,) = [r for r in await box.resources(DEPLOYMENT) if r.id == instance]
    return found


async def until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not done():
            await asyncio.sleep(0.005)


async def until_ended(box: LocalProvider, instance: str) -> ProviderResource:
    async with asyncio.timeout(PATIENCE_S):
        while (found := await resource(box, instance)).alive:
            await asyncio.sleep(0.01)
    return found
