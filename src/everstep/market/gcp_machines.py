"""GCP sells host and accelerator apart in catalogs: which host carries which accelerators."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from everstep.market.listed import Listed
from everstep.model.offers import MachineType

_FIXED = {
    "A100": {1: "a2-highgpu-1g", 2: "a2-highgpu-2g", 4: "a2-highgpu-4g", 8: "a2-highgpu-8g", 16: "a2-megagpu-16g"},
    "A100-80GB": {count: f"a2-ultragpu-{count}g" for count in (1, 2, 4, 8)},
    "H100": {count: f"a3-highgpu-{count}g" for count in (1, 2, 4, 8)},
    "H100-MEGA": {8: "a3-megagpu-8g"},
    "H200": {8: "a3-ultragpu-8g"},
    "B200": {8: "a4-highgpu-8g"},
}
"""Machine types that are sold with these accelerators alone."""

_G2 = {1: (4, 8, 12, 16, 32), 2: (24,), 4: (48,), 8: (96,)}
"""CPUs of g2 machines by their number of L4."""

_ATTACHED = ("K80", "P4", "P100", "T4", "V100")
"""Accelerators that are attached to n1 machines of the buyer's choice."""


def whole_machines(listed: Iterable[Listed]) -> Iterator[Listed]:
    """Rows of GCP's catalog with host and accelerator added up, in the order of the file.

    A machine with accelerators is listed once per host type that is made for them; accelerators of n1 machines on the
    one host that SkyPilot takes too (8 CPUs an accelerator, 32 at most, much memory). What has no host in its zone is
    not sold. A TPU needs none.
    """
    rows = list(listed)
    hosts = {(one.zone, one.machine.name): one for one in rows if one.machine.name}
    for one in rows:
        machine = one.machine
        if machine.name:
            # A host whose accelerators are another row is not sold without them.
            if machine.accelerator or machine.name.startswith("n1-"):
                yield one
        elif machine.accelerator.startswith("tpu-"):
            yield replace(one, machine=replace(machine, name=machine.accelerator))
        else:
            for name in _hosts(machine.accelerator, machine.accelerator_count):
                if (one.zone, name) in hosts:
                    yield _sum(hosts[one.zone, name], one)


def _hosts(accelerator: str, count: int) -> tuple[str, ...]:
    if accelerator == "L4":
        return tuple(f"g2-standard-{cpus}" for cpus in _G2.get(count, ()))
    if accelerator in _ATTACHED:
        return (f"n1-highmem-{min(8 * count, 32)}",)
    name = _FIXED.get(accelerator, {}).get(count)
    return (name,) if name else ()


def _sum(host: Listed, bare: Listed) -> Listed:
    accelerator, count = bare.machine.accelerator, bare.machine.accelerator_count
    # The same n1 machine with another accelerator is another pool.
    name = f"{host.machine.name}+{accelerator}:{count}" if accelerator in _ATTACHED else host.machine.name
    return Listed(
        MachineType(name, accelerator, count, host.machine.cpus, host.machine.memory_gib),
        host.region,
        host.zone,
        host.on_demand_usd_per_h + bare.on_demand_usd_per_h,
        host.spot_usd_per_h + bare.spot_usd_per_h,
    )
