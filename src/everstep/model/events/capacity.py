"""Machines and disks: what we are about to do, and what the provider tells."""

from __future__ import annotations

from dataclasses import dataclass

from everstep.model.causes import InstanceEnd
from everstep.model.events.event import Event
from everstep.model.gang import Slot
from everstep.model.ids import InstanceId, LaunchToken, VolumeId
from everstep.model.offers import Offer


@dataclass(frozen=True, slots=True)
class LaunchIntended(Event):
    """We are about to lease a machine; journalled before the call (rule 1)."""

    token: LaunchToken
    launch_no: int
    slot: Slot
    offer: Offer
    max_price_usd_per_h: float | None
    shared_folder: str = ""
    """Folder that all machines of the zone see, empty for none."""
    volume: VolumeId | None = None
    move: int = 0
    """The machine is to relieve one that works: number of the first launch of that move; 0 = it fills a gap."""


@dataclass(frozen=True, slots=True)
class LaunchSucceeded(Event):
    """The provider gave a machine; billing starts at ``started_at`` (UTC seconds, the provider's)."""

    token: LaunchToken
    instance: InstanceId
    started_at: float
    price_usd_per_h: float


@dataclass(frozen=True, slots=True)
class LaunchFailed(Event):
    """The provider said no. ``error`` is the ``kind`` of a ``ProviderError``."""

    token: LaunchToken
    error: str
    message: str


@dataclass(frozen=True, slots=True)
class TerminateIntended(Event):
    """We are about to end a machine."""

    instance: InstanceId
    reason: str


@dataclass(frozen=True, slots=True)
class InstanceEnded(Event):
    """The machine is gone, as the provider tells it.

    Attributes:
        ended_at: UTC seconds by the provider, end of billing.
        end: why; PREEMPTED and LOST count as events of the hazard.
        last_step: last step heard of, when the job's ranks can no longer tell.
    """

    instance: InstanceId
    ended_at: float
    end: InstanceEnd
    last_step: int | None = None
    last_step_at: float | None = None


@dataclass(frozen=True, slots=True)
class VolumeIntended(Event):
    """We are about to make a disk for a slot."""

    slot: Slot
    name: str
    zone: str
    provider: str
    size_gib: float


@dataclass(frozen=True, slots=True)
class VolumeReady(Event):
    """The disk is there. ``name``: which of the slot's disks; older journals do not say."""

    slot: Slot
    volume: VolumeId
    created_at: float
    price_usd_per_gib_h: float = 0.0
    name: str = ""


@dataclass(frozen=True, slots=True)
class VolumeFailed(Event):
    """The disk could not be made. ``name``: as in ``VolumeReady``."""

    slot: Slot
    error: str
    message: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class VolumeDeleteIntended(Event):
    """We are about to delete a disk."""

    volume: VolumeId


@dataclass(frozen=True, slots=True)
class VolumeDeleted(Event):
    """The disk is gone; billing ends at ``deleted_at``."""

    volume: VolumeId
    deleted_at: float
