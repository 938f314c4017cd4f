"""The simulated vendor's own meter: what it charges, from its own record.

It is the check of the ledger, so it shares no arithmetic with it: nothing here calls ``BillingRule``.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from everstep.model.causes import InstanceEnd
from everstep.providers.local.meter import rounded
from everstep.sim.world.things import Disk, Machine, Transfer

_HOUR = Decimal(3600)
Charge = dict[str, Any]


def compute_charge(machine: Machine, now: float) -> Charge:
    """The charge of one machine up to its end, or so far; ``quantity`` in hours."""
    rule = machine.request.offer.billing
    until = now if machine.ended_at is None else machine.ended_at
    lived = max(Decimal(until) - Decimal(machine.started_at), Decimal(0)) * Decimal(rule.time_scale)
    reclaimed = machine.end in (InstanceEnd.PREEMPTED, InstanceEnd.MAX_LIFE)
    if reclaimed and lived < Decimal(str(rule.free_if_reclaimed_within_s)):
        billed = Decimal(0)
    else:
        billed = rounded(lived, rule.granularity_s, rule.minimum_s)
    hours = billed / _HOUR
    return {
        "kind": "compute",
        "resource": machine.instance,
        "job": machine.request.job,
        "start": machine.started_at,
        "end": machine.ended_at,
        "quantity": float(hours),
        "price_usd": machine.price_usd_per_h,
        "cost_usd": float(hours * Decimal(str(machine.price_usd_per_h))),
        "reclaimed": reclaimed,
    }


def disk_charge(disk: Disk, now: float, usd_per_gib_h: float) -> Charge:
    """The charge of one disk until it was deleted, or so far; ``quantity`` in GiB-hours."""
    until = now if disk.deleted_at is None else disk.deleted_at
    hours = max(Decimal(until) - Decimal(disk.created_at), Decimal(0)) / _HOUR
    quantity = hours * Decimal(str(disk.spec.size_gib))
    return {
        "kind": "disk",
        "resource": disk.volume,
        "job": disk.spec.job,
        "start": disk.created_at,
        "end": disk.deleted_at,
        "quantity": float(quantity),
        "price_usd": usd_per_gib_h,
        "cost_usd": float(quantity * Decimal(str(usd_per_gib_h))),
        "reclaimed": False,
    }


def transfer_charge(transfer: Transfer) -> Charge:
    """The charge of one transfer; ``quantity`` in GB."""
    cost = Decimal(str(transfer.gigabytes)) * Decimal(str(transfer.usd_per_gb))
    return {
        "kind": "egress",
        "resource": f"{transfer.source}->{transfer.target}",
        "job": transfer.job,
        "start": transfer.at,
        "end": transfer.at,
        "quantity": transfer.gigabytes,
        "price_usd": transfer.usd_per_gb,
        "cost_usd": float(cost),
        "reclaimed": False,
    }
