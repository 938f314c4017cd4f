"""Object stores behind one port: ``open_blobs(url)`` and what it opens."""

from __future__ import annotations

from everstep.blobs.probe import UnsafeBlobs, probe_if_absent
from everstep.blobs.registry import open_blobs

__all__ = ["UnsafeBlobs", "open_blobs", "probe_if_absent"]
