"""``instances.insert`` of the fake vendor: what is checked at once, and what only the operation tells."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from everstep.testing.gce import policies
from everstep.testing.gce.books import Attachment, Machine, Operation
from everstep.testing.gce.discovery import Refused
from everstep.testing.gce.market import parted, region_of

if TYPE_CHECKING:
    from everstep.testing.gce.cloud import Cloud

_LABEL_KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_LABEL_VALUE = re.compile(r"[a-z0-9_-]{0,63}")
_MOST_LABELS = 64
_METADATA_BYTES = 262_144
"""https://docs.cloud.google.com/compute/docs/metadata/setting-custom-metadata: 256 KiB a value."""
_SHORT_LIFE_S = 86_400.0
"""Legacy preemptible machines "always stop after 24 hours"."""
Attachments = list[tuple[Attachment, dict[str, Any] | None]]
"""Disks of a machine, and what to make where one is not there yet."""
STOCK_OUT = "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"
IN_USE = "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE"


def insert(cloud: Cloud, zone: str, resource: dict[str, Any], request_id: str) -> Operation:
    """Takes a machine on. Raises Refused for what is wrong on its face; the rest is in the operation."""
    well_formed(cloud, zone, resource)
    if name_is_taken(cloud, zone, resource["name"]):
        raise exists(cloud, f"zones/{zone}/instances/{resource['name']}")
    machine = new_machine(cloud, zone, resource)
    attachments = disks_of(cloud, zone, resource, machine)
    now, timing = cloud.now(), cloud.timing
    error = no_room(cloud, machine) or _in_use(cloud, zone, attachments)
    done = machine.runs_at if error is None else now + timing.provision_s
    operation = cloud.operation(zone, "insert", (f"instances/{machine.name}", machine.id), done, request_id)
    cloud.machines[machine.id] = machine
    if error is not None:
        operation.error = error
        machine.fails_at = done
        return operation
    attach(cloud, machine, attachments)
    return operation


def attach(cloud: Cloud, machine: Machine, attachments: Attachments) -> None:
    """Gives a machine its disks; those that are not there yet are made."""
    zone, now = machine.zone, cloud.now()
    for attachment, make in attachments:
        disk = cloud.disk(zone, attachment.disk) if make is None else cloud.new_disk(zone, attachment.disk, make)
        disk.made_with = disk.made_with if make is None else machine.name
        disk.users.append(machine.name)
        disk.attached_at = now
        machine.disks.append(attachment)


# --- on its face -----------------------------------------------------------------------------------------------------


def name_is_taken(cloud: Cloud, zone: str, name: str) -> bool:
    """Whether a machine has that name."""
    now = cloud.now()
    return any(m.name == name and m.zone == zone and m.there(now) for m in cloud.machines.values())


def well_formed(cloud: Cloud, zone: str, resource: dict[str, Any]) -> None:
    """Raises Refused for an ``Instance`` that nobody could make."""
    cloud.check_zone(zone)
    check_labels(resource.get("labels", {}), "resource.labels")
    if not resource.get("networkInterfaces"):
        raise _invalid("networkInterfaces", "", "At least one network interface is required.")
    for item in resource.get("metadata", {}).get("items", []):
        if len(item.get("value", "").encode()) > _METADATA_BYTES:
            raise _invalid("metadata", item.get("key", ""), f"Value is larger than {_METADATA_BYTES} bytes.")
    scheduling = resource.get("scheduling", {})
    spot = scheduling.get("provisioningModel") == "SPOT" or scheduling.get("preemptible", False)
    if spot and scheduling.get("automaticRestart", True):
        raise _invalid("scheduling.automaticRestart", "true", "Preemptible VMs cannot be automatically restarted.")
    if spot and scheduling.get("onHostMaintenance", "TERMINATE") != "TERMINATE":
        raise _invalid("scheduling.onHostMaintenance", "MIGRATE", "Preemptible VMs cannot migrate.")
    lasting = scheduling.get("provisioningModel", "STANDARD") == "STANDARD" and "maxRunDuration" not in scheduling
    if "instanceTerminationAction" in scheduling and lasting:
        text = "You cannot specify a termination action for a VM instance that has the standard provisioning model."
        raise Refused(400, "badRequest", text)


def check_labels(labels: dict[str, Any], where: str) -> None:
    """https://docs.cloud.google.com/compute/docs/labeling-resources#requirements"""
    if len(labels) > _MOST_LABELS:
        raise Refused(400, "invalid", f"Invalid value for field '{where}': more than {_MOST_LABELS} labels.")
    for key, value in labels.items():
        if not _LABEL_KEY.fullmatch(key):
            raise Refused(400, "invalid", f"Invalid value for field '{where}': '{key}'. Label key is invalid.")
        if not _LABEL_VALUE.fullmatch(value):
            text = f"Invalid value for field '{where}': ''. Label value '{value}' violates format constraints."
            raise Refused(400, "invalid", text)


def exists(cloud: Cloud, path: str) -> Refused:
    """That name is taken."""
    return Refused(409, "alreadyExists", f"The resource 'projects/{cloud.project.id}/{path}' already exists")


def _invalid(field: str, value: str, why: str) -> Refused:
    return Refused(400, "invalid", f"Invalid value for field 'resource.{field}': '{value}'. {why}")


# --- what is asked for -----------------------------------------------------------------------------------------------


def new_machine(cloud: Cloud, zone: str, resource: dict[str, Any]) -> Machine:
    """The machine that an ``Instance`` describes; not in the books yet. Raises Refused."""
    kind = _in_zone(cloud, zone, resource.get("machineType", ""), "machineTypes", "machineType")
    accelerator, count = _accelerator(cloud, zone, kind, resource.get("guestAccelerators", []))
    pool = f"{kind}+{accelerator}:{count}" if accelerator else kind
    if (zone, pool) not in cloud.world.supplies:
        what, name = ("guestAccelerators", accelerator) if accelerator else ("machineType", kind)
        raise _invalid(what, name, f"'{pool}' does not exist in zone '{zone}'.")
    built_in = cloud.world.kinds[kind].accelerators
    given = resource.get("scheduling", {})
    spot = given.get("provisioningModel") == "SPOT" or given.get("preemptible", False)
    host = given.get("onHostMaintenance", "TERMINATE" if spot else "MIGRATE")
    if (built_in or accelerator) and host != "TERMINATE":
        text = "Instances with guest accelerators do not support live migration."
        raise _invalid("scheduling.onHostMaintenance", "MIGRATE", text)
    scheduling = {
        "provisioningModel": "STANDARD",
        "automaticRestart": not spot,
        **given,
        "onHostMaintenance": host,
        "preemptible": spot,
    }
    now, timing = cloud.now(), cloud.timing
    machine = Machine(
        id=cloud.new_id(),
        name=resource["name"],
        zone=zone,
        kind=kind,
        accelerator=accelerator,
        accelerators=count,
        spot=spot,
        price_usd_per_h=cloud.world.price_usd_per_h(region_of(zone), pool, now, spot=spot),
        inserted_at=now,
        staged_at=now + timing.provision_s,
        runs_at=now + timing.provision_s + timing.stage_s,
        visible_at=now + timing.hidden_s,
        address=cloud.new_address(),
        resource=resource,
        labels=dict(resource.get("labels", {})),
        metadata={i["key"]: i.get("value", "") for i in resource.get("metadata", {}).get("items", [])},
        scheduling=scheduling,
    )
    machine.policy = policies.of_machine(cloud, region_of(zone), kind, resource)
    if spot and given.get("provisioningModel") != "SPOT":
        machine.ends_by_life_at = machine.runs_at + _SHORT_LIFE_S
    if "maxRunDuration" in given:
        machine.ends_by_life_at = machine.runs_at + float(given["maxRunDuration"].get("seconds", 0))
    interface = machine.resource["networkInterfaces"][0]
    interface.setdefault("networkIP", machine.address)
    for access in interface.get("accessConfigs", []):
        # Where processes stand behind it, it can be called at its address there (``power``).
        access.setdefault("natIP", machine.address.replace("10.128.", "198.51.", 1))
    return machine


def _in_zone(cloud: Cloud, zone: str, url: str, collection: str, field: str) -> str:
    """The name at the end of a URL, full or partial, that must lie in the zone."""
    found = re.fullmatch(rf"(?:.*/)?zones/([^/]+)/{collection}/([^/]+)", url)
    if found is None:
        raise _invalid(field, url, "The URL is malformed.")
    if found[1] != zone:
        raise _invalid(field, url, f"It must be in zone '{zone}'.")
    if collection == "machineTypes" and found[2] not in cloud.world.kinds:
        raise _invalid(field, url, f"Machine type with name '{found[2]}' does not exist in zone '{zone}'.")
    return found[2]


def _accelerator(cloud: Cloud, zone: str, kind: str, given: list[dict[str, Any]]) -> tuple[str, int]:
    if not given:
        return "", 0
    if cloud.world.kinds[kind].accelerator:
        built_in = cloud.world.kinds[kind]
        name = _in_zone(cloud, zone, given[0].get("acceleratorType", ""), "acceleratorTypes", "guestAccelerators")
        if (name, given[0].get("acceleratorCount")) != (built_in.accelerator, built_in.accelerators):
            raise _invalid("guestAccelerators", name, f"[{name}] features are not compatible with {kind}.")
        return "", 0
    name = _in_zone(cloud, zone, given[0].get("acceleratorType", ""), "acceleratorTypes", "guestAccelerators")
    if not any(parted(p)[1] == name for z, p in cloud.world.supplies if z == zone):
        path = f"projects/{cloud.project.id}/zones/{zone}/acceleratorTypes/{name}"
        raise Refused(404, "notFound", f"The resource '{path}' was not found")
    return name, int(given[0].get("acceleratorCount", 0))


def disks_of(cloud: Cloud, zone: str, resource: dict[str, Any], machine: Machine) -> Attachments:
    """What an ``Instance`` says of disks. Raises Refused."""
    given = resource.get("disks", [])
    if not given or not given[0].get("boot"):
        raise _invalid("disks", "", "A boot disk must be specified, as the first disk.")
    found: Attachments = []
    for index, disk in enumerate(given):
        auto = disk.get("autoDelete", False)
        device = disk.get("deviceName", f"persistent-disk-{index}")
        make = disk.get("initializeParams")
        if (make is None) == ("source" not in disk):
            raise _invalid(f"disks[{index}]", "", "Either source or initializeParams must be given.")
        if make is None:
            name = _in_zone(cloud, zone, disk["source"], "disks", f"disks[{index}].source")
            cloud.disk(zone, name)
        else:
            make = {
                "sizeGb": make.get("diskSizeGb", disk.get("diskSizeGb", "0")),
                "labels": make.get("labels", {}),
                "type": make.get("diskType", f"zones/{zone}/diskTypes/pd-standard"),
                "sourceImage": make.get("sourceImage", ""),
                "name": make.get("diskName") or (machine.name if index == 0 else f"{machine.name}-{index}"),
            }
            name = make["name"]
            cloud.check_new_disk(zone, make)
        found.append((Attachment(name, device, bool(disk.get("boot")), auto, disk.get("mode", "READ_WRITE")), make))
    if len({a.device for a, _ in found}) != len(found):
        raise _invalid("disks", "", "Device names must be unique.")
    return found


# --- what only the operation tells -----------------------------------------------------------------------------------


def _in_use(cloud: Cloud, zone: str, attachments: Attachments) -> tuple[str, str] | None:
    for attachment, make in attachments:
        users = [] if make is not None else cloud.disk(zone, attachment.disk).users
        if users:
            path = f"projects/{cloud.project.id}/zones/{zone}"
            text = f"The disk resource '{path}/disks/{attachment.disk}' is already being used by "
            return IN_USE, f"{text}'{path}/instances/{users[0]}'"
    return None


def no_room(cloud: Cloud, machine: Machine) -> tuple[str, str] | None:
    """Why a machine cannot be had now, code and words; None if it can."""
    over = over_quota(cloud, machine)
    if over:
        return "QUOTA_EXCEEDED", over
    now, held = cloud.now(), _held_like(cloud, machine)
    supply = cloud.world.supplies[machine.zone, machine.pool]
    room = supply.room(now) if machine.spot else supply.on_demand_room
    here = sum((m.zone, m.pool) == (machine.zone, machine.pool) for m in held)
    close = sum((m.region, m.policy) == (machine.region, machine.policy) for m in held)
    apart = machine.policy and supply.compact_room is not None and close >= supply.compact_room
    if apart or (room is not None and here >= room):
        zone = f"projects/{cloud.project.id}/zones/{machine.zone}"
        text = f"The zone '{zone}' does not have enough resources available to fulfill the request."
        return STOCK_OUT, f"{text}  '(resource type:compute)'."
    return None


def over_quota(cloud: Cloud, machine: Machine, count: int = 1) -> str:
    """Why the project may not hold so many more of such a machine; empty if it may."""
    held = _held_like(cloud, machine)
    for metric, amount in _metrics(cloud, machine).items():
        limit = cloud.world.quotas.get((machine.region, metric))
        if limit is None:
            continue
        used = sum(_metrics(cloud, m).get(metric, 0) for m in held if m.region == machine.region)
        if used + count * amount > limit:
            return f"Quota '{metric}' exceeded.  Limit: {limit}.0 in region {machine.region}."
    return ""


def _held_like(cloud: Cloud, machine: Machine) -> list[Machine]:
    """What takes from the same capacity and quotas, spot or not."""
    now = cloud.now()
    return [m for m in cloud.machines.values() if m.holds(now) and m.spot == machine.spot]


def _metrics(cloud: Cloud, machine: Machine) -> dict[str, int]:
    """What a machine takes of the quotas: https://docs.cloud.google.com/compute/resource-usage"""
    kind = cloud.world.kinds[machine.kind]
    ahead = "PREEMPTIBLE_" if machine.spot else ""
    name = machine.accelerator or kind.accelerator
    found = {f"{ahead}CPUS": kind.cpus}
    if name:
        metric = name.removeprefix("nvidia-").removeprefix("tesla-").upper().replace("-", "_")
        found[f"{ahead}NVIDIA_{metric}_GPUS"] = machine.accelerators or kind.accelerators
    return found
