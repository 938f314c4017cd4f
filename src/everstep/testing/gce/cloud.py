"""The fake vendor's rules: what happens to machines and disks, and what is refused. No protocol here."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterable, Mapping
from random import Random
from typing import Any

from everstep.testing.gce import bulk, launch
from everstep.testing.gce.books import SYSTEM, Attachment, Disk, Machine, Operation, Project, fingerprint
from everstep.testing.gce.discovery import Called, Refused
from everstep.testing.gce.market import Timing, World
from everstep.testing.gce.policies import Policy

IMAGES = {
    # Size in GB of what the fake has to boot from, by project and family.
    ("ubuntu-os-cloud", "ubuntu-2404-lts-amd64"): 10,
    ("ubuntu-os-accelerator-images", "ubuntu-accelerator-2404-amd64-with-nvidia-580"): 20,
    ("debian-cloud", "debian-12"): 10,
}
_KEPT_S = 14 * 86_400.0
"""Operations are kept for about two weeks: https://docs.cloud.google.com/compute/docs/api/how-tos/api-requests-responses"""

DEFAULT_RULES: Mapping[str, dict[str, Any]] = {
    # https://docs.cloud.google.com/firewall/docs/firewalls, "Pre-populated rules in the default network".
    "default-allow-internal": {
        "sourceRanges": ["10.128.0.0/9"],
        "allowed": [
            {"IPProtocol": "tcp", "ports": ["0-65535"]},
            {"IPProtocol": "udp", "ports": ["0-65535"]},
            {"IPProtocol": "icmp"},
        ],
    },
    "default-allow-ssh": {"sourceRanges": ["0.0.0.0/0"], "allowed": [{"IPProtocol": "tcp", "ports": ["22"]}]},
    "default-allow-icmp": {"sourceRanges": ["0.0.0.0/0"], "allowed": [{"IPProtocol": "icmp"}]},
}
"""Of the network ``default``; more, or fewer, are a test's to write into ``Cloud.firewall_rules``."""


class Cloud:
    """One project. Not thread-safe: the server holds its lock around each call."""

    def __init__(
        self, world: World, timing: Timing, project: Project, *, rng: Random, now: Callable[[], float]
    ) -> None:
        """Args: rng: for ids; now: UTC seconds."""
        self.world = world
        self.timing = timing
        self.project = project
        self.now = now
        self.machines: dict[int, Machine] = {}
        self.disks: dict[int, Disk] = {}
        self.operations: dict[str, Operation] = {}
        self.policies: dict[tuple[str, str], Policy] = {}
        """Resource policies, by region and name."""
        self.follow: Callable[[float], None] | None = None
        """Told of every change, before what has ended lets go of its disks (see ``power``)."""
        self.firewall_rules = dict(DEFAULT_RULES)
        self._rng = rng
        self._addresses = 0
        self._requests: dict[tuple[str, str], Operation] = {}

    def new_id(self) -> int:
        """Numbers of the vendor's have 64 bits, and up to 19 digits."""
        return self._rng.randrange(10**18, 9 * 10**18)

    def new_address(self) -> str:
        """In the default network."""
        self._addresses += 1
        number = self._addresses + 1
        return f"10.128.{number // 250}.{number % 250 + 2}"

    # --- time passes -------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Brings everything to the present: what was announced happens, what ended lets go of its disks."""
        now = self.now()
        for machine in self.machines.values():
            life = machine.ends_by_life_at
            if life is not None and now >= life - self.timing.notice_s and machine.stops_at is None:
                self.preempt(machine, at=life - self.timing.notice_s)
        for (zone, pool), supply in self.world.supplies.items():
            room = supply.room(now)
            if room is None:
                continue
            held = [m for m in self.machines.values() if m.spot and m.zone == zone and m.pool == pool and m.holds(now)]
            staying = [m for m in held if m.stops_at is None]
            for machine in staying[: max(len(staying) - room, 0)]:
                if machine.status(now) == "RUNNING":
                    self.preempt(machine)
        if self.follow is not None:
            self.follow(now)
        gone = [m for m in self.machines.values() if not m.there(now) and not m.put_away]
        for machine in gone:
            machine.put_away = True
            self._let_go(machine, machine.gone_at or machine.stopped_at or machine.fails_at or now)
        if gone and self.follow is not None:
            self.follow(now)  # the bytes of disks that went with their machines go in the same moment
        for name in [n for n, o in self.operations.items() if o.done_at < now - _KEPT_S]:
            del self.operations[name]

    def _let_go(self, machine: Machine, at: float) -> None:
        for attachment in machine.disks:
            disk = self.disk(machine.zone, attachment.disk)
            disk.users.remove(machine.name)
            disk.detached_at = at
            if attachment.auto_delete:
                disk.deleted_at = at
        machine.disks = []

    # --- what the vendor does by itself ------------------------------------------------------------------------------

    def preempt(self, machine: Machine, *, notice_s: float | None = None, at: float | None = None) -> float:
        """Takes a spot machine back. Returns when it will have stopped, UTC seconds."""
        if not machine.spot and machine.ends_by_life_at is None:
            raise ValueError(f"{machine.name} is no spot machine")
        begins = self.now() if at is None else at
        machine.preempted_at = machine.stops_at = begins
        machine.stopped_at = begins + (self.timing.notice_s if notice_s is None else notice_s)
        machine.deletes = machine.scheduling.get("instanceTerminationAction", "STOP") == "DELETE"
        machine.status_message = "Instance was preempted." if not machine.deletes else ""
        self._by_itself(machine, "compute.instances.preempted", begins, "Instance was preempted.")
        return machine.stopped_at

    def lose(self, machine: Machine) -> None:
        """The host dies: no notice. A machine that may restart is repaired and does; another one is TERMINATED."""
        now = self.now()
        self._by_itself(machine, "compute.instances.hostError", now, "Instance terminated by Compute Engine.")
        if machine.scheduling.get("automaticRestart"):
            self.repair(machine)
            self._by_itself(machine, "compute.instances.automaticRestart", now, "Instance automatically restarted.")
            return
        machine.stops_at = machine.stopped_at = now
        machine.deletes = False

    def repair(self, machine: Machine) -> None:
        """REPAIRING for a while: not billed, and its processes are lost."""
        now = self.now()
        machine.repairs_at, machine.repaired_at = now, now + self.timing.repair_s

    def maintain(self, machine: Machine) -> None:
        """A host event. Spot machines are preempted by it."""
        now = self.now()
        if machine.spot:
            self.preempt(machine)
        elif machine.scheduling["onHostMaintenance"] == "MIGRATE":
            machine.maintenance = "MIGRATE_ON_HOST_MAINTENANCE"
            self._by_itself(machine, "compute.instances.migrateOnHostMaintenance", now, "Instance migrated.")
        else:
            machine.maintenance = "TERMINATE_ON_HOST_MAINTENANCE"
            machine.stops_at = now + self.timing.maintenance_s
            machine.stopped_at = machine.stops_at + self.timing.stop_s
            text = "Instance terminated during Compute Engine maintenance."
            self._by_itself(machine, "compute.instances.terminateOnHostMaintenance", machine.stops_at, text)

    def _by_itself(self, machine: Machine, kind: str, at: float, text: str) -> None:
        operation = self.operation(machine.zone, kind, (f"instances/{machine.name}", machine.id), at, "")
        operation.inserted_at, operation.user, operation.status_message = at, SYSTEM, text
        del self.operations[operation.name]
        operation.name = operation.name.replace("operation", "systemevent")
        self.operations[operation.name] = operation

    # --- operations --------------------------------------------------------------------------------------------------

    def operation(self, zone: str, kind: str, target: tuple[str, int], done_at: float, request_id: str) -> Operation:
        """A new one, by name."""
        number = self.new_id()
        made = Operation(number, f"operation-{number:x}", zone, kind, *target, self.now(), done_at, request_id)
        self.operations[made.name] = made
        return made

    def once(self, called: Called, act: Callable[[str], Operation]) -> Operation:
        """Does it, unless the same request id did: then "the server will ignore the second request"."""
        request_id = called.query.get("requestId", "")
        if not request_id:
            return act("")
        try:
            if uuid.UUID(request_id).int == 0:
                raise ValueError
        except ValueError:
            raise Refused(400, "invalid", f"Invalid value for field 'requestId': '{request_id}'.") from None
        key = (json.dumps([called.method, called.path.get("zone")]), request_id)
        if key not in self._requests:
            self._requests[key] = act(request_id)
        return self._requests[key]

    def operation_named(self, zone: str, name: str, *, region: str = "") -> Operation:
        """Raises Refused if there is none."""
        for operation in self.operations.values():
            if (operation.zone, operation.region) == (zone, region) and name in (operation.name, str(operation.id)):
                return operation
        where = f"zones/{zone}/" if zone else f"regions/{region}/" if region else "global/"
        raise self.missing(f"{where}operations/{name}")

    # --- machines ----------------------------------------------------------------------------------------------------

    def machine(self, zone: str, name: str) -> Machine:
        """By name or number. Raises Refused if there is none (any more)."""
        self.check_zone(zone)
        now = self.now()
        for machine in self.machines.values():
            if machine.zone == zone and name in (machine.name, str(machine.id)) and machine.there(now):
                return machine
        raise self.missing(f"zones/{zone}/instances/{name}")

    def listed(self) -> Iterable[Machine]:
        """What lists show: not yet what an unfinished operation has just begun to make."""
        now = self.now()
        return [m for m in self.machines.values() if m.there(now) and m.visible_at <= now]

    def insert(self, called: Called) -> Operation:
        """``instances.insert``."""
        zone = called.path["zone"]
        return self.once(called, lambda request: launch.insert(self, zone, called.body, request))

    def bulk_insert(self, called: Called) -> Operation:
        """``instances.bulkInsert``."""
        zone = called.path["zone"]
        return self.once(called, lambda request: bulk.insert(self, zone, called.body, request))

    def delete(self, called: Called) -> Operation:
        """``instances.delete``: STOPPING, then gone."""

        def act(request: str) -> Operation:
            machine = self.machine(called.path["zone"], called.path["instance"])
            now = self.now()
            machine.deletes = True
            if machine.stops_at is None or machine.stops_at > now:
                machine.stops_at, machine.stopped_at = now, now + self.timing.stop_s
            assert machine.stopped_at is not None
            machine.given_up = machine.preempted_at is not None and now < machine.stopped_at
            done = machine.gone_at = max(machine.stopped_at, now)
            return self.operation(machine.zone, "delete", (f"instances/{machine.name}", machine.id), done, request)

        return self.once(called, act)

    def stop(self, called: Called) -> Operation:
        """``instances.stop``: STOPPING, then TERMINATED, with its disks."""

        def act(request: str) -> Operation:
            machine = self.machine(called.path["zone"], called.path["instance"])
            now = self.now()
            if machine.stops_at is None:
                machine.stops_at, machine.stopped_at = now, now + self.timing.stop_s
            done = machine.stopped_at or now
            return self.operation(machine.zone, "stop", (f"instances/{machine.name}", machine.id), done, request)

        return self.once(called, act)

    def simulate_maintenance(self, called: Called) -> Operation:
        """``instances.simulateMaintenanceEvent``."""

        def act(request: str) -> Operation:
            machine = self.machine(called.path["zone"], called.path["instance"])
            if machine.status(self.now()) != "RUNNING":
                raise Refused(400, "resourceNotReady", f"The resource '{machine.name}' is not ready")
            self.maintain(machine)
            target = (f"instances/{machine.name}", machine.id)
            done = self.now() + self.timing.operation_s
            return self.operation(machine.zone, "simulateMaintenanceEvent", target, done, request)

        return self.once(called, act)

    def set_labels(self, called: Called) -> Operation:
        """``setLabels`` of machines and disks: only over the labels that the caller has seen."""
        body = called.body
        launch.check_labels(body.get("labels", {}), "resource.labels")
        thing: Machine | Disk
        if "instance" in called.path:
            thing = self.machine(called.path["zone"], called.path["instance"])
            target = f"instances/{thing.name}"
        else:
            thing = self.disk(called.path["zone"], called.path["resource"])
            target = f"disks/{thing.name}"
        if body.get("labelFingerprint", "") != fingerprint(thing.labels):
            text = "Labels fingerprint either invalid or resource labels have changed"
            raise Refused(412, "conditionNotMet", text)
        thing.labels = dict(body.get("labels", {}))
        done = self.now() + self.timing.operation_s
        request = called.query.get("requestId", "")
        return self.operation(called.path["zone"], "setLabels", (target, thing.id), done, request)

    # --- disks -------------------------------------------------------------------------------------------------------

    def disk(self, zone: str, name: str) -> Disk:
        """By name or number. Raises Refused if there is none (any more)."""
        self.check_zone(zone)
        for disk in self.disks.values():
            if disk.zone == zone and name in (disk.name, str(disk.id)) and disk.deleted_at is None:
                return disk
        raise self.missing(f"zones/{zone}/disks/{name}")

    def insert_disk(self, called: Called) -> Operation:
        """``disks.insert``."""
        zone = called.path["zone"]

        def act(request: str) -> Operation:
            made = {**called.body}
            if "sourceImage" in called.query:
                made["sourceImage"] = called.query["sourceImage"]
            self.check_new_disk(zone, made)
            launch.check_labels(made.get("labels", {}), "resource.labels")
            disk = self.new_disk(zone, made["name"], made)
            return self.operation(zone, "insert", (f"disks/{disk.name}", disk.id), disk.ready_at, request)

        return self.once(called, act)

    def check_new_disk(self, zone: str, made: dict[str, Any]) -> None:
        """Raises Refused for one that cannot be made."""
        self.check_zone(zone)
        if any(d.name == made["name"] and d.zone == zone and d.deleted_at is None for d in self.disks.values()):
            raise launch.exists(self, f"zones/{zone}/disks/{made['name']}")
        kind = made.get("type", "").rpartition("/")[2] or "pd-standard"
        if kind not in self.world.disk_usd_per_gib_month:
            raise Refused(400, "invalid", f"Invalid value for field 'resource.type': '{kind}'. Unknown disk type.")
        size = int(made.get("sizeGb", 0))
        image = made.get("sourceImage", "")
        if image:
            least = self.image_gb(image)
            if 0 < size < least:
                text = f"Requested disk size cannot be smaller than the image size ({least} GB)"
                raise Refused(400, "invalid", f"Invalid value for field 'resource.sizeGb': '{size}'. {text}")
        elif size < 1:
            raise Refused(400, "invalid", "Invalid value for field 'resource.sizeGb': ''. A size is needed.")

    def new_disk(self, zone: str, name: str, made: dict[str, Any]) -> Disk:
        """Makes one that was checked."""
        now = self.now()
        image = made.get("sourceImage", "")
        size = int(made.get("sizeGb", 0)) or self.image_gb(image)
        kind = made.get("type", "").rpartition("/")[2] or "pd-standard"
        ready = now + self.timing.operation_s
        visible = now + self.timing.hidden_s
        disk = Disk(self.new_id(), name, zone, size, kind, now, ready, visible, dict(made.get("labels", {})), image)
        disk.description = made.get("description", "")
        self.disks[disk.id] = disk
        return disk

    def delete_disk(self, called: Called) -> Operation:
        """``disks.delete``."""

        def act(request: str) -> Operation:
            disk = self.disk(called.path["zone"], called.path["disk"])
            if disk.users:
                path = f"projects/{self.project.id}/zones/{disk.zone}"
                text = f"The disk resource '{path}/disks/{disk.name}' is already being used by "
                raise Refused(400, "resourceInUseByAnotherResource", f"{text}'{path}/instances/{disk.users[0]}'")
            disk.deleted_at = self.now()
            done = self.now() + self.timing.operation_s
            return self.operation(disk.zone, "delete", (f"disks/{disk.name}", disk.id), done, request)

        return self.once(called, act)

    def attach_disk(self, called: Called) -> Operation:
        """``instances.attachDisk``: same zone, nobody else's."""

        def act(request: str) -> Operation:
            machine = self.machine(called.path["zone"], called.path["instance"])
            found = re.fullmatch(r"(?:.*/)?zones/([^/]+)/disks/([^/]+)", called.body.get("source", ""))
            if found is None or found[1] != machine.zone:
                source = called.body.get("source", "")
                raise Refused(400, "invalid", f"Invalid value for field 'resource.source': '{source}'.")
            disk = self.disk(machine.zone, found[2])
            done = self.now() + self.timing.operation_s
            target = (f"instances/{machine.name}", machine.id)
            operation = self.operation(machine.zone, "attachDisk", target, done, request)
            if disk.users:
                text = f"The disk resource '{disk.name}' is already being used by '{disk.users[0]}'"
                operation.error = (launch.IN_USE, text)
                return operation
            device = called.body.get("deviceName", f"persistent-disk-{len(machine.disks)}")
            auto = called.body.get("autoDelete", False)
            machine.disks.append(Attachment(disk.name, device, bool(called.body.get("boot")), auto))
            disk.users.append(machine.name)
            disk.attached_at = self.now()
            return operation

        return self.once(called, act)

    def detach_disk(self, called: Called) -> Operation:
        """``instances.detachDisk``."""

        def act(request: str) -> Operation:
            machine = self.machine(called.path["zone"], called.path["instance"])
            wanted = called.query["deviceName"]
            attachment = next((a for a in machine.disks if a.device == wanted), None)
            if attachment is None:
                raise Refused(400, "invalid", f"No attached disk found with device name '{wanted}'")
            machine.disks.remove(attachment)
            disk = self.disk(machine.zone, attachment.disk)
            disk.users.remove(machine.name)
            disk.detached_at = self.now()
            done = self.now() + self.timing.operation_s
            target = (f"instances/{machine.name}", machine.id)
            return self.operation(machine.zone, "detachDisk", target, done, request)

        return self.once(called, act)

    # --- names -------------------------------------------------------------------------------------------------------

    def check_zone(self, zone: str) -> None:
        """Raises Refused for a zone that is not there."""
        if zone not in self.world.zones:
            raise Refused(400, "invalid", f"Invalid value for field 'zone': '{zone}'. Unknown zone.")

    def check_region(self, region: str) -> None:
        """Raises Refused for a region that is not there."""
        if region not in self.world.regions:
            raise Refused(400, "invalid", f"Invalid value for field 'region': '{region}'. Unknown region.")

    def image_gb(self, url: str) -> int:
        """Size of an image. Raises Refused for one that nobody has."""
        found = re.fullmatch(r"(?:.*/)?projects/([^/]+)/global/images/(?:family/)?([^/]+)", url)
        size = None if found is None else IMAGES.get((found[1], found[2]))
        if size is None:
            raise Refused(404, "notFound", f"The resource '{url}' was not found")
        return size

    def missing(self, path: str) -> Refused:
        """There is no such thing."""
        return Refused(404, "notFound", f"The resource 'projects/{self.project.id}/{path}' was not found")
