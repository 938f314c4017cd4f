"""What the fake vendor charges, by its billing pages. Shares no code with our ledger.

Linux by the second, at least 60 seconds (https://aws.amazon.com/ec2/pricing/on-demand/); a spot machine that EC2 takes
back within its first hour is free (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/
billing-for-interrupted-spot-instances.html); gp3 by the second, at least 60 (https://aws.amazon.com/ebs/pricing/).
"""

from __future__ import annotations

import math
from typing import Any

from everstep.testing.ec2.cloud import Cloud


def charges(cloud: Cloud, *, tag: tuple[str, str] | None = None) -> list[dict[str, Any]]:
    """One row per machine and volume, up to now.

    Args:
        cloud: the books.
        tag: only what has this tag.

    Returns:
        Rows of kind, resource, start, end (UTC seconds, None while it lasts), price_usd (per hour), cost_usd,
        reclaimed.
    """
    now, rows = cloud.now(), []
    for machine in cloud.machines.values():
        if tag is not None and machine.tags.get(tag[0]) != tag[1]:
            continue
        over = machine.ends_at is not None and machine.ends_at <= now
        reclaimed = over and machine.reason_code.startswith("Server.Spot")
        # The bill counts in the whole seconds that the API shows.
        start, end = int(machine.launched_at), int(machine.ends_at) if over and machine.ends_at else None
        seconds = max((int(now) if end is None else end) - start, 60)
        free = reclaimed and seconds < 3600
        cost = 0.0 if free else seconds / 3600 * machine.price_usd_per_h
        rows.append(_row("compute", machine.id, (start, end), machine.price_usd_per_h, cost, reclaimed=reclaimed))
    for disk in cloud.disks.values():
        if tag is not None and disk.tags.get(tag[0]) != tag[1]:
            continue
        price = disk.size_gib * cloud.world.disk_usd_per_gib_month / 730
        start = int(disk.created_at)
        end = None if disk.deleted_at is None else int(disk.deleted_at)
        seconds = max(math.ceil(now if end is None else end) - start, 60)
        rows.append(_row("disk", disk.id, (start, end), price, seconds / 3600 * price))
    return rows


def _row(
    kind: str, resource: str, life: tuple[int, int | None], price: float, cost: float, *, reclaimed: bool = False
) -> dict[str, Any]:
    return {
        "kind": kind,
        "resource": resource,
        "start": float(life[0]),
        "end": None if life[1] is None else float(life[1]),
        "price_usd": price,
        "cost_usd": cost,
        "reclaimed": reclaimed,
    }
