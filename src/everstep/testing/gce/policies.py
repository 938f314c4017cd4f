"""Resource policies of the fake vendor: compact placement of machines, and no other kind.

A policy belongs to a region, is free of charge, and cannot be deleted while a machine has it; a machine has one at
most, and only of its own region: https://docs.cloud.google.com/compute/docs/instances/placement-policies-overview.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from everstep.testing.gce.books import Machine, Operation, Project, stamp
from everstep.testing.gce.discovery import Called, Refused

if TYPE_CHECKING:
    from everstep.testing.gce.cloud import Cloud

MOST_MACHINES = 1500
"""In one compact placement policy that bounds no distance."""
_NOT_APPLICABLE = frozenset({"e2", "f1", "g1", "m1", "m2", "m3", "n1", "t2a", "t2d"})
"""Machine series that are never placed."""
_KINDS = (
    "diskConsistencyGroupPolicy",
    "groupPlacementPolicy",
    "instanceSchedulePolicy",
    "snapshotSchedulePolicy",
    "workloadPolicy",
)


@dataclass(slots=True)
class Policy:
    """A resource policy. ``resource``: as it was asked for."""

    id: int
    name: str
    region: str
    resource: dict[str, Any]
    created_at: float
    ready_at: float

    def described(self, project: Project, now: float) -> dict[str, Any]:
        """As ``ResourcePolicy``."""
        return {
            **self.resource,
            "kind": "compute#resourcePolicy",
            "id": str(self.id),
            "region": project.link(f"regions/{self.region}"),
            "status": "READY" if now >= self.ready_at else "CREATING",
            "creationTimestamp": stamp(self.created_at),
            "selfLink": project.link(f"regions/{self.region}/resourcePolicies/{self.name}"),
        }


def insert(cloud: Cloud, called: Called) -> Operation:
    """``resourcePolicies.insert``."""
    region, resource = called.path["region"], called.body

    def act(request: str) -> Operation:
        cloud.check_region(region)
        name = resource.get("name", "")
        if not name:
            raise Refused(400, "required", "Required field 'resource.name' not specified")
        if (region, name) in cloud.policies:
            text = f"The resource 'projects/{cloud.project.id}/regions/{region}/resourcePolicies/{name}' already exists"
            raise Refused(409, "alreadyExists", text)
        _check(resource)
        now = cloud.now()
        made = Policy(cloud.new_id(), name, region, dict(resource), now, now + cloud.timing.operation_s)
        cloud.policies[region, name] = made
        return _operation(cloud, "insert", made, request)

    return cloud.once(called, act)


def delete(cloud: Cloud, called: Called) -> Operation:
    """``resourcePolicies.delete``."""

    def act(request: str) -> Operation:
        policy = find(cloud, called.path["region"], called.path["resourcePolicy"])
        users = machines_in(cloud, policy.region, policy.name)
        if users:
            path = f"projects/{cloud.project.id}"
            text = f"The resource_policy resource '{path}/regions/{policy.region}/resourcePolicies/{policy.name}' "
            text += f"is already being used by '{path}/zones/{users[0].zone}/instances/{users[0].name}'"
            raise Refused(400, "resourceInUseByAnotherResource", text)
        del cloud.policies[policy.region, policy.name]
        return _operation(cloud, "delete", policy, request)

    return cloud.once(called, act)


def find(cloud: Cloud, region: str, name: str) -> Policy:
    """By name or number. Raises Refused if there is none (any more)."""
    cloud.check_region(region)
    for policy in cloud.policies.values():
        if policy.region == region and name in (policy.name, str(policy.id)):
            return policy
    raise cloud.missing(f"regions/{region}/resourcePolicies/{name}")


def machines_in(cloud: Cloud, region: str, name: str) -> list[Machine]:
    """Machines that have a policy, those that may still come to nothing included."""
    now = cloud.now()
    return [m for m in cloud.machines.values() if (m.region, m.policy) == (region, name) and m.there(now)]


def of_machine(cloud: Cloud, region: str, kind: str, resource: dict[str, Any]) -> str:
    """Name of the policy that a new machine asks for, empty for none. Raises Refused for one that it cannot have."""
    urls = resource.get("resourcePolicies", [])
    if not urls:
        return ""
    if len(urls) > 1:
        raise _invalid("resourcePolicies", str(urls), "Currently a max of 1 resource policy is supported.")
    found = re.fullmatch(r"(?:.*/)?regions/([^/]+)/resourcePolicies/([^/]+)", urls[0])
    if found is None:
        raise _invalid("resourcePolicies[0]", urls[0], "The URL is malformed.")
    if found[1] != region:
        raise _invalid("resourcePolicies[0]", urls[0], f"It must be in region '{region}'.")
    policy = find(cloud, region, found[2])
    if cloud.now() < policy.ready_at:
        raise Refused(400, "resourceNotReady", f"The resource '{urls[0]}' is not ready")
    if kind.partition("-")[0] in _NOT_APPLICABLE:
        raise Refused(400, "invalid", f"Placement policy is not applicable to machine type {kind}.")
    given = resource.get("scheduling", {})
    spot = given.get("provisioningModel") == "SPOT" or given.get("preemptible", False)
    if given.get("onHostMaintenance", "TERMINATE" if spot else "MIGRATE") != "TERMINATE":
        text = "Machines with a compact placement policy do not support live migration."
        raise _invalid("scheduling.onHostMaintenance", "MIGRATE", text)
    if len(machines_in(cloud, region, policy.name)) >= MOST_MACHINES:
        text = f"No more than {MOST_MACHINES} instances of machine type {kind} can be created with this policy."
        raise Refused(400, "invalid", text)
    return policy.name


def _check(resource: dict[str, Any]) -> None:
    kinds = [kind for kind in _KINDS if kind in resource]
    if len(kinds) != 1:
        raise Refused(400, "invalid", "Exactly one kind of resource policy must be specified.")
    if kinds != ["groupPlacementPolicy"]:
        raise Refused(501, "notImplemented", f"this fake does not play {kinds[0]}")
    wanted = resource["groupPlacementPolicy"]
    if wanted.get("collocation") != "COLLOCATED":
        raise Refused(501, "notImplemented", "this fake plays compact placement alone: collocation COLLOCATED")
    if "availabilityDomainCount" in wanted:
        text = "Collocation and availability domains exclude each other."
        raise _invalid("groupPlacementPolicy.availabilityDomainCount", str(wanted["availabilityDomainCount"]), text)
    if "vmCount" in wanted:
        raise Refused(501, "notImplemented", "this fake does not play vmCount")


def _operation(cloud: Cloud, verb: str, policy: Policy, request: str) -> Operation:
    done = cloud.now() + cloud.timing.operation_s
    made = cloud.operation("", verb, (f"resourcePolicies/{policy.name}", policy.id), done, request)
    made.region = policy.region
    return made


def _invalid(field: str, value: str, why: str) -> Refused:
    return Refused(400, "invalid", f"Invalid value for field 'resource.{field}': '{value}'. {why}")
