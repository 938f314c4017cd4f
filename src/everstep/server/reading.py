"""Reading the logs of a job as one text: which logs, in which order, what of them, and how far a reader got."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass

from everstep.client.results import LogPart
from everstep.model.causes import Cause
from everstep.model.errors import BadInput, Problem
from everstep.model.ids import JobId
from everstep.model.job import GangPhase, JobState
from everstep.server.logs import LogBook, LogKey
from everstep.server.marks import Marked, Shown, join
from everstep.server.views import node_of

Read = Callable[[JobId, LogKey, int, int], Awaitable[tuple[int, bytes]]]
"""As ``LogBook.read``, wherever the bytes are."""
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

    def __init__(self, book: LogBook, read: Read, wanted: Wanted, *, offset: int = 0, cursor: str = "") -> None:
        """Starts at ``offset`` of each log (negative: before its end), or where the reader of ``cursor`` stopped.

        Args:
            book: which logs there are.
            read: what is in them.
            wanted: which of them.
            offset, cursor: where to start.

        Raises:
            BadInput: the cursor is not one.
        """
        self._book = book
        self._read = read
        self._wanted = wanted
        self._offset = offset
        self._done_before, self._at = _decode(cursor) if cursor else (-1, {})

    async def parts(self, state: JobState) -> AsyncGenerator[LogPart]:
        """What is there now and was not given yet."""
        nodes = {key: node_of(state, key.attempt, key.instance) for key in self._book.keys(state.id)}
        keys = [key for key, node in nodes.items() if self._wanted.takes(key, node)]
        texts = _texts(self._book, state, keys)
        for key in keys:
            if key.attempt < self._done_before:
                continue
            text, eof = texts[key], over(state, key)
            async for offset, data, last in self._pieces(state, key, text):
                first = offset <= text.stretches[0][0]
                yield LogPart(
                    attempt=key.attempt,
                    node=nodes[key],
                    rank=key.rank,
                    instance=key.instance,
                    offset=offset,
                    end=offset + len(data),
                    text=data.decode("utf-8", "replace"),
                    eof=eof and last and not text.cut,
                    continues=first and text.continues,
                    note=text.note if first else "",
                )

    @property
    def cursor(self) -> str:
        """Where the reader is. It names the logs of the newest attempts only, to stay small: older ones are over."""
        if not self._at:
            return ""
        newest = max(key.attempt for key in self._at)
        first = newest - _REMEMBERED_ATTEMPTS + 1
        return _encode(first, {key: at for key, at in self._at.items() if key.attempt >= first})

    async def _pieces(self, state: JobState, key: LogKey, text: Shown) -> AsyncIterator[tuple[int, bytes, bool]]:
        at = self._at.get(key)
        if at is None:
            end = self._book.end(state.id, key)
            at = max(0, end + self._offset) if self._offset < 0 else self._offset
        stretches = [(start, end) for start, end in text.stretches if end > start]
        for start, end in stretches:
            at = max(at, start)
            while at < end:
                offset, data = await self._read(state.id, key, at, min(PART_BYTES, end - at))
                data = data[: max(0, end - offset)]  # what was dropped meanwhile may reach behind it
                if not data:
                    break
                at = self._at[key] = offset + len(data)
                yield offset, data, at >= stretches[-1][1]


def _texts(book: LogBook, state: JobState, keys: Sequence[LogKey]) -> dict[LogKey, Shown]:
    """What of each log is shown: ranks are followed over the attempts, all else is as it is."""
    found: dict[LogKey, Shown] = {}
    by_rank: dict[str, list[Marked[LogKey]]] = {}
    for key in keys:
        marks, end = book.marks(state.id, key)
        end = book.end(state.id, key) if over(state, key) else end
        by_rank.setdefault(key.rank, []).append(Marked(key, marks, end, _failed(state, key)))
    for logs in by_rank.values():
        shown = join(logs)
        for log in logs:
            found[log.key] = shown.get(log.key) or Shown([])
            if not log.marks and any(other.marks for other in logs) and _resumed(state, log.key):
                found[log.key].note = "its output does not come here by itself alone; what it repeats is not cut"
    return found


def _failed(state: JobState, key: LogKey) -> bool:
    return any(a.no == key.attempt and a.cause is Cause.USER_ERROR for a in state.attempts)


def _resumed(state: JobState, key: LogKey) -> bool:
    return any(a.no == key.attempt and a.base is not None for a in state.attempts)


def over(state: JobState, key: LogKey) -> bool:
    """Whether nothing is written to a log any more; bytes may still be on their way."""
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
