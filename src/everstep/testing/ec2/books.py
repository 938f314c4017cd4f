"""What the fake vendor knows of machines, disks and spot requests. States follow from instants, never from timers."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

STATES = {"pending": 0, "running": 16, "shutting-down": 32, "terminated": 48}


@dataclass(slots=True)
class Attachment:
    """A disk in a machine."""

    machine: str
    device: str
    at: float
    delete_on_termination: bool = False


@dataclass(slots=True)
class Disk:
    """A volume.

    Attributes:
        visible_at: from then on the lists show it.
        made_with: the machine whose launch made it; empty for one that was made by itself.
    """

    id: str
    zone: str
    size_gib: int
    kind: str
    created_at: float
    available_at: float
    visible_at: float
    tags: dict[str, str]
    attachment: Attachment | None = None
    deleted_at: float | None = None
    made_with: str = ""

    def state(self, now: float) -> str:
        """As ``VolumeState``."""
        if self.deleted_at is not None:
            return "deleting"
        if now < self.available_at:
            return "creating"
        return "in-use" if self.attachment is not None else "available"

    def described(self, now: float) -> dict[str, Any]:
        """As in ``DescribeVolumes``."""
        a = self.attachment
        held = (
            []
            if a is None
            else [
                {
                    "VolumeId": self.id,
                    "InstanceId": a.machine,
                    "Device": a.device,
                    "State": "attached",
                    "AttachTime": moment(a.at),
                    "DeleteOnTermination": a.delete_on_termination,
                }
            ]
        )
        return {
            "VolumeId": self.id,
            "AvailabilityZone": self.zone,
            "Size": self.size_gib,
            "VolumeType": self.kind,
            "CreateTime": moment(self.created_at),
            "State": self.state(now),
            "Encrypted": False,
            "MultiAttachEnabled": False,
            "Attachments": held,
            "Tags": tag_list(self.tags),
        }


@dataclass(slots=True)
class SpotRequest:
    """The request behind a spot machine; ``code`` and ``updated_at`` are its status."""

    id: str
    machine: str
    created_at: float
    max_price_usd_per_h: float
    tags: dict[str, str]
    code: str = "fulfilled"
    updated_at: float = 0.0
    state: str = "active"

    def described(self) -> dict[str, Any]:
        """As in ``DescribeSpotInstanceRequests``."""
        return {
            "SpotInstanceRequestId": self.id,
            "InstanceId": self.machine,
            "CreateTime": moment(self.created_at),
            "SpotPrice": f"{self.max_price_usd_per_h:.6f}",
            "State": self.state,
            "Status": {"Code": self.code, "Message": self.code, "UpdateTime": moment(self.updated_at)},
            "Type": "one-time",
            "InstanceInterruptionBehavior": "terminate",
            "Tags": tag_list(self.tags),
        }


@dataclass(slots=True)
class Machine:
    """An instance.

    Attributes:
        token: client token of its launch.
        visible_at: from then on the lists show it and calls may name it.
        price_usd_per_h: what it is billed at.
        doom: when the vendor takes it back, and why; None = not announced.
        rebalance_at: since when a rebalance recommendation is in force.
        maintenance: scheduled events, as the metadata service tells them.
        profile: instance profile, whose role's credentials the metadata service gives out; empty = none.
        ends_at, gone_at: shutting-down and terminated from then on.
    """

    id: str
    reservation: str
    token: str
    kind: str
    zone: str
    region: str
    image: str
    subnet: str
    vpc: str
    groups: tuple[str, ...]
    address: str
    spot: SpotRequest | None
    price_usd_per_h: float
    launched_at: float
    runs_at: float
    visible_at: float
    tags: dict[str, str]
    user_data: str
    metadata_tokens: str
    placement_group: str = ""
    profile: str = ""
    doom: tuple[float, str] | None = None
    rebalance_at: float | None = None
    ends_at: float | None = None
    gone_at: float | None = None
    reason_code: str = ""
    reason: str = ""
    disks: list[str] = field(default_factory=list)
    maintenance: list[dict[str, str]] = field(default_factory=list)

    def state(self, now: float) -> str:
        """As ``InstanceStateName``."""
        if self.gone_at is not None and now >= self.gone_at:
            return "terminated"
        if self.ends_at is not None and now >= self.ends_at:
            return "shutting-down"
        return "pending" if now < self.runs_at else "running"

    def alive(self, now: float) -> bool:
        """Whether it holds capacity of its pool."""
        return self.ends_at is None or now < self.ends_at

    def described(self, now: float) -> dict[str, Any]:
        """As in ``DescribeInstances``."""
        state = self.state(now)
        over = state in ("shutting-down", "terminated")
        found: dict[str, Any] = {
            "InstanceId": self.id,
            "ImageId": self.image,
            "InstanceType": self.kind,
            "ClientToken": self.token,
            "LaunchTime": moment(self.launched_at),
            "AmiLaunchIndex": 0,
            "Architecture": "x86_64",
            "Placement": {
                "AvailabilityZone": self.zone,
                "Tenancy": "default",
                "GroupName": self.placement_group,
            },
            "State": {"Name": state, "Code": STATES[state]},
            "StateTransitionReason": self.reason if over else "",
            "SubnetId": self.subnet,
            "VpcId": self.vpc,
            "PrivateIpAddress": "" if over else self.address,
            "RootDeviceName": "/dev/sda1",
            "RootDeviceType": "ebs",
            "SecurityGroups": [{"GroupId": g} for g in self.groups],
            "MetadataOptions": {"HttpTokens": self.metadata_tokens, "HttpEndpoint": "enabled", "State": "applied"},
            "Tags": tag_list(self.tags),
        }
        if over:
            found["StateReason"] = {"Code": self.reason_code, "Message": f"{self.reason_code}: {self.reason}"}
        if self.spot is not None:
            found["InstanceLifecycle"] = "spot"
            found["SpotInstanceRequestId"] = self.spot.id
        return found


def moment(at: float) -> datetime:
    """An instant as the serializer wants it; EC2 tells whole seconds."""
    return datetime.fromtimestamp(int(at), UTC)


def gmt(at: float) -> str:
    """``2030-01-31 18:00:00 GMT``, as in reasons."""
    return moment(at).strftime("%Y-%m-%d %H:%M:%S GMT")


def tag_list(tags: dict[str, str]) -> list[dict[str, str]]:
    """``[{"Key", "Value"}, ...]``."""
    return [{"Key": key, "Value": value} for key, value in tags.items()]
