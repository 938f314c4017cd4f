"""What the fake vendor charges, by its billing pages. Shares no code with our ledger.

Machines by the second, at least a minute, from RUNNING until they have stopped; nothing for a spot machine that is
taken back within its first minute, and nothing for a machine in repair (https://cloud.google.com/compute/vm-instance-
pricing, https://docs.cloud.google.com/compute/docs/instances/instance-lifecycle). Disks by the second, of the month
(https://cloud.google.com/compute/disks-image-pricing), whatever the machine does that has them.
"""

from __future__ import annotations

from typing import Any

from everstep.testing.gce.cloud import Cloud

_HOURS_PER_MONTH = 730.0


def charges(cloud: Cloud, *, label: tuple[str, str] | None = None) -> list[dict[str, Any]]:
    """One row per machine and disk, up to now.

    Args:
        cloud: the books.
        label: only what has this label.

    Returns:
        Rows of kind, resource (``NAME`` or ``disks/NAME``), id (the vendor's number: a name can be used again), start,
        end (UTC seconds, None while it lasts), price_usd (per hour), cost_usd, reclaimed.
    """
    now, rows = cloud.now(), []
    for machine in cloud.machines.values():
        if machine.fails_at is not None or now < machine.runs_at:
            continue
        if label is not None and machine.labels.get(label[0]) != label[1]:
            continue
        over = machine.stopped_at is not None and machine.stopped_at <= now
        # Whose end it was if both wanted it the vendor's pages do not say; charged is the dearer answer.
        reclaimed = over and machine.preempted_at is not None and not machine.given_up
        start, end = round(machine.runs_at, 3), round(machine.stopped_at, 3) if over and machine.stopped_at else None
        lived = (now if end is None else end) - start
        if lived < 0:  # ended before it ran
            continue
        if machine.repairs_at is not None:
            lived -= max(min(machine.repaired_at or now, end or now, now) - machine.repairs_at, 0.0)
        cost = 0.0 if reclaimed and lived < 60 else max(_whole(lived), 60) / 3600 * machine.price_usd_per_h
        row = _row("compute", machine.name, (start, end), machine.price_usd_per_h, cost)
        rows.append({**row, "id": str(machine.id), "reclaimed": reclaimed})
    for disk in cloud.disks.values():
        if label is not None and disk.labels.get(label[0]) != label[1]:
            continue
        price = disk.size_gb * cloud.world.disk_usd_per_gib_month[disk.kind] / _HOURS_PER_MONTH
        start = round(disk.created_at, 3)
        end = None if disk.deleted_at is None else round(disk.deleted_at, 3)
        seconds = _whole((now if end is None else end) - start)
        row = _row("disk", f"disks/{disk.name}", (start, end), price, seconds / 3600 * price)
        rows.append({**row, "id": str(disk.id)})
    return rows


def _whole(seconds: float) -> int:
    """Rounded up; the slack keeps 60.000000001 from being the next second."""
    return int(-(-(seconds - 1e-6) // 1))


def _row(kind: str, resource: str, life: tuple[float, float | None], price: float, cost: float) -> dict[str, Any]:
    return {
        "kind": kind,
        "resource": resource,
        "start": life[0],
        "end": life[1],
        "price_usd": price,
        "cost_usd": cost,
        "reclaimed": False,
    }
