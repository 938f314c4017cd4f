"""Object stores by the scheme of their URL."""

from __future__ import annotations

from typing import Any

from everstep.model.errors import BadInput, Problem
from everstep.plugins import BuiltIn, merge
from everstep.ports import Blobs

GROUP = "everstep.blobs"
"""Entry points of this group are callables ``(url: str, **options) -> Blobs``, named by the scheme they open."""

_OBSTORE = BuiltIn("everstep.blobs.objects:ObstoreBlobs")
BUILT_IN = {
    "file": BuiltIn("everstep.blobs.folder:open_url"),
    **dict.fromkeys(("memory", "s3", "gs", "az"), _OBSTORE),
}


def open_blobs(url: str, **options: Any) -> Blobs:
    """What is at ``url``: ``file:///path``, ``s3://bucket/prefix``, ``gs://``, ``az://``, ``memory://``, or others'.

    Args:
        url: what to open.
        options: for the opener; for object stores what ``ObstoreBlobs`` takes.

    Raises:
        BadInput: the scheme, the rest of the URL or an option is not understood, or a package is missing.
    """
    scheme, separator, _ = url.partition("://")
    openers = merge(GROUP, BUILT_IN)
    if not separator or scheme not in openers:
        # The URL itself may hold a password: show its scheme alone.
        shown = f"no object store is called '{scheme}'" if separator else "an object store is named by a URL"
        raise BadInput(Problem("", "blobs", shown, f"known: {', '.join(f'{name}://' for name in sorted(openers))}"))
    blobs: Blobs = openers[scheme]()(url, **options)
    return blobs
