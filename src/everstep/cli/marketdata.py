"""Market data for commands: where it is, and what must be said of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
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


@contextmanager
def reading(where: str) -> Iterator[None]:
    """Tells on a terminal that a file is being read: a large history takes seconds."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(f"reading {where.rpartition('/')[2]}"):
        yield
