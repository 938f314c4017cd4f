"""Machines, disks and transfers of a simulated cloud, as its own record holds them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from everstep.model.causes import InstanceEnd, NoticeKind
from everstep.model.ids import DeploymentId, InstanceId, JobId, VolumeId
from everstep.ports import LaunchRequest, VolumeSpec
from everstep.sim.world.supply import Lot


@dataclass(slots=True)
class Machine:
    """One machine. ``timers`` call off what is planned for it."""

    instance: InstanceId
    number: int
    lot: Lot
    request: LaunchRequest
    started_at: float
    price_usd_per_h: float
    ended_at: float | None = None
    end: InstanceEnd | None = None
    notice: NoticeKind | None = None
    deadline: float | None = None
    timers: list[Callable[[], None]] = field(default_factory=list)

    @property
    def alive(self) -> bool:
        """Still there."""
        return self.ended_at is None

    @property
    def doomed(self) -> bool:
        """Gone, or about to be taken."""
        return self.ended_at is not None or self.deadline is not None


@dataclass(slots=True)
class Disk:
    """One disk."""

    volume: VolumeId
    spec: VolumeSpec
    created_at: float
    deleted_at: float | None = None
    attached_to: InstanceId | None = None


@dataclass(frozen=True, slots=True)
class Transfer:
    """A checkpoint that went from region to region."""

    deployment: DeploymentId
    job: JobId
    instance: InstanceId
    at: float
    source: str
    target: str
    gigabytes: float
    usd_per_gb: float
