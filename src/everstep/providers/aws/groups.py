"""Cluster placement groups: the machines of a gang close together, in one zone.

One group per job and zone, made when the first machine needs it and deleted when none is left; groups cost nothing, and
an account has 500 in a region (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/placement-groups.html). Spot
machines that are terminated when they are taken back may be in one. What stands in the way of a group (a type that has
none, a permission, a quota) is told in one line, and the gang starts without.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any

from everstep.model.errors import BadRequest, ProviderError, Throttled, Unreachable
from everstep.model.ids import DeploymentId
from everstep.ports import LaunchRequest
from everstep.providers.aws import tags
from everstep.providers.aws.calls import Calls
from everstep.providers.aws.errors import code_of
from everstep.providers.aws.market import region_of

UNKNOWN = "InvalidPlacementGroup.Unknown"
_THERE = "InvalidPlacementGroup.Duplicate"
_IN_USE = "InvalidPlacementGroup.InUse"

log = logging.getLogger(__name__)


class Groups:
    """Makes groups for gangs and deletes those that nobody is in."""

    def __init__(self, calls: Calls, *, wanted: bool) -> None:
        """Args: wanted: whether gangs get one at all."""
        self._calls = calls
        self._wanted = wanted
        self._made: set[tuple[str, str]] = set()
        self._launching: Counter[tuple[str, str]] = Counter()
        self._supported: dict[tuple[str, str], bool] = {}
        self._looked: set[tuple[str, DeploymentId]] = set()
        self._told: set[str] = set()

    # --- to have -----------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def of(self, request: LaunchRequest) -> AsyncIterator[str]:
        """Name of the group that the machine belongs into; empty for none. Not deleted as long as this lasts."""
        region = region_of(request.offer.zone)
        if not self._wanted or request.gang < 2 or not await self._supports(region, request.offer.machine.name):
            yield ""
            return
        key = (region, name_of(request))
        self._launching[key] += 1
        try:
            yield key[1] if await self._ensure(key, request) else ""
        finally:
            self._launching[key] -= 1

    def forget(self, region: str, name: str) -> None:
        """The group is not there (any more): the next launch makes it."""
        self._made.discard((region, name))

    async def _ensure(self, key: tuple[str, str], request: LaunchRequest) -> bool:
        if key in self._made:
            return True
        try:
            await self._calls.ec2(
                key[0],
                "create_placement_group",
                GroupName=key[1],
                Strategy="cluster",
                TagSpecifications=[tags.specification("placement-group", tags.of_group(request))],
            )
        except ProviderError as error:
            if code_of(error) != _THERE:
                self._do_without(error, "")
                return False
        self._made.add(key)
        return True

    async def _supports(self, region: str, kind: str) -> bool:
        known = self._supported.get((region, kind))
        if known is not None:
            return known
        try:
            answer = await self._calls.ec2(region, "describe_instance_types", InstanceTypes=[kind])
        except ProviderError as error:
            self._do_without(error, kind)
            return False
        (described,) = answer["InstanceTypes"]
        strategies = described.get("PlacementGroupInfo", {}).get("SupportedStrategies", [])
        found = self._supported[region, kind] = "cluster" in strategies
        if not found:
            log.warning("%s: EC2 has no cluster placement group for it, gangs start without", kind)
        return found

    def _do_without(self, error: ProviderError, kind: str) -> None:
        """A clear no is no reason not to start; without an answer the launch is repeated, by its token."""
        if isinstance(error, Throttled | Unreachable):
            raise error
        text = f"gangs start without a placement group{kind and f' of {kind}'}: {error}"
        if text not in self._told:
            self._told.add(text)
            log.warning("%s", text)

    # --- and to delete -----------------------------------------------------------------------------------------------

    async def look(self, deployment: DeploymentId, region: str, used: Collection[str]) -> list[dict[str, Any]]:
        """The groups of a deployment in a region; those that nobody is in are deleted.

        Nothing is asked where this process has looked once and made none since.

        Args:
            used: names of groups that listed machines are in.
        """
        if (region, deployment) in self._looked and not any(r == region for r, _ in self._made):
            return []
        filters = tags.filters(deployment)
        try:
            answer = await self._calls.ec2(region, "describe_placement_groups", Filters=filters)
        except ProviderError as error:
            self._do_without(error, "")
            self._looked.add((region, deployment))
            return []
        found: list[dict[str, Any]] = [g for g in answer["PlacementGroups"] if g["State"] in ("pending", "available")]
        left = [g for g in found if g["GroupName"] in used or not await self._deleted((region, g["GroupName"]))]
        self._looked.add((region, deployment))
        self._made |= {(region, g["GroupName"]) for g in left}
        return left

    async def _deleted(self, key: tuple[str, str]) -> bool:
        if self._launching[key]:
            return False
        self._made.discard(key)  # also if the answer is lost: to make it once more is no harm
        try:
            await self._calls.ec2(key[0], "delete_placement_group", GroupName=key[1])
        except BadRequest as error:
            # In use by a machine that the list did not show yet, or that has not quite gone.
            return code_of(error) == UNKNOWN
        except ProviderError as error:
            log.warning("cannot delete the placement group %s: %s", key[1], error)
            return False
        return True


def name_of(request: LaunchRequest) -> str:
    """One per deployment, job, zone and machine type: EC2 has more room for groups of one type."""
    text = "\x1f".join((request.deployment, request.job, request.offer.zone, request.offer.machine.name))
    return "everstep-" + hashlib.sha256(text.encode()).hexdigest()[:32]
