"""Our tags: on everything that is created, so that everything that costs can be found again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everstep.model.ids import DeploymentId
from everstep.model.offers import Market
from everstep.ports import LaunchRequest, VolumeSpec

DEPLOYMENT = "everstep:deployment"
JOB = "everstep:job"
LAUNCH = "everstep:launch"
TOKEN = "everstep:token"
MARKET = "everstep:market"
PRICE = "everstep:price"
"""USD per hour at which it was leased."""
VOLUME = "everstep:volume"
"""Name of a disk that outlives its machine."""
SERVER = "everstep:server"
"""Part of a server of ours: the list of a deployment and the sweep never take it for a stray."""
VOID = "everstep:void"
"""Taken back before anybody was told of it."""
_NAME = "Name"


def of_launch(request: LaunchRequest) -> dict[str, str]:
    """Tags of a machine, its own disk and its spot request."""
    return {
        DEPLOYMENT: request.deployment,
        JOB: request.job,
        LAUNCH: str(request.launch_no),
        TOKEN: request.token,
        MARKET: request.offer.market.value,
        PRICE: f"{request.offer.price_usd_per_h!r}",
        _NAME: f"everstep {request.job} {request.launch_no}",
    }


def of_group(request: LaunchRequest) -> dict[str, str]:
    """Tags of a placement group."""
    return {DEPLOYMENT: request.deployment, JOB: request.job, _NAME: f"everstep {request.job}"}


def of_volume(spec: VolumeSpec) -> dict[str, str]:
    """Tags of a disk."""
    return {DEPLOYMENT: spec.deployment, JOB: spec.job, VOLUME: spec.name, _NAME: f"everstep {spec.name}"}


def specifications(request: LaunchRequest) -> list[dict[str, Any]]:
    """``TagSpecifications`` of a launch; EC2 refuses tags of a spot request where there is none."""
    kinds = ["instance", "volume"] + (["spot-instances-request"] if request.offer.market is Market.SPOT else [])
    return [specification(kind, of_launch(request)) for kind in kinds]


def specification(kind: str, tags: Mapping[str, str]) -> dict[str, Any]:
    """One entry of ``TagSpecifications``."""
    return {"ResourceType": kind, "Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}


def of(described: Mapping[str, Any]) -> dict[str, str]:
    """The tags of something that was described."""
    return {tag["Key"]: tag["Value"] for tag in described.get("Tags", [])}


def same(described: Mapping[str, Any], request: LaunchRequest) -> bool:
    """Whether a machine is the one that ``request`` asks for."""
    found = of(described)
    return (
        all(found.get(key) == value for key, value in of_launch(request).items())
        and described.get("InstanceType") == request.offer.machine.name
        and described.get("Placement", {}).get("AvailabilityZone") == request.offer.zone
    )


def filters(deployment: DeploymentId) -> list[dict[str, Any]]:
    """``Filters`` that match everything of a deployment."""
    return [{"Name": f"tag:{DEPLOYMENT}", "Values": [deployment]}]
