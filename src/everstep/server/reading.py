"""Reading the logs of a job as one text: which logs, in which order, and how far a reader got."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass

from everstep.client.results import LogPart
from everstep.model.errors import BadInput, Problem
from everstep.model.job import GangPhase, JobState
from everstep.server.logs import LogBook, LogKey
from everstep.server.views import node_of

PART_BYTES = 256 << 10
_REMEMBERED_ATTEMPTS = 2


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which logs: None means all. Output of exec commands is shown only when it is asked for by name."""

    attempt: int | None = None
    node: int | None = None
    rank: str | None = None

    def takes(self, key: LogKey, node: int) -> bool:
        """Whether a log is among them."""
        if self.attempt not in (None, key.attempt) or self.node not in (None, node):
            return False
        return not key.is_exec if self.rank is None else self.rank == key.rank


class Reader:
    """One reader of one job's logs; goes through them in order and remembers where it was."""

    def __init__(self, book: LogBook, wanted: Wanted, *, offset: int = 0, cursor: str = "") -> None:
        """Starts at ``offset`` of each log (negative: before its end), or where the reader of ``cursor`` stopped.

        Raises:
            BadInput: the cursor is not one.
        """
        self._book = book
        self._wanted = wanted
        self._offset = offset
        self._done_before, self._at = _decode(cursor) if cursor else (-1, {})

    def parts(self, state: JobState) -> Iterator[LogPart]:
        """What is there now and was not given yet."""
        for key in self._book.keys(state.id):
            node = node_of(state, key.attempt, key.instance)
            if key.attempt < self._done_before or not self._wanted.takes(key, node):
                continue
            eof = _over(state, key)
            for offset, data, last in self._pieces(state, key):
                yield LogPart(
                    attempt=key.attempt,
                    node=node,
                    rank=key.rank,
                    instance=key.instance,
                    offset=offset,
                    end=offset + len(data),
                    text=data.decode("utf-8", "replace"),
                    eof=eof and last,
                )

    @property
    def cursor(self) -> str:
        """Where the reader is. It names the logs of the newest attempts only, to stay small: older ones are over."""
        if not self._at:
            return ""
        newest = max(key.attempt for key in self._at)
        first = newest - _REMEMBERED_ATTEMPTS + 1
        return _encode(first, {key: at for key, at in self._at.items() if key.attempt >= first})

    def _pieces(self, state: JobState, key: LogKey) -> Iterator[tuple[int, bytes, bool]]:
        while True:
            end = self._book.end(state.id, key)
            at = self._at.get(key)
            if at is None:
                at = max(0, end + self._offset) if self._offset < 0 else self._offset
            offset, data = self._book.read(state.id, key, at, PART_BYTES)
            if not data:
                return
            self._at[key] = offset + len(data)
            yield offset, data, offset + len(data) >= end


def _over(state: JobState, key: LogKey) -> bool:
    if state.phase.ended:
        return True
    return any(a.no == key.attempt and a.phase is GangPhase.ENDED for a in state.attempts)


def _encode(first: int, at: dict[LogKey, int]) -> str:
    data = [first, [[k.attempt, k.instance, k.rank, offset] for k, offset in at.items()]]
    return base64.urlsafe_b64encode(json.dumps(data, separators=(",", ":")).encode()).decode()


def _decode(cursor: str) -> tuple[int, dict[LogKey, int]]:
    try:
        first, rows = json.loads(base64.urlsafe_b64decode(cursor.encode()))
        return int(first), {LogKey(int(a), i, str(r)): int(offset) for a, i, r, offset in rows}
    except (ValueError, TypeError):
        raise BadInput(Problem("", "cursor", "is not a place in a log")) from None
