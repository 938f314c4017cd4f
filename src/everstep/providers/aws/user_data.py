"""What a machine of EC2 does when it boots: user data that cloud-init runs. See ``providers/boot_script.py``."""

from __future__ import annotations

from collections.abc import Mapping

from everstep.model import handshake as hs
from everstep.providers import boot_script as common

ROOT = common.ROOT
METADATA_URL = "http://169.254.169.254"
LIMIT_BYTES = 16_384
"""EC2 takes no more, before it is encoded: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/user-data.html"""

# By IMDSv2.
_OWN_ID = r"""
def own_id():
    token = tell("/latest/api/token", "PUT", X_aws_ec2_metadata_token_ttl_seconds="300")
    return tell("/latest/meta-data/instance-id", X_aws_ec2_metadata_token=token)
"""


def boot_script(boot: Mapping[str, str], *, volume: str | None = None) -> str:
    """The script, a file that cloud-init runs at every boot.

    Args:
        boot: ``BOOT_*`` environment of the agent.
        volume: id of the disk to mount as ``volume`` below the agent's folder.

    Raises:
        ValueError: a name that no shell can set, or longer than EC2 takes.
    """
    # EBS shows a volume under its id without the dash.
    device = "" if volume is None else f"nvme-Amazon_Elastic_Block_Store_{volume.replace('-', '')}"
    return common.script(
        {hs.BOOT_METADATA: f"aws={METADATA_URL}", **boot},
        first=["#cloud-boothook", "#!/bin/sh"],
        own_id=_OWN_ID,
        volume=common.mounted(device, or_else="/dev/xvdf") if device else "",
        limit=("EC2", LIMIT_BYTES),
    )
