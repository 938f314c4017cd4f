"""The way of a relaunch to the saved safe point: loops that were going are entered where they were, loops that were
over and had steps do no pass, everything else runs as it did.

Loops are told apart by how often each had been entered in the same pass of the loop around it. So a function that
evaluates first and trains then, with one and the same loop, is no riddle.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any, Protocol

from everstep.train.loaders import WrongData
from everstep.train.script import states
from everstep.train.script.advance import adopt_check, advance, watch
from everstep.train.script.checksums import checksum
from everstep.train.script.frames import set_locals
from everstep.train.script.graph import Poison
from everstep.train.script.heads import Heads, Loop, Marker, Record
from everstep.train.script.path import Ended, Path, Turn
from everstep.train.script.plain import NOT_PLAIN
from everstep.train.script.refusal import refuse


class Arrival(Protocol):
    """What happens to the script's objects on the way."""

    def early(self, frame: FrameType) -> None:
        """Write the saved values for the first time, so that conditions on the way see them."""

    def arrive(self, record: Record) -> None:
        """The safe point is reached: everything is put back."""


class Replaying:
    """Leads a relaunch to the safe point of ``path``.

    Args:
        heads: of this process; its `replay` is reset when the safe point is reached.
        path: the saved safe point.
        arrival: told when objects are to be written.
    """

    def __init__(self, heads: Heads, path: Path, arrival: Arrival) -> None:
        self._heads = heads
        self._turns = path.turns
        self._arrival = arrival
        self._level = 0
        self._skipped: dict[Loop, Ended] = {}
        regions = [path.ended, *(turn.ended for turn in path.turns[:-1])]
        self._ended = [{(ended.key, ended.ordinal): ended for ended in region} for region in regions]

    # --- what `Heads` asks -----------------------------------------------------------------------------------------

    def enter_for(self, record: Record, iterable: Iterable[Any]) -> Iterator[Any]:
        """What a ``for`` loop that is entered draws from."""
        ended = self._over(record)
        if ended is not None:
            self._skip(record, ended)
            return iter(())
        turn = self._wanted(record)
        if turn is None:
            record.iterator = watch(iter(iterable))
            return self._heads.passes(record)
        return self._depart(record, turn, iterable)

    def enter_while(self, record: Record) -> bool:
        """Whether a ``while`` loop that is entered does a pass."""
        ended = self._over(record)
        Marker.forced = False
        if ended is not None:
            self._skip(record, ended)
            return False
        turn = self._wanted(record)
        self._heads.stack.append(record)
        record.begun = 1
        if turn is not None:
            self._depart_while(record, turn)
        return True

    def exhausted(self, loop: Loop) -> bool:
        """False if the loop was skipped and had not ended by itself."""
        ended = self._skipped.get(loop)
        return ended is None or ended.how == "exhausted"

    def returned(self, loop: Loop) -> bool:
        """True if the loop, which was skipped, had ended by ``return``."""
        ended = self._skipped.get(loop)
        return ended is not None and ended.how == "returned"

    def result(self, loop: Loop) -> Any:
        """What it had returned."""
        value = self._skipped[loop].value
        return _unknown(loop, "what it returned") if value is NOT_PLAIN else value

    # --- loops that were over --------------------------------------------------------------------------------------

    def _here(self) -> bool:
        """True if nothing but loops of the path is active, so that what begins now may be on it."""
        return len(self._heads.stack) == self._level + 1

    def _over(self, record: Record) -> Ended | None:
        assert record.loop is not None
        self._skipped.pop(record.loop, None)
        return self._ended[self._level].get((record.loop.key, record.ordinal)) if self._here() else None

    def _skip(self, record: Record, ended: Ended) -> None:
        loop, frame = record.loop, record.frame
        assert loop is not None
        assert frame is not None
        if ended.how == "raised":
            refuse(
                f"{where(loop)} had ended by an exception ({ended.value}) before the save, and cannot be skipped; "
                "let it end by break or return"
            )
        self._skipped[loop] = ended
        self._heads.stack[-1].ended.append(ended)
        loop.stepping = True
        if frame.f_locals is not frame.f_globals:
            _set_results(frame, loop, ended.values)
        self._arrival.early(frame)
        states.restore(ended.states)

    # --- loops that were going -------------------------------------------------------------------------------------

    def _wanted(self, record: Record) -> Turn | None:
        assert record.loop is not None
        if not self._here():
            return None
        turn = self._turns[self._level]
        return turn if (turn.key, turn.ordinal) == (record.loop.key, record.ordinal) else None

    def _begin(self, record: Record, turn: Turn) -> bool:
        """Common to all loops of the path; true for the innermost."""
        assert record.frame is not None
        self._arrival.early(record.frame)
        record.start = turn.start
        record.begun = turn.begun
        self._level += 1
        return self._level == len(self._turns)

    def _depart(self, record: Record, turn: Turn, iterable: Iterable[Any]) -> Iterator[Any]:
        loop = record.loop
        assert loop is not None
        if record.length != turn.length:
            refuse(
                f"{where(loop)} iterated over {turn.length} items when it was saved, now over {record.length}: "
                "what it iterates over must not depend on anything outside the script and its checkpoint"
            )
        innermost = self._begin(record, turn)
        taken = turn.begun if innermost else turn.begun - 1
        states.restore(turn.start, iterable)
        try:
            record.iterator = watch(iter(iterable))
            if innermost and turn.in_graph:
                assert turn.position is not None
                adopt_check(record.iterator, turn.position)
            else:
                record.iterator = advance(record.iterator, taken, turn.position)
        except WrongData as error:
            refuse(f"{where(loop)} cannot go on where it was: {error}")
        if innermost:
            self._arrive(record)
            return self._heads.passes(record)
        return self._heads.resumed(record, self._last_item(record, turn))

    def _last_item(self, record: Record, turn: Turn) -> Any:
        """The item of the pass that was under way, from the random state in which it was fetched."""
        assert record.loop is not None
        assert turn.before is not None
        states.restore(turn.before)
        item = next(record.iterator, _NOTHING)
        if checksum(item) != turn.item:
            refuse(
                f"{where(record.loop)} hands out something else in pass {turn.begun} than when it was saved: "
                "what it iterates over keeps state that could not be restored, or depends on something outside"
            )
        self._inside(record, turn)
        return item

    def _depart_while(self, record: Record, turn: Turn) -> None:
        if self._begin(record, turn):
            self._arrive(record)
            record.begun += 1
            return
        assert turn.before is not None
        states.restore(turn.before)
        self._inside(record, turn)
        Marker.forced = True

    def _inside(self, record: Record, turn: Turn) -> None:
        assert record.loop is not None
        record.loop.outer = record.loop.stepping = record.noting = True
        record.stepped = True
        record.before, record.before_at, record.item = turn.before, turn.begun - 1, turn.item

    def _arrive(self, record: Record) -> None:
        assert record.loop is not None
        record.loop.stepping = record.stepped = True
        self._heads.replay = None
        self._arrival.arrive(record)


@dataclass(frozen=True)
class _Nothing:
    """What an iterator gives that is at its end."""


_NOTHING = _Nothing()


def where(loop: Loop) -> str:
    """A loop, for people."""
    site = loop.site
    return f"the loop at {site.place} ({site.function})"


def _unknown(loop: Loop, what: str) -> Any:
    return Poison(where(loop), what, "the loop was over before the save, and this is not among what is kept of it")


def _set_results(frame: FrameType, loop: Loop, values: dict[str, Any]) -> None:
    """Give a function the plain values it had at the end of its loop; what is not known refuses when it is used."""
    bound = frame.f_locals
    found: dict[str, Any] = {}
    for name in frame.f_code.co_varnames:
        if name in values:
            found[name] = values[name]
        elif name not in bound:
            found[name] = _unknown(loop, name)
    _fill_lists(bound, found)
    set_locals(frame, found, (), None)


def _fill_lists(bound: dict[str, Any], found: dict[str, Any]) -> None:
    """Containers that are there already are filled in place: others may hold them too."""
    for name, value in list(found.items()):
        there: Any = bound.get(name)
        if type(there) is not type(value):
            continue
        if isinstance(there, list):
            there[:] = value
            del found[name]
        elif isinstance(there, dict | set):
            there.clear()
            there.update(value)
            del found[name]
