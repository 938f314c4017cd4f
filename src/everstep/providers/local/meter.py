"""The box's own meter: what it charges, from its own record of starts, ends and prices.

It is the independent check of the ledger, so it shares no arithmetic with it: nothing here calls ``BillingRule``.
Money is counted in whole units of the granularity, in integers as long as possible.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import ROUND_CEILING, Decimal
from typing import Any

from everstep.model.causes import InstanceEnd
from everstep.providers.local.state import InstanceRecord, VolumeRecord

#: What a price or a time scale that is no binary fraction may add to a whole number of units.
_NOISE = Decimal("0.000000001")
_HOUR = Decimal(3600)


def compute_charge(machine: InstanceRecord, now: float) -> dict[str, Any]:
    """The charge of one machine up to its end, or so far: ``quantity`` in market hours."""
    end = now if machine.ended_at is None else machine.ended_at
    reclaimed = machine.end is InstanceEnd.PREEMPTED
    lived = _market_seconds(machine.started_at, end, machine.time_scale)
    if reclaimed and lived < Decimal(str(machine.free_if_reclaimed_within_s)):
        billed = Decimal(0)
    else:
        billed = rounded(lived, machine.granularity_s, machine.minimum_s)
    hours = billed / _HOUR
    return {
        "kind": "compute",
        "resource": machine.id,
        "job": machine.job,
        "zone": machine.zone,
        "machine_type": machine.machine_type,
        "market": machine.market,
        "start": machine.started_at,
        "end": machine.ended_at,
        "quantity": float(hours),
        "price_usd": machine.price_usd_per_h,
        "cost_usd": float(hours * Decimal(str(machine.price_usd_per_h))),
        "reclaimed": reclaimed,
    }


def rounded(lived: Decimal, granularity_s: float, minimum_s: float) -> Decimal:
    """Seconds that are billed for ``lived`` seconds: whole units of the granularity, at least the minimum."""
    unit = Decimal(str(granularity_s))
    units = (lived / unit).quantize(_NOISE).to_integral_value(rounding=ROUND_CEILING)
    return max(units * unit, Decimal(str(minimum_s)))


def disk_charge(volume: VolumeRecord, now: float) -> dict[str, Any]:
    """The charge of one disk until it was deleted, or so far: ``quantity`` in GiB-hours of market time, not rounded."""
    end = now if volume.deleted_at is None else volume.deleted_at
    hours = _market_seconds(volume.created_at, end, volume.time_scale) / _HOUR
    quantity = hours * Decimal(str(volume.size_gib))
    return {
        "kind": "disk",
        "resource": volume.id,
        "job": volume.job,
        "zone": volume.zone,
        "machine_type": "",
        "market": "",
        "start": volume.created_at,
        "end": volume.deleted_at,
        "quantity": float(quantity),
        "price_usd": volume.usd_per_gib_h,
        "cost_usd": float(quantity * Decimal(str(volume.usd_per_gib_h))),
        "reclaimed": False,
    }


def charges(
    machines: Iterable[InstanceRecord], volumes: Iterable[VolumeRecord], deployment: str, now: float
) -> list[dict[str, Any]]:
    """Every charge of a deployment, oldest first."""
    lines = [compute_charge(m, now) for m in machines if m.deployment == deployment]
    lines += [disk_charge(v, now) for v in volumes if v.deployment == deployment]
    return sorted(lines, key=lambda line: (line["start"], line["resource"]))


def _market_seconds(start: float, end: float, time_scale: float) -> Decimal:
    return max(Decimal(end) - Decimal(start), Decimal(0)) * Decimal(time_scale)
