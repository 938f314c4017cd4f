"""Looks at machines that were just made: those that are waited for at the same time in one call."""

from __future__ import annotations

import asyncio

from everstep.model.errors import ProviderError, Unreachable
from everstep.model.ids import DeploymentId
from everstep.providers.gcp import naming
from everstep.providers.gcp.calls import NAMES_A_CALL, Calls, Json, filter_of_names

_GATHER_S = 0.02
"""Machines whose operations are seen to be done in one look are asked for within this time."""

_Waiting = dict[str, asyncio.Future[Json | None]]


class Looks:
    """Gets machines by name. A list may lack what it should have: what is missing in it is asked for by its name."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._waiting: dict[tuple[str, DeploymentId], _Waiting] = {}
        self._under_way: set[asyncio.Task[None]] = set()

    async def machine(self, zone: str, name: str, deployment: DeploymentId) -> Json | None:
        """The machine as REST has it; None if there is none. Raises a typed ProviderError."""
        key = (zone, deployment)
        if key not in self._waiting:
            self._waiting[key] = {}
            task = asyncio.create_task(self._together(key))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)
        future = self._waiting[key].setdefault(name, asyncio.get_running_loop().create_future())
        return await asyncio.shield(future)

    async def _together(self, key: tuple[str, DeploymentId]) -> None:
        await asyncio.sleep(_GATHER_S)
        waiting = self._waiting.pop(key)
        zone, deployment = key
        try:
            listed = await self._listed(zone, deployment, list(waiting)) if len(waiting) > 1 else {}
        except ProviderError as error:
            for future in waiting.values():
                future.set_exception(error)
                future.exception()  # it may be that nobody waits any more
            return
        except BaseException as error:
            for future in waiting.values():
                future.set_exception(Unreachable(f"instances in {zone}: {error!r}"))
                future.exception()
            raise
        for name, future in waiting.items():
            if name in listed:
                future.set_result(listed.pop(name))
        await asyncio.gather(*(self._alone(zone, name, f) for name, f in waiting.items() if not f.done()))

    async def _listed(self, zone: str, deployment: DeploymentId, names: list[str]) -> dict[str, Json]:
        wanted = filter_of_names(names) if len(names) <= NAMES_A_CALL else naming.filter_of(deployment)
        return {m["name"]: m for m in await self._calls.listed("instances", zone=zone, filter=wanted)}

    async def _alone(self, zone: str, name: str, future: asyncio.Future[Json | None]) -> None:
        try:
            future.set_result(await self._calls.one("instances", zone=zone, instance=name))
        except ProviderError as error:
            future.set_exception(error)
            future.exception()
