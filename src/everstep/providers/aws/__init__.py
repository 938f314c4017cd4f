"""Amazon EC2. Nothing of boto3 is imported before a client is needed.

Parts: ``provider`` (the eight methods), ``settings`` (what ``config.yaml`` may say), ``calls`` (clients, back-off),
``errors`` (the vendor's codes and what they mean), ``market`` and ``pricing`` (types, zones, prices), ``launching``,
``listing``, ``volumes``, ``user_data``.
"""

from __future__ import annotations

from everstep.providers.aws.provider import AwsProvider

__all__ = ["AwsProvider"]
