"""Identifiers. Each is a distinct type, so that a job id is never passed for an instance id.

Ids are made where chance is available (the composition root) and passed in; nothing here draws randomness.
"""

from __future__ import annotations

import hashlib
from typing import NewType

JobId = NewType("JobId", str)
"""``j-`` and 8 letters or digits; unique in a deployment."""
InstanceId = NewType("InstanceId", str)
"""The provider's own id of a machine."""
VolumeId = NewType("VolumeId", str)
DeploymentId = NewType("DeploymentId", str)
"""UUID of one installation; in every tag, so that two servers in one account never sweep each other."""
LaunchToken = NewType("LaunchToken", str)
"""Idempotency token of one launch call, at most 64 ASCII characters."""
StreamId = NewType("StreamId", str)
"""Name of a stream of the journal: ``job/<id>``, ``deployment`` or ``market``."""
AttemptNo = int
"""Number of an attempt of a job, from 1. The fence: messages of an older attempt are ignored."""

DEPLOYMENT_STREAM = StreamId("deployment")
MARKET_STREAM = StreamId("market")
"""What was seen of the market (``control/sights.py``)."""
JOB_STREAMS = "job/"
"""How the names of streams of jobs begin."""


def job_stream(job: JobId) -> StreamId:
    """The journal stream that holds everything about one job."""
    return StreamId(f"{JOB_STREAMS}{job}")


def launch_token(deployment: DeploymentId, job: JobId, launch_no: int, offer_key: str) -> LaunchToken:
    """Token of a launch call: the same call always has the same token, another offer never has (vendors refuse that).

    Args:
        deployment: the installation that launches.
        job: the job the machine is for.
        launch_no: number of the launch within the job, from 1.
        offer_key: ``Offer.key`` of what is launched.

    Returns:
        50 ASCII characters.
    """
    text = "\x1f".join((deployment, job, str(launch_no), offer_key))
    return LaunchToken("ev" + hashlib.sha256(text.encode()).hexdigest()[:48])
