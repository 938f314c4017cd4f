"""Logs of several attempts as one text: what a relaunch printed again is cut where it goes on.

A script that everstep resumes from outside leaves marks in its log (see "Marks" in ``model/handshake.py``): how much it
had printed at a save, and in a relaunch from where it goes on. The text of a job is then what came before that mark,
and what comes from there; a script that was over before a second one was interrupted stays as it was.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from everstep.model import handshake as hs

K = TypeVar("K")
_KINDS = "|".join((hs.LOG_AT, hs.LOG_AGAIN, hs.LOG_ON, hs.LOG_BESIDE)).encode()
_MARK = re.compile(
    re.escape(hs.LOG_MARK_BEGIN) + rb"(" + _KINDS + rb");([\w.-]{1,80});(\d{1,18})" + re.escape(hs.LOG_MARK_END)
)


@dataclass(frozen=True, slots=True)
class Mark:
    """One mark: ``start`` and ``end`` are offsets in the whole log."""

    kind: str
    script: str
    count: int
    start: int
    end: int


def find(data: bytes, base: int) -> tuple[list[Mark], int]:
    """The marks in a piece of a log that starts at offset ``base``, and the offset up to which there is no other.

    That is the end of the piece, unless a mark may have begun there.
    """
    found = [
        Mark(one[1].decode(), one[2].decode(), int(one[3]), base + one.start(), base + one.end())
        for one in _MARK.finditer(data)
    ]
    return found, base + _open_mark(data)


def _open_mark(data: bytes) -> int:
    """Where a mark begins that is cut by the end of ``data``; else its length."""
    begin = data.rfind(hs.LOG_MARK_BEGIN, max(0, len(data) - hs.LOG_MARK_LONGEST))
    if begin >= 0 and hs.LOG_MARK_END not in data[begin:]:
        return begin
    for length in range(min(len(hs.LOG_MARK_BEGIN) - 1, len(data)), 0, -1):
        if data.endswith(hs.LOG_MARK_BEGIN[:length]):
            return len(data) - length
    return len(data)


@dataclass(frozen=True, slots=True)
class Marked(Generic[K]):
    """A log and its marks.

    Attributes:
        end: up to where it can be shown.
        failed: its ranks ended by a failure of their own: what they said last is of interest, and stays.
    """

    key: K
    marks: Sequence[Mark]
    end: int
    failed: bool = False


@dataclass(slots=True)
class Shown:
    """What of one log belongs to the text.

    Attributes:
        stretches: offsets, ascending.
        cut: the text goes on in a later log.
        continues: the first stretch goes on in the middle of what an earlier log began.
        note: what could not be cut, and why; for people.
    """

    stretches: list[tuple[int, int]]
    cut: bool = False
    continues: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class _Piece(Generic[K]):
    """A stretch of a log, and all that comes before it in the text. ``jump``: not what stands before it in its log."""

    before: _Piece[K] | None
    key: K
    start: int
    end: int
    jump: bool = False


def join(logs: Sequence[Marked[K]]) -> Mapping[K, Shown]:
    """The text of one rank over its attempts, whose logs are given in their order."""
    joiner: _Joiner[K] = _Joiner()
    for log in logs:
        joiner.take(log)
    return joiner.shown()


class _Joiner(Generic[K]):
    def __init__(self) -> None:
        self._last: _Piece[K] | None = None
        self._places: dict[tuple[str, int], _Piece[K] | None] = {}
        self._notes: dict[K, str] = {}
        self._after_failure = False

    def take(self, log: Marked[K]) -> None:
        self._add(log.key, 0, log.marks[0].start if log.marks else log.end)
        alone = not _in_turns(log.marks)
        if not alone:
            self._notes[log.key] = "several scripts print into this log at once; what they repeat is not cut"
        block: list[Mark] | None = None
        ends = [*(mark.start for mark in log.marks[1:]), log.end]
        for mark, following in zip(log.marks, ends, strict=False):
            if mark.kind == hs.LOG_AGAIN:
                block = []
            elif mark.kind == hs.LOG_BESIDE:
                self._notes.setdefault(
                    log.key, "several ranks print into this log; where one of them goes on, lines of others may be off"
                )
            elif mark.kind == hs.LOG_ON:
                self._go_on(log.key, mark, block or [], alone=alone)
                block = None
            elif block is not None:
                block.append(mark)
            else:
                self._places[mark.script, mark.count] = self._last
            if block is None:
                self._add(log.key, mark.end, following)
        if log.failed:
            self._places.clear()
            self._after_failure = True

    def shown(self) -> dict[K, Shown]:
        found: dict[K, Shown] = {}
        piece, after = self._last, None
        while piece is not None:
            own = found.setdefault(piece.key, Shown([], note=self._notes.get(piece.key, "")))
            own.stretches.insert(0, (piece.start, piece.end))
            own.cut = own.cut or (after is not None and after.jump and after.key != piece.key)
            own.continues = piece.jump and (piece.before is None or piece.before.key != piece.key)
            piece, after = piece.before, piece
        return found

    def _go_on(self, key: K, on: Mark, block: Sequence[Mark], *, alone: bool) -> None:
        here = (on.script, on.count)
        marks = [*(mark for mark in block if mark.script == on.script), on]
        known = [number for number, mark in enumerate(marks) if (mark.script, mark.count) in self._places]
        if not alone or (not known and on.count == 0):
            self._places[here] = self._last
            return
        if not known and not self._after_failure:
            self._notes[key] = (
                "what was printed shortly before the save from which it goes on did not arrive here; "
                f"all of it is in stdout-0.log of the checkpoint folder {on.script}"
            )
        if not known:
            self._places[here] = self._last
            return
        first = marks[known[-1]]
        self._last = self._places[first.script, first.count]
        jump = True
        for mark, following in zip(marks[known[-1] : -1], marks[known[-1] + 1 :], strict=True):
            self._add(key, mark.end, following.start, jump=jump)
            jump = False
            self._places[following.script, following.count] = self._last
        if jump:
            self._add(key, on.end, on.end, jump=True)

    def _add(self, key: K, start: int, end: int, *, jump: bool = False) -> None:
        if end > start or jump:
            self._last = _Piece(self._last, key, start, end, jump)


def _in_turns(marks: Sequence[Mark]) -> bool:
    """True if a script has marks on both sides of those of another one: they run at the same time."""
    seen: set[str] = set()
    last = ""
    for mark in marks:
        if mark.script != last and mark.script in seen:
            return True
        seen.add(mark.script)
        last = mark.script
    return False
