"""What a machine does when it boots: a startup script. See ``providers/boot_script.py``.

It is run as root at every boot by the guest environment, which all of Google's images have
(https://docs.cloud.google.com/compute/docs/instances/startup-scripts/linux).
"""

from __future__ import annotations

from collections.abc import Mapping

from everstep.model import handshake as hs
from everstep.providers import boot_script as common
from everstep.providers.gcp.naming import TABLE

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
# The name is followed by the number of the launch and the join token.
_OWN_LINE = r"""
def own_id():
    name = tell("/computeMetadata/v1/instance/name", Metadata_Flavor="Google")
    table = tell("/computeMetadata/v1/instance/attributes/@TABLE@", Metadata_Flavor="Google")
    (own,) = [line.split(" ") for line in table.splitlines() if line.startswith(name + " ")]
    os.environ["@TOKEN@"] = own[2]
    return name
"""
# The disk that is kept is the one it boots from.
_ON_BOOT_DISK = 'mkdir -p "$EVERSTEP_ROOT/volume"'


def boot_script(boot: Mapping[str, str], *, volume: str = "", one_of_many: bool = False) -> str:
    """The script.

    Args:
        boot: ``BOOT_*`` environment of the agent.
        volume: how the kept disk is there as ``volume`` below the agent's folder: ``data`` = mounted, ``boot`` = it is
            the disk that the machine boots from, empty = there is none.
        one_of_many: the script is that of many machines; each finds its join token in their table (``naming.TABLE``).

    Raises:
        ValueError: a name that no shell can set, or longer than Compute Engine takes.
    """
    own_line = _OWN_LINE.replace("@TABLE@", TABLE).replace("@TOKEN@", hs.BOOT_TOKEN)
    kept = {"": "", "boot": _ON_BOOT_DISK, "data": common.mounted(f"google-{DEVICE}")}
    return common.script(
        {hs.BOOT_METADATA: f"gcp={METADATA_URL}", **boot},
        first=["#!/bin/sh"],
        own_id=own_line if one_of_many else _OWN_ID,
        volume=kept[volume],
        limit=("Compute Engine", LIMIT_BYTES),
    )
