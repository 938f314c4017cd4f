"""Typed lines of a bill."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from everstep.model.ids import InstanceId, JobId
from everstep.model.offers import Market


class LineKind(StrEnum):
    """What a line charges for."""

    COMPUTE = "compute"
    DISK = "disk"
    EGRESS = "egress"
    ADDRESS = "address"
    STORAGE = "storage"


class Overhead(StrEnum):
    """Where paid time goes that is not useful work."""

    BOOT = "boot"
    SETUP = "setup"
    RESTORE = "restore"
    SAVE = "save"
    LOST_WORK = "lost_work"
    IDLE = "idle"
    KEPT = "kept"
    """Kept for debugging after a failure."""


@dataclass(frozen=True, slots=True)
class LedgerLine:
    """One charge.

    Attributes:
        resource: the provider's id of the machine, disk or address.
        start, end: UTC seconds by the provider's clock; end None = still running, cost so far.
        quantity: billed market hours (compute, address), GiB-hours (disk, storage) or GB (egress).
        price_usd: per unit of ``quantity``.
        cost_usd: the charge.
        price_source, price_as_of: where the price comes from.
        reclaimed: taken back by the vendor.
    """

    kind: LineKind
    job: JobId
    resource: str
    provider: str
    zone: str
    machine_type: str
    market: Market
    start: float
    end: float | None
    quantity: float
    price_usd: float
    cost_usd: float
    price_source: str
    price_as_of: float
    reclaimed: bool = False
    instance: InstanceId | None = None
