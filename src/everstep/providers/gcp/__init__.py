"""Google Compute Engine. Nothing of the vendor's client is imported before a call is made: that takes seconds.

Parts: ``provider`` (the eight methods), ``settings`` (what ``config.yaml`` may say), ``calls`` (the client, threads,
back-off, operations), ``errors`` (the vendor's codes and what they mean), ``market``, ``accelerators`` and ``pricing``
(types, zones, prices), ``naming`` (names and labels), ``launching``, ``bulk`` (many machines by one call) and
``blueprint`` (what they are to be like), ``disks``, ``listing`` and ``ends``, ``startup`` (what machines do when they
boot), ``identity`` (who machines are).
"""

from __future__ import annotations

from everstep.providers.gcp.provider import GcpProvider

__all__ = ["GcpProvider"]
