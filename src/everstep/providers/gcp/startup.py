"""What a machine does when it boots: a startup script. See ``providers/boot_script.py``.

It is run as root at every boot by the guest environment, which all of Google's images have
(https://docs.cloud.google.com/compute/docs/instances/startup-scripts/linux).
"""

from __future__ import annotations

from collections.abc import Mapping

from everstep.model import handshake as hs
from everstep.providers import boot_script as common

ROOT = common.ROOT
METADATA_URL = "http://metadata.google.internal"
LIMIT_BYTES = 262_144
"""https://docs.cloud.google.com/compute/docs/metadata/setting-custom-metadata: of one value."""
DEVICE = "everstep-volume"
"""Name of the disk in its machine; it shows as ``google-everstep-volume``."""

_OWN_ID = r"""
def own_id():
    return tell("/computeMetadata/v1/instance/name", Metadata_Flavor="Google")
"""
# The disk that is kept is the one it boots from.
_ON_BOOT_DISK = 'mkdir -p "$EVERSTEP_ROOT/volume"'


def boot_script(boot: Mapping[str, str], *, volume: str = "") -> str:
    """The script.

    Args:
        boot: ``BOOT_*`` environment of the agent.
        volume: how the kept disk is there as ``volume`` below the agent's folder: ``data`` = mounted, ``boot`` = it is
            the disk that the machine boots from, empty = there is none.

    Raises:
        ValueError: a name that no shell can set, or longer than Compute Engine takes.
    """
    kept = {"": "", "boot": _ON_BOOT_DISK, "data": common.mounted(f"google-{DEVICE}")}
    return common.script(
        {hs.BOOT_METADATA: f"gcp={METADATA_URL}", **boot},
        first=["#!/bin/sh"],
        own_id=_OWN_ID,
        volume=kept[volume],
        limit=("Compute Engine", LIMIT_BYTES),
    )
