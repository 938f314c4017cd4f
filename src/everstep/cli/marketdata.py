"""Market data for commands: where it is, and what must be said of it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from everstep.market.source import Found


def located(where: str, now: float) -> Found:
    """The data that a path or address names; what was fetched lies in the cache of this installation.

    Args:
        where: a path, ``file://`` or ``https://``.
        now: UTC seconds.

    Raises:
        BadInput: it is not there.
    """
    from everstep.client.home import default_home
    from everstep.market.source import find

    found = find(where, cache=default_home().path / "cache" / "market", now=now)
    if found.note:
        print(found.note, file=sys.stderr)
    return found
