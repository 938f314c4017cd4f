"""What the fake vendor knows of machines, disks and operations. States follow from instants, never from timers."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from everstep.testing.gce.market import region_of

SYSTEM = "system"
"""Who did what nobody asked for."""


@dataclass(frozen=True, slots=True)
class Project:
    """Where everything lies: id, number, and the base URL that links begin with."""

    id: str
    number: int
    base: str

    def link(self, path: str) -> str:
        """``https://.../projects/P/PATH``."""
        return f"{self.base}/compute/v1/projects/{self.id}/{path}"


@dataclass(slots=True)
class Attachment:
    """A disk in a machine, as its ``disks`` tell it."""

    disk: str
    device: str
    boot: bool
    auto_delete: bool
    mode: str = "READ_WRITE"


@dataclass(slots=True)
class Disk:
    """A persistent disk.

    Attributes:
        users: names of machines; one that writes excludes all others.
        made_with: name of the machine whose insert made it; empty = it was made by itself.
    """

    id: int
    name: str
    zone: str
    size_gb: int
    kind: str
    created_at: float
    ready_at: float
    visible_at: float
    labels: dict[str, str]
    image: str = ""
    description: str = ""
    made_with: str = ""
    users: list[str] = field(default_factory=list)
    attached_at: float | None = None
    detached_at: float | None = None
    deleted_at: float | None = None

    def described(self, project: Project, now: float) -> dict[str, Any]:
        """As ``Disk``."""
        zone = f"zones/{self.zone}"
        found: dict[str, Any] = {
            "kind": "compute#disk",
            "id": str(self.id),
            "name": self.name,
            "zone": project.link(zone),
            "sizeGb": str(self.size_gb),
            "type": project.link(f"{zone}/diskTypes/{self.kind}"),
            "status": "READY" if now >= self.ready_at else "CREATING",
            "creationTimestamp": stamp(self.created_at),
            "selfLink": project.link(f"{zone}/disks/{self.name}"),
            "labels": dict(self.labels),
            "labelFingerprint": fingerprint(self.labels),
            "users": [project.link(f"{zone}/instances/{u}") for u in self.users],
        }
        if self.description:
            found["description"] = self.description
        if self.image:
            found["sourceImage"] = self.image
        if self.attached_at is not None:
            found["lastAttachTimestamp"] = stamp(self.attached_at)
        if self.detached_at is not None:
            found["lastDetachTimestamp"] = stamp(self.detached_at)
        return _without_empty(found)


@dataclass(slots=True)
class Machine:
    """An instance.

    Attributes:
        kind, accelerator, accelerators: machine type, and what is attached to it.
        price_usd_per_h: what it is billed at, from ``runs_at`` to ``stopped_at``.
        fails_at: there was no room for it: it is gone then and never ran.
        preempted_at: since when its metadata say so.
        stops_at, stopped_at: STOPPING and then over; ``deletes``: gone then, not TERMINATED.
        gone_at: when a TERMINATED one was deleted.
        given_up: its owner deleted it while the vendor was taking it back.
        policy: name of the resource policy that places it; empty = none.
        repairs_at, repaired_at: REPAIRING in between.
        maintenance: what ``instance/maintenance-event`` says.
        resource: as it was asked for.
    """

    id: int
    name: str
    zone: str
    kind: str
    accelerator: str
    accelerators: int
    spot: bool
    price_usd_per_h: float
    inserted_at: float
    staged_at: float
    runs_at: float
    visible_at: float
    address: str
    resource: dict[str, Any]
    labels: dict[str, str]
    metadata: dict[str, str]
    scheduling: dict[str, Any]
    disks: list[Attachment] = field(default_factory=list)
    fails_at: float | None = None
    preempted_at: float | None = None
    stops_at: float | None = None
    stopped_at: float | None = None
    deletes: bool = False
    repairs_at: float | None = None
    repaired_at: float | None = None
    maintenance: str = "NONE"
    ends_by_life_at: float | None = None
    status_message: str = ""
    gone_at: float | None = None
    put_away: bool = False
    given_up: bool = False
    policy: str = ""

    @property
    def pool(self) -> str:
        """As in ``World.supplies``."""
        return f"{self.kind}+{self.accelerator}:{self.accelerators}" if self.accelerator else self.kind

    @property
    def region(self) -> str:
        """Of its zone."""
        return region_of(self.zone)

    def status(self, now: float) -> str:
        """As ``Instance.status``; empty once it is gone."""
        if self.fails_at is not None:
            return "PROVISIONING" if now < self.fails_at else ""
        if self.stopped_at is not None and now >= self.stopped_at:
            return "" if self.deletes else "TERMINATED"
        if self.stops_at is not None and now >= self.stops_at:
            return "STOPPING"
        if self.repairs_at is not None and now >= self.repairs_at and now < (self.repaired_at or now + 1):
            return "REPAIRING"
        if now < self.staged_at:
            return "PROVISIONING"
        return "STAGING" if now < self.runs_at else "RUNNING"

    def holds(self, now: float) -> bool:
        """Whether it takes capacity of its pool."""
        return self.fails_at is None and (self.stopped_at is None or now < self.stopped_at)

    def there(self, now: float) -> bool:
        """Whether the API knows it: its name is taken."""
        return bool(self.status(now))

    def described(self, project: Project, now: float) -> dict[str, Any]:
        """As ``Instance``."""
        zone = f"zones/{self.zone}"
        found: dict[str, Any] = {
            **{k: v for k, v in self.resource.items() if k in ("description", "networkInterfaces", "serviceAccounts")},
            "kind": "compute#instance",
            "id": str(self.id),
            "name": self.name,
            "zone": project.link(zone),
            "machineType": project.link(f"{zone}/machineTypes/{self.kind}"),
            "status": self.status(now),
            "statusMessage": self.status_message,
            "creationTimestamp": stamp(self.inserted_at),
            "selfLink": project.link(f"{zone}/instances/{self.name}"),
            "labels": dict(self.labels),
            "labelFingerprint": fingerprint(self.labels),
            "metadata": {
                "kind": "compute#metadata",
                "fingerprint": fingerprint(self.metadata),
                "items": [{"key": k, "value": v} for k, v in self.metadata.items()],
            },
            "scheduling": dict(self.scheduling),
            "disks": [self._attached(project, i, a) for i, a in enumerate(self.disks)],
        }
        if self.policy:
            found["resourcePolicies"] = [project.link(f"regions/{self.region}/resourcePolicies/{self.policy}")]
        if self.accelerator:
            link = project.link(f"{zone}/acceleratorTypes/{self.accelerator}")
            found["guestAccelerators"] = [{"acceleratorType": link, "acceleratorCount": self.accelerators}]
        if self.fails_at is None and now >= self.staged_at:
            found["lastStartTimestamp"] = stamp(self.runs_at)
        if self.stopped_at is not None and now >= self.stopped_at:
            found["lastStopTimestamp"] = stamp(self.stopped_at)
        return _without_empty(found)

    def _attached(self, project: Project, index: int, a: Attachment) -> dict[str, Any]:
        return {
            "kind": "compute#attachedDisk",
            "type": "PERSISTENT",
            "index": index,
            "source": project.link(f"zones/{self.zone}/disks/{a.disk}"),
            "deviceName": a.device,
            "boot": a.boot,
            "autoDelete": a.auto_delete,
            "mode": a.mode,
        }


@dataclass(slots=True)
class Operation:
    """What was asked for, and how far it is.

    Attributes:
        zone, region: where it is done; both empty = everywhere.
        error: code and message, once it is done.
        group: id that a ``bulkInsert`` and the operations of its machines have in common.
        counts: of a ``bulkInsert``: machines wanted, made, not made, and deleted again.
    """

    id: int
    name: str
    zone: str
    kind: str
    target: str
    target_id: int
    inserted_at: float
    done_at: float
    request_id: str = ""
    user: str = "tester@everstep.example"
    error: tuple[str, str] | None = None
    status_message: str = ""
    region: str = ""
    group: str = ""
    counts: dict[str, int] = field(default_factory=dict)

    def described(self, project: Project, now: float) -> dict[str, Any]:
        """As ``Operation``."""
        done = now >= self.done_at
        where = f"zones/{self.zone}" if self.zone else f"regions/{self.region}" if self.region else "global"
        found: dict[str, Any] = {
            "kind": "compute#operation",
            "id": str(self.id),
            "name": self.name,
            "zone": project.link(where) if self.zone else "",
            "region": project.link(where) if self.region else "",
            "clientOperationId": self.request_id,
            "operationType": self.kind,
            "targetLink": project.link(f"{where}/{self.target}" if self.zone or self.region else self.target),
            "targetId": str(self.target_id),
            "status": "DONE" if done else "RUNNING",
            "statusMessage": self.status_message,
            "user": self.user,
            "progress": 100 if done else 0,
            "insertTime": stamp(self.inserted_at),
            "startTime": stamp(self.inserted_at),
            "selfLink": project.link(f"{where}/operations/{self.name}"),
            "operationGroupId": self.group,
        }
        if self.counts:
            status = "CREATING" if not done else "DONE"
            told = {**(self.counts if done else {"targetVmCount": self.counts["targetVmCount"]}), "status": status}
            found["instancesBulkInsertOperationMetadata"] = {"perLocationStatus": {where: told}}
        if done:
            found["endTime"] = stamp(self.done_at)
        if done and self.error is not None:
            code, message = self.error
            found["error"] = {"errors": [{"code": code, "message": message}]}
            found["httpErrorStatusCode"] = HTTP_STATUS.get(code, 400)
            found["httpErrorMessage"] = "SERVICE UNAVAILABLE" if HTTP_STATUS.get(code) == 503 else "BAD REQUEST"
        return _without_empty(found)


HTTP_STATUS = {
    "ZONE_RESOURCE_POOL_EXHAUSTED": 503,
    "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS": 503,
    "QUOTA_EXCEEDED": 403,
    "RESOURCE_ALREADY_EXISTS": 409,
    "VM_MIN_COUNT_NOT_REACHED": 503,
    "INTERNAL_ERROR": 500,
    "RESOURCE_OPERATION_RATE_EXCEEDED": 429,
}
"""Status that an operation tells with an error."""


def stamp(at: float) -> str:
    """RFC 3339 with milliseconds, as the vendor writes instants."""
    seconds, milliseconds = divmod(round(at * 1000), 1000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{milliseconds:03d}Z"


def fingerprint(content: dict[str, str]) -> str:
    """Changes with the content; base64, as the vendor's."""
    text = "\x1f".join(f"{k}\x1e{v}" for k, v in sorted(content.items()))
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()[:8]).decode()


def _without_empty(found: dict[str, Any]) -> dict[str, Any]:
    """The API does not send fields that are empty."""
    return {k: v for k, v in found.items() if v not in ("", None, [], {})}
