"""Facts that are looked up again and again, each handed over only once the one before it was taken in.

A sweep sees a machine that ended in every list until the journal says so. While the journal waits, for a full disk or
behind a thousand other lines, each sweep would put the same facts into the inbox again, and so lengthen the wait.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Protocol

from everstep.model.events import Event
from everstep.model.ids import JobId

_SLACK = 64


class Handed(Protocol):
    """What tells that a fact was taken in: a future, live."""

    def done(self) -> bool:
        """Whether it is durable, or was dropped."""
        ...


class Pending:
    """What was handed over and is not durable yet."""

    def __init__(self, put: Callable[[JobId, Event], Handed]) -> None:
        """Args: put: takes a fact."""
        self._put = put
        self._open: dict[Hashable, Handed] = {}
        self._most = _SLACK

    def tell(self, job: JobId, event: Event, *what: Hashable) -> None:
        """Hands a fact over unless it is on the way. ``what`` names it: facts of a type with the same names are one."""
        key = job, type(event), what
        before = self._open.get(key)
        if before is not None and not before.done():
            return
        if len(self._open) >= self._most:
            self._open = {key: handed for key, handed in self._open.items() if not handed.done()}
            self._most = 2 * len(self._open) + _SLACK
        self._open[key] = self._put(job, event)

    def __len__(self) -> int:
        """How many facts are on the way."""
        return sum(1 for handed in self._open.values() if not handed.done())
