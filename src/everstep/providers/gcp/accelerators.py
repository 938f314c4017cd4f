"""Machine types and accelerators: the vendor's names and ours."""

from __future__ import annotations

from typing import Any

from everstep.model.offers import MachineType

NAMES = {
    # https://docs.cloud.google.com/compute/docs/gpus
    "nvidia-tesla-k80": "K80",
    "nvidia-tesla-p4": "P4",
    "nvidia-tesla-p100": "P100",
    "nvidia-tesla-t4": "T4",
    "nvidia-tesla-v100": "V100",
    "nvidia-l4": "L4",
    "nvidia-tesla-a100": "A100",
    "nvidia-a100-80gb": "A100-80GB",
    "nvidia-h100-80gb": "H100",
    "nvidia-h100-mega-80gb": "H100-MEGA",
    "nvidia-h200-141gb": "H200",
    "nvidia-b200": "B200",
}
"""Vendor's name to the canonical one of ``MachineType.accelerator``."""
_VENDORS = {ours: theirs for theirs, ours in NAMES.items()}


def vendors_name(accelerator: str) -> str:
    """``nvidia-tesla-t4`` of ``T4``; what is not known goes through as it is."""
    return _VENDORS.get(accelerator, accelerator)


def machine_of(described: dict[str, Any], attached: tuple[str, int] | None = None) -> MachineType | None:
    """A machine type as the API describes it.

    Args:
        described: ``MachineType`` of REST.
        attached: accelerator, by its canonical name, and how many are to be attached.

    Returns:
        None for what cannot run our images (ARM), and for accelerators attached where some are built in.
    """
    if described.get("architecture", "X86_64") == "ARM64":
        return None
    built_in = described.get("accelerators", [])
    name, accelerator, count = str(described["name"]), "", 0
    if built_in:
        if attached is not None:
            return None
        accelerator = NAMES.get(built_in[0]["guestAcceleratorType"], built_in[0]["guestAcceleratorType"])
        count = int(built_in[0]["guestAcceleratorCount"])
    elif attached is not None:
        accelerator, count = attached
        name = f"{name}+{accelerator}:{count}"
    return MachineType(name, accelerator, count, float(described["guestCpus"]), float(described["memoryMb"]) / 1024.0)


def parted(name: str) -> tuple[str, tuple[str, int] | None]:
    """``n1-standard-8`` and ``("T4", 1)`` of ``n1-standard-8+T4:1``."""
    kind, _, rest = name.partition("+")
    accelerator, _, count = rest.partition(":")
    return kind, (accelerator, int(count)) if rest else None
