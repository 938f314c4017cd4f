"""Loops at run time: which are active, how far each is, and what a replay of the script needs to know of them.

A pass through a loop costs a counter compare, unless a step happened in it. Random states are noted before a loop
begins and before each pass of a loop that has stepping loops inside: only there a replay has to begin a pass again.
"""

from __future__ import annotations

import operator
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any, ClassVar, Protocol

import torch

from everstep.train.script import states
from everstep.train.script.advance import watch
from everstep.train.script.checksums import checksum
from everstep.train.script.holders import Entrances
from everstep.train.script.path import Ended
from everstep.train.script.plain import SIMPLE, plain, plain_locals
from everstep.train.script.rewrite import Rewritten, Site
from everstep.train.script.steps import Steps

_PATIENCE = 16
_is_compiling, _thread = torch.compiler.is_compiling, threading.get_ident
_UNWATCHED = frozenset([range, list, tuple])
"""What needs no question whether to watch it."""
_NEVER_DRAW = frozenset([range, list, tuple, dict, set, enumerate, zip])
"""Making an iterator of these draws no random numbers: one note does for before and behind."""


class Loop:
    """One site of a user module, and what was learnt about it.

    Attributes:
        site: the place in the source.
        key: the same in every process that runs this source.
        outer: steps happen in loops inside it: the state before each pass is worth noting.
        stepping: steps happen in it: the state before its iterator is worth noting.
        patience: how many more times a loop that never stepped is noted all the same.
    """

    __slots__ = ("key", "outer", "patience", "site", "stepping")

    def __init__(self, site: Site) -> None:
        self.site = site
        self.key = (site.module, site.number)
        self.outer = False
        self.stepping = False
        self.patience = _PATIENCE


class Record:
    """One time that a loop is gone through, as long as it lasts; the root of all stands for the script itself.

    Attributes:
        around: it and all loops around it are known to have a loop inside that steps.
        loop: None for the root.
        frame: of the function that the loop is in.
        ordinal: how many times this loop had been entered before, in the same pass of the loop around it.
        begun: passes begun.
        counted: steps at the last head.
        began_at: steps at the beginning.
        noting: note the random states before each pass.
        start: random states before the iterator was made; None: not noted.
        before: random states before the pass after ``before_at`` passes.
        item: checksum of the last item that was handed out, where `noting`; None: it is that of ``atom``.
        atom: the last item itself, if it is a number or a text; its checksum is made when somebody asks for it.
        length: of what is iterated over, if it tells.
        iterator: what a ``for`` draws from; None for ``while``.
        entries: per loop inside, how often it was entered in this pass.
        ended: loops inside that took steps and are over, in this pass.
        exhausted: it ended by itself.
        shared: a variable holds the iterator, too, which is no `Watched`; None: and it cannot be in the graph.
    """

    __slots__ = (
        "around",
        "atom",
        "before",
        "before_at",
        "began_at",
        "begun",
        "counted",
        "ended",
        "entries",
        "exhausted",
        "frame",
        "item",
        "iterator",
        "length",
        "loop",
        "noting",
        "ordinal",
        "shared",
        "start",
        "stepped",
    )

    def __init__(self, loop: Loop | None, frame: FrameType | None, ordinal: int, steps: int) -> None:
        self.loop = loop
        self.frame = frame
        self.ordinal = ordinal
        self.begun = 0
        self.counted = self.began_at = steps
        self.noting = False
        self.start: states.States | None = None
        self.before: states.States | None = None
        self.before_at = -1
        self.item: str | None = ""
        self.atom: Any = None
        self.length: int | None = None
        self.iterator: Any = None
        self.entries: dict[Loop, int] = {}
        self.ended: list[Ended] = []
        self.exhausted = self.stepped = self.around = False
        self.shared: bool | None = False

    def checksum(self) -> str:
        """Of the last item that was handed out, "" where it was not noted."""
        return checksum(self.atom) if self.item is None else self.item


class Replay(Protocol):
    """Where a relaunch has to go; see `everstep.train.script.replay`."""

    def enter_for(self, record: Record, iterable: Iterable[Any]) -> Iterator[Any]:
        """What a ``for`` loop that is entered draws from."""

    def enter_while(self, record: Record) -> bool:
        """Whether a ``while`` loop that is entered does a pass."""

    def returned(self, loop: Loop) -> bool:
        """True if the loop, which was skipped, had ended by ``return``."""

    def result(self, loop: Loop) -> Any:
        """What it had returned."""

    def exhausted(self, loop: Loop) -> bool:
        """False if the loop was skipped and had not ended by itself."""


class Heads:
    """All active loops of the main thread, innermost last.

    Args:
        steps: the counter of steps.
        passed: called at each head with a step since the last head of the same loop: a safe point, perhaps.

    Attributes:
        stack: records of the active loops; the first is the root.
        replay: set while a relaunch makes its way to the saved loop.
        inert: nothing is recorded any more, as in forked children.
        entering: called when an outermost loop is entered, until the first step, with its frame, or None if the loop
            never stepped before and is not noted any more; not in a relaunch.
    """

    def __init__(self, steps: Steps, passed: Callable[[Record], None]) -> None:
        self.steps = steps
        self._passed = passed
        self.stack: list[Record] = [Record(None, None, 0, 0)]
        self.replay: Replay | None = None
        self.inert = False
        self.entering: Callable[[FrameType | None], None] | None = None
        self.main = threading.get_ident()
        self.leaving: tuple[FrameType, Any] | None = None
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        self.inert = True

    # --- beginning ------------------------------------------------------------------------------------------------

    def record(self, loop: Loop, frame: FrameType) -> Record:
        """A new record of a loop that is entered now; not active yet."""
        entries = self.stack[-1].entries
        ordinal = entries.get(loop, 0)
        entries[loop] = ordinal + 1
        return Record(loop, frame, ordinal, self.steps.count)

    def begin_for(self, loop: Loop, frame: FrameType, iterable: Iterable[Any]) -> Iterator[Any]:
        """What the loop draws its items from."""
        record, kind = self.record(loop, frame), type(iterable)
        record.length = _length(iterable)
        if self.replay is not None:
            return self.replay.enter_for(record, iterable)
        record.start = self._noted_start(loop, frame, iterable)
        record.iterator = iter(iterable) if kind in _UNWATCHED else watch(iter(iterable))
        if record.start is not None and kind in _NEVER_DRAW:
            record.noting, record.before, record.before_at = True, record.start, 0
        else:
            self._note_first(record)
        return self.passes(record)

    def begin_while(self, loop: Loop, frame: FrameType) -> bool:
        """Whether the loop does its first pass, as far as we are concerned."""
        record = self.record(loop, frame)
        if self.replay is not None:
            return self.replay.enter_while(record)
        record.start = self._noted_start(loop, frame, None)
        self._note_first(record)
        self.stack.append(record)
        record.begun = 1
        return True

    def _noted_start(self, loop: Loop, frame: FrameType, iterable: Any) -> states.States | None:
        noted = loop.stepping
        if not noted:
            loop.patience -= 1
            noted = loop.patience >= 0
        if self.entering is not None and len(self.stack) == 1:
            if self.steps.count:
                self.entering = None
            else:
                self.entering(frame if noted else None)
        return states.capture(iterable) if noted else None

    def _note_first(self, record: Record) -> None:
        if record.start is not None:
            record.noting, record.before, record.before_at = True, states.capture(None), record.begun

    def passes(self, record: Record) -> Iterator[Any]:
        """Hands out the items of a loop and looks after each pass; the record is active from the first item on."""
        steps = self.steps
        self.stack.append(record)
        for item in record.iterator:
            record.begun += 1
            if record.noting:
                record.item, record.atom = (None, item) if type(item) in SIMPLE else (checksum(item), None)
            yield item
            if record.entries:
                record.entries.clear()
                record.ended.clear()
            if steps.count != record.counted or record.noting:
                self.look(record)
        record.exhausted = True

    def resumed(self, record: Record, item: Any) -> Iterator[Any]:
        """Like `passes` for a loop in the middle of a pass, whose item is ``item``."""
        self.stack.append(record)
        yield item
        record.entries.clear()
        record.ended.clear()
        # Still active: a save that is made here has to know of this loop.
        self.look(record)
        self.stack.pop()
        yield from self.passes(record)

    # --- going on -------------------------------------------------------------------------------------------------

    def look(self, record: Record) -> None:
        """The head of a loop after a step, or of a loop whose random states are noted."""
        assert record.loop is not None
        if self.steps.count != record.counted:
            record.counted = self.steps.count
            if not record.stepped:
                self._first_step(record)
            self._passed(record)
        record.noting = record.loop.outer
        if record.noting:
            record.before, record.before_at = states.capture(None), record.begun

    def _first_step(self, record: Record) -> None:
        assert record.loop is not None
        record.stepped = True
        record.loop.stepping = True
        if self.stack[-2:][0].around:
            return
        for outer in self.stack[:-1]:
            outer.around = outer.noting = True
            if outer.loop is not None:
                outer.loop.outer = outer.loop.stepping = True

    # --- the end --------------------------------------------------------------------------------------------------

    def end(self, record: Record) -> None:
        """A loop is over, however it ended."""
        while self.stack.pop() is not record:
            pass
        assert record.loop is not None
        if self.steps.count != record.began_at:
            self.stack[-1].ended.append(self._ended(record))
        if self.leaving is not None and self.leaving[0] is record.frame and not record.loop.site.parents:
            self.leaving = None
        record.iterator = record.frame = None

    def _ended(self, record: Record) -> Ended:
        assert record.loop is not None
        assert record.frame is not None
        how, value, raised = "exhausted" if record.exhausted else "left", None, sys.exc_info()[1]
        if raised is not None and _in_flight(raised, record):
            how, value = "raised", f"{type(raised).__name__}: {raised}"
        elif self.leaving is not None and self.leaving[0] is record.frame:
            how, value = "returned", plain(self.leaving[1])
        return Ended(record.loop.key, record.ordinal, how, value, states.capture(None), plain_locals(record.frame))


class Marker(Entrances):
    """What stands under ``__everstep__`` in a user module. In threads and in forked children it does nothing.

    Attributes:
        forced: a ``while`` that is being entered by a replay does its pass whatever its condition says.
        rewritten: the module.
    """

    __slots__ = ("_heads", "_loops", "rewritten")
    forced: ClassVar[bool] = False

    def __init__(self, heads: Heads, rewritten: Rewritten) -> None:
        self._heads = heads
        self._loops = tuple(Loop(site) for site in rewritten.sites)
        self.rewritten = rewritten

    def loop(self, number: int, iterable: Iterable[Any]) -> Iterable[Any]:
        """What a ``for`` over ``iterable`` iterates over instead."""
        if _is_compiling():
            return iterable
        heads = self._heads
        if heads.inert or _thread() != heads.main:
            return iterable
        return heads.begin_for(self._loops[number], sys._getframe(1), iterable)

    def head(self, number: int) -> bool:
        """Called before the condition of a ``while``. False: the loop is skipped."""
        if _is_compiling():
            return True
        heads = self._heads
        if heads.inert or _thread() != heads.main:
            return True
        loop, frame = self._loops[number], sys._getframe(1)
        record = heads.stack[-1]
        if record.loop is not loop or record.frame is not frame:
            return heads.begin_while(loop, frame)
        Marker.forced = False
        if record.entries:
            record.entries.clear()
            record.ended.clear()
        if heads.steps.count != record.counted or record.noting:
            heads.look(record)
        record.begun += 1
        return True

    def over(self, number: int) -> None:
        """Called when a loop is over, however it ended."""
        if _is_compiling() or self._heads.inert:
            return
        record = self._heads.stack[-1]
        if record.loop is self._loops[number] and record.frame is sys._getframe(1):
            self._heads.end(record)

    def exhausted(self, number: int) -> bool:
        """Whether the ``else`` of a loop runs, which its own end has led to."""
        if _is_compiling():
            return True
        heads = self._heads
        record = heads.stack[-1]
        if record.loop is self._loops[number] and record.frame is sys._getframe(1):
            record.exhausted = True
        return heads.replay is None or heads.replay.exhausted(self._loops[number])

    def leaving(self, value: Any) -> Any:
        """Passes on what a ``return`` inside a loop returns."""
        if not _is_compiling() and _thread() == self._heads.main:
            self._heads.leaving = (sys._getframe(1), value)
        return value

    def returned(self, number: int) -> bool:
        """Asked behind a loop: true if it was skipped and had ended by ``return``."""
        if _is_compiling():
            return False
        replay = self._heads.replay
        return replay is not None and replay.returned(self._loops[number])

    def result(self, number: int) -> Any:
        """What a loop that was skipped had returned."""
        assert self._heads.replay is not None
        return self._heads.replay.result(self._loops[number])


def _length(iterable: Iterable[Any]) -> int | None:
    try:
        if type(iterable) in _UNWATCHED:
            return len(iterable)  # type: ignore[arg-type]
        with torch._C.DisableTorchFunction():  # a mode of the script's must not see this
            return operator.length_hint(iterable, -1) if hasattr(type(iterable), "__len__") else None
    except Exception:
        # A length is nice to have; what a user's __len__ raises must not end the training.
        return None


def _in_flight(raised: BaseException, record: Record) -> bool:
    """True if the exception passes through the loop's frame now, rather than being handled around the loop."""
    trace = raised.__traceback__
    while trace is not None:
        if trace.tb_frame is record.frame:
            assert record.loop is not None
            first, last = record.loop.site.lines
            return first <= trace.tb_lineno <= last
        trace = trace.tb_next
    return False
