"""Records with every field set, for tests that change one."""

from __future__ import annotations

from typing import Any

from everstep.providers.local.state import InstanceRecord, VolumeRecord


def instance(**changes: Any) -> InstanceRecord:
    fields: dict[str, Any] = {
        "id": "i-1",
        "token": "t-1",
        "params": "",
        "deployment": "d",
        "job": "j",
        "launch_no": 1,
        "zone": "a",
        "machine_type": "m",
        "market": "spot",
        "price_usd_per_h": 1.0,
        "granularity_s": 1.0,
        "minimum_s": 60.0,
        "free_if_reclaimed_within_s": 0.0,
        "time_scale": 1.0,
        "number": 1,
        "address": "127.20.0.1",
        "started_at": 1000.0,
        "boot_s": 0.0,
        "stop_grace_s": 5.0,
    }
    return InstanceRecord(**fields | changes)


def volume(**changes: Any) -> VolumeRecord:
    fields: dict[str, Any] = {
        "id": "vol-1",
        "deployment": "d",
        "job": "j",
        "name": "v",
        "zone": "a",
        "size_gib": 10.0,
        "usd_per_gib_h": 0.01,
        "time_scale": 1.0,
        "created_at": 1000.0,
    }
    return VolumeRecord(**fields | changes)
