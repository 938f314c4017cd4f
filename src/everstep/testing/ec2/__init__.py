"""A fake EC2 that is as strict as the vendor: for our provider, and for any other client of the vendor's SDK.

``FakeEc2`` serves on loopback; point any SDK at ``url``::

    with FakeEc2(SMALL_WORLD) as ec2:
        boto3.client("ec2", "us-east-1", endpoint_url=ec2.url, ...)

It is moto's reading, writing, networks and catalog under rules of ours: tokens are idempotent and belong to their
parameters; capacity and spot prices follow the world's steps per zone; disks keep to their zone and to one machine; a
new machine is not visible at once; spot machines are warned before they are taken, with the right reasons; every
request must fit botocore's model of the service; what is not played is refused. ``python -m everstep.testing.ec2``
starts one. Needs moto (``pip install 'moto[server]'``), werkzeug and cryptography.

Parts: ``server`` and ``wire`` (the protocol), ``cloud``, ``launch`` and ``catalog`` (the rules), ``books`` (what is
there), ``market`` (what is for sale), ``paper`` (what is moto's), ``faults``, ``meter``, ``metadata`` and ``identity``.
"""

from __future__ import annotations

from everstep.testing.ec2.fake import FakeEc2
from everstep.testing.ec2.market import SMALL_WORLD, Supply, Timing, World

__all__ = ["SMALL_WORLD", "FakeEc2", "Supply", "Timing", "World"]
