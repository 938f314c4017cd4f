"""``instances.bulkInsert`` of the fake vendor: many machines by one call, each with an operation of its own.

A request that is wrong, and quota that does not do, are told at once, all else by operations: that of a machine's own
insert says what is wrong with it, that of the whole only that fewer than ``minCount`` could be made; those that could
are deleted then. https://docs.cloud.google.com/compute/docs/instances/multiple/about-bulk-creation and
https://docs.cloud.google.com/compute/docs/troubleshooting/troubleshooting-bulk-vm-creation.
"""

from __future__ import annotations

import copy
import re
from typing import TYPE_CHECKING, Any

from everstep.testing.gce import launch
from everstep.testing.gce.books import Machine, Operation
from everstep.testing.gce.discovery import Refused
from everstep.testing.gce.market import region_of

if TYPE_CHECKING:
    from everstep.testing.gce.cloud import Cloud

MOST = 5000
"""Machines of one call."""
AT_ONCE = 10
"""Calls whose operations are not done."""
TOO_FEW = "VM_MIN_COUNT_NOT_REACHED"
_EXISTS = "RESOURCE_ALREADY_EXISTS"
_NAME = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?")
_NOT_PLAYED = ("namePattern", "sourceInstanceTemplate", "locationPolicy", "instanceFlexibilityPolicy")


def insert(cloud: Cloud, zone: str, body: dict[str, Any], request_id: str) -> Operation:
    """Takes machines on. Raises Refused for what is wrong on its face; the rest is in the operations."""
    names, least = _asked(cloud, zone, body)
    wanted = [_resource(zone, name, body["instanceProperties"]) for name in names]
    machines = [_checked(cloud, zone, resource) for resource in wanted]
    _check_quota(cloud, machines[:least])
    errors: dict[str, tuple[str, str]] = {}
    failed_at = cloud.now() + cloud.timing.provision_s
    for machine in machines:
        taken = _name_taken(cloud, machine)
        error = taken or launch.no_room(cloud, machine)
        if error is not None:
            errors[machine.name] = error
            machine.fails_at = failed_at
        if taken is None:
            cloud.machines[machine.id] = machine
    made = [m for m in machines if m.name not in errors]
    enough = len(made) >= least
    done = max((m.runs_at for m in made), default=failed_at) if enough else failed_at
    whole = cloud.operation(zone, "bulkInsert", ("instances", cloud.new_id()), done, request_id)
    whole.group = str(cloud.new_id())
    whole.counts = {"targetVmCount": len(names), "createdVmCount": len(made)}
    whole.counts |= {"failedToCreateVmCount": len(errors), "deletedVmCount": 0 if enough else len(made)}
    for machine in machines:
        error = errors.get(machine.name)
        at = machine.runs_at if enough and error is None else failed_at
        _operation_of(cloud, machine, "insert", at, whole.group).error = error
    if enough:
        for machine in made:
            launch.attach(cloud, machine, launch.disks_of(cloud, zone, machine.resource, machine))
        return whole
    whole.error = (TOO_FEW, f"Requested minimum count of {least} VMs could not be created.")
    for machine in made:
        machine.fails_at = failed_at
        _operation_of(cloud, machine, "delete", failed_at, whole.group)
    return whole


def _operation_of(cloud: Cloud, machine: Machine, kind: str, done_at: float, group: str) -> Operation:
    made = cloud.operation(machine.zone, kind, (f"instances/{machine.name}", machine.id), done_at, "")
    made.group = group
    return made


# --- on its face -----------------------------------------------------------------------------------------------------


def _asked(cloud: Cloud, zone: str, body: dict[str, Any]) -> tuple[list[str], int]:
    """Names of the machines, and how many of them must be made."""
    cloud.check_zone(zone)
    for key in _NOT_PLAYED:
        if key in body:
            raise Refused(501, "notImplemented", f"this fake does not play {key} of bulkInsert")
    names = list(body.get("perInstanceProperties", {}))
    count = int(body.get("count", len(names)))
    least = int(body.get("minCount", count))
    if "instanceProperties" not in body or not names:
        raise _invalid("instanceProperties", "", "They must be set, and perInstanceProperties or namePattern.")
    if count != len(names) or count > MOST:
        raise _invalid("count", str(count), f"It must be the number of perInstanceProperties, at most {MOST}.")
    if not 1 <= least <= count:
        raise _invalid("minCount", str(least), "It must be from 1 to count.")
    for name in names:
        if not _NAME.fullmatch(name):
            raise _invalid("perInstanceProperties", name, f"Must be a match of regex '{_NAME.pattern}'")
    now = cloud.now()
    running = [o for o in cloud.operations.values() if o.kind == "bulkInsert" and o.done_at > now]
    if len(running) >= AT_ONCE:
        raise Refused(403, "rateLimitExceeded", f"More than {AT_ONCE} bulk operations are running at the same time.")
    return names, least


def _resource(zone: str, name: str, properties: dict[str, Any]) -> dict[str, Any]:
    """``Instance`` of one of them. ``InstanceProperties`` name types and policies barely, not by URLs."""
    made = {**copy.deepcopy(properties), "name": name}
    kind = _bare(made, "machineType", Refused(500, "internalError", "Internal Error"))
    made["machineType"] = f"zones/{zone}/machineTypes/{kind}"
    for attached in made.get("guestAccelerators", []):
        attached["acceleratorType"] = f"zones/{zone}/acceleratorTypes/{_bare(attached, 'acceleratorType')}"
    policies = made.get("resourcePolicies", [])
    made["resourcePolicies"] = [
        f"regions/{region_of(zone)}/resourcePolicies/{_bare({'resourcePolicies': p}, 'resourcePolicies')}"
        for p in policies
    ]
    for index, disk in enumerate(made.get("disks", [])):
        make = disk.get("initializeParams")
        if make is None or "diskName" in make:
            raise _invalid(f"instanceProperties.disks[{index}]", "", "Instances of a bulk request cannot share a disk.")
        if "diskType" in make:
            make["diskType"] = f"zones/{zone}/diskTypes/{_bare(make, 'diskType')}"
    return made


def _bare(holder: dict[str, Any], field: str, refusal: Refused | None = None) -> str:
    """What must be a name and no URL. The page of machineType says which error a URL meets."""
    name = str(holder.get(field, ""))
    if "/" in name or not name:
        raise refusal or _invalid(f"instanceProperties.{field}", name, "A name was expected, not a URL.")
    return name


def _checked(cloud: Cloud, zone: str, resource: dict[str, Any]) -> Machine:
    launch.well_formed(cloud, zone, resource)
    machine = launch.new_machine(cloud, zone, resource)
    if not launch.name_is_taken(cloud, zone, machine.name):  # its disks have its name
        launch.disks_of(cloud, zone, resource, machine)
    return machine


def _check_quota(cloud: Cloud, machines: list[Machine]) -> None:
    """Quota that does not do for ``minCount`` is told at once."""
    over = launch.over_quota(cloud, machines[0], len(machines))
    if over:
        raise Refused(403, "quotaExceeded", over)


def _name_taken(cloud: Cloud, machine: Machine) -> tuple[str, str] | None:
    if not launch.name_is_taken(cloud, machine.zone, machine.name):
        return None
    path = f"projects/{cloud.project.id}/zones/{machine.zone}/instances/{machine.name}"
    return _EXISTS, f"The resource '{path}' already exists"


def _invalid(field: str, value: str, why: str) -> Refused:
    return Refused(400, "invalid", f"Invalid value for field 'resource.{field}': '{value}'. {why}")
