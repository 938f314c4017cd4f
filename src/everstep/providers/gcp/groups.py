"""Compact placement policies: the machines of a gang close together, in one zone.

One policy per job, zone and machine type, made when the first machine needs it and deleted when none is left; policies
cost nothing (https://docs.cloud.google.com/compute/docs/instances/placement-policies-overview). They have no labels:
whose one is stands in its name, as a fingerprint, and in its description. What stands in the way of a policy (a machine
series that is not placed, a permission, a quota) is told in one line, and the gang starts without.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

from everstep.model.errors import BadRequest, ProviderError, Throttled, Unreachable
from everstep.model.ids import DeploymentId
from everstep.ports import LaunchRequest
from everstep.providers.gcp import naming
from everstep.providers.gcp.calls import Calls, Json
from everstep.providers.gcp.errors import GONE, THERE, code_of
from everstep.providers.gcp.market import region_of

MOST_MACHINES = 1500
"""In one policy that bounds no distance."""
NOT_PLACED = frozenset({"e2", "f1", "g1", "m1", "m2", "m3", "n1", "t2a", "t2d"})
"""Machine series that Compute Engine places in no policy. One that is missing here is refused once, and remembered."""

_Key = tuple[str, str]
"""Region and name."""

log = logging.getLogger(__name__)


class Groups:
    """Makes policies for gangs and deletes those that nobody is in."""

    def __init__(self, calls: Calls, *, wanted: bool, look_s: float) -> None:
        """Args: wanted: whether gangs get one at all; look_s: when to ask again for one that is being made."""
        self._calls = calls
        self._wanted = wanted
        self._look_s = look_s
        self._ready: set[_Key] = set()
        self._making: dict[_Key, asyncio.Lock] = {}
        self._launching: Counter[_Key] = Counter()
        self._refused: set[str] = set()
        self._made = 0
        self._none_left: set[DeploymentId] = set()
        self._told: set[str] = set()

    # --- to have -----------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def of(self, request: LaunchRequest) -> AsyncIterator[str]:
        """The policy that the machine belongs into, for its ``resourcePolicies``; empty for none.

        Not deleted as long as this lasts.
        """
        kind = request.offer.machine.name
        if not self._wanted or not 2 <= request.gang <= MOST_MACHINES or not self._is_placed(kind):
            yield ""
            return
        key = (region_of(request.offer.zone), naming.group_name(request))
        self._launching[key] += 1
        try:
            yield _link(key) if await self._ensure(key, request) else ""
        finally:
            self._launching -= Counter((key,))  # what nobody launches into any more is forgotten

    def goes_without(self, request: LaunchRequest, group: str, error: ProviderError) -> bool:
        """Whether a launch that failed is to be made once more, without ``group`` or with a new one."""
        if not group or not isinstance(error, BadRequest):
            return False
        key = (region_of(request.offer.zone), naming.last(group))
        if code_of(error) in GONE and key[1] in str(error):
            # Deleted since, by another process: the same call again makes it, and then the machine.
            self._ready.discard(key)
            raise Throttled(str(error), retry_after_s=self._look_s) from error
        if "policy" not in str(error):
            return False
        kind = request.offer.machine.name
        self._refused.add(kind)
        self._tell(kind, error)
        return True

    def _is_placed(self, kind: str) -> bool:
        return kind not in self._refused and kind.partition("-")[0] not in NOT_PLACED

    async def _ensure(self, key: _Key, request: LaunchRequest) -> bool:
        # The machines of a gang come at the same time; one of them makes the policy, the others wait for it.
        async with self._making.setdefault(key, asyncio.Lock()):
            if key in self._ready:
                return True
            try:
                await self._make(key, request)
            except ProviderError as error:
                if isinstance(error, Throttled | Unreachable):
                    raise  # without an answer the launch is repeated, by its token
                self._tell(code_of(error), error)  # a clear no is no reason not to start
                return False
            self._ready.add(key)
            return True

    async def _make(self, key: _Key, request: LaunchRequest) -> None:
        self._made += 1
        self._none_left.discard(request.deployment)
        policy = {
            "name": key[1],
            "description": naming.group_description(request),
            "groupPlacementPolicy": {"collocation": "COLLOCATED"},
        }
        body = ("resource_policy_resource", policy)
        try:
            await self._calls.done(await self._calls.call("resource_policies", "insert", body, region=key[0]))
        except BadRequest as error:
            if code_of(error) not in THERE:
                raise
            found = await self._calls.call("resource_policies", "get", region=key[0], resource_policy=key[1])
            if found.get("status") != "READY":
                text = f"{key[1]} is {found.get('status')}"
                raise Throttled(text, retry_after_s=self._look_s) from error

    def _tell(self, why: str, error: ProviderError) -> None:
        """Once for each ``why``: every request has words of its own."""
        if why not in self._told:
            self._told.add(why)
            log.warning("gangs start without compact placement: %s", error)

    # --- and to delete -----------------------------------------------------------------------------------------------

    async def look(self, deployment: DeploymentId, used: Collection[str]) -> list[Json]:
        """The policies of a deployment, as REST has them; those that nobody is in are deleted.

        Nothing is asked where none was left and this process has made none since.

        Args:
            used: names of policies that listed machines are in.
        """
        if deployment in self._none_left:
            return []
        made = self._made
        try:
            found = await self._calls.everything(
                "resource_policies", "resourcePolicies", filter=naming.filter_of_groups(deployment)
            )
        except ProviderError as error:
            if isinstance(error, Throttled | Unreachable):
                raise
            self._tell(code_of(error), error)
            found = []
        if not found and made == self._made and not self._launching:
            self._none_left.add(deployment)
        mine = [p for p in found if naming.is_of(naming.group_labels(p), deployment)]
        return [p for p in mine if p["name"] in used or not await self._is_deleted(p)]

    async def _is_deleted(self, policy: Json) -> bool:
        """Deletes it. It is listed until it is gone, and looked at again for as long."""
        key = (naming.last(policy["region"]), policy["name"])
        if self._launching[key] or policy.get("status") == "DELETING":
            return False
        self._ready.discard(key)  # also if the answer is lost: to make it once more is no harm
        self._making.pop(key, None)
        try:
            await self._calls.call("resource_policies", "delete", region=key[0], resource_policy=key[1])
        except BadRequest as error:
            # In use by a machine that the list did not show yet, or that has not quite gone.
            return code_of(error) in GONE
        except ProviderError as error:
            log.warning("cannot delete the placement policy %s: %s", key[1], error)
            return False
        return True


def _link(key: _Key) -> str:
    return f"regions/{key[0]}/resourcePolicies/{key[1]}"
