"""A script under way: whether a save is due, whether it is safe here, and what it holds."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, TypeVar

import torch

from everstep.model import handshake
from everstep.train.gang import Gang
from everstep.train.pace import Pace
from everstep.train.reports import Reporter
from everstep.train.requests import Requests, Terminations
from everstep.train.saves import Fenced, Saves
from everstep.train.script import descriptors, graph, managers, objects, progress, states, streams, surroundings
from everstep.train.script.advance import position
from everstep.train.script.audit.audits import Audits
from everstep.train.script.grounds import Grounds
from everstep.train.script.heads import Heads, Record
from everstep.train.script.loopgraph import LoopIterators
from everstep.train.script.output import Output
from everstep.train.script.path import HeldBack, Path, Stranger, Turn, place, user_frames
from everstep.train.script.ranks import MOST_POINTS, NOTHING, Apart, Votes, Wishes, joined, strangers
from everstep.train.script.refusal import leave, refuse
from everstep.train.script.setup import Setup
from everstep.train.script.sources import Sources
from everstep.train.script.steps import Steps
from everstep.train.script.surroundings import set_context_variable
from everstep.train.script.unseen import unseen

_T = TypeVar("_T")
FORMAT = 1
_HOLD_LOOK_S = 0.1
_REPORT_EVERY_S = 0.2
_LOOK_EVERY_S = 0.001
"""Passes that are shorter than this are not looked at one by one."""
_PATIENCE_S = 10.0
_HELPING_THREADS = ("everstep-", "_pin_memory_loop", "TMonitor", "_AsyncWriterThread", "QueueFeederThread")


@dataclass(frozen=True)
class Parts:
    """What a session works with.

    Attributes:
        saves: makes what writes the saves of all these ranks.
        every_steps: steps between saves; None: `pace` decides.
        audits: None: saves are not audited.
        bottom: the code that runs the script: below it is nothing of the user's.
    """

    steps: Steps
    sources: Sources
    output: Output
    saves: Callable[[Gang], Saves]
    pace: Pace
    reporter: Reporter
    requests: Requests
    terminations: Terminations
    gang: Gang
    every_steps: int | None
    audits: Audits | None
    bottom: CodeType


class Unsafe(Exception):
    """No save can be made here; the text says why."""


class Hindered(Unsafe):
    """No save can be made anywhere as long as it lasts."""


class NotNoted(Exception):
    """No save can be made here, since what a replay would need was not noted; it is from now on."""


class Session:
    """Saves a running script where that is due and safe."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._saved_step = 0
        self._unsafe_since: float | None = None
        self._warned: set[str] = set()
        self._reported_at = self._look_at = 0.0
        self._total: int | None = None
        self._saves: Saves | None = None
        self._votes: Votes | None = None
        if parts.gang.world_size > 1:
            self._votes = Votes(lambda: joined(os.environ), parts.every_steps or MOST_POINTS)
        self._apart = self._voted = self._resumed = False
        self.heads = Heads(parts.steps, self.passed)
        self._setup = Setup(parts.sources, parts.bottom)
        self.heads.entering = self._setup.entering
        parts.steps.alarm = self._nowhere

    def resumed(self, step: int, made: dict[graph.Memory, graph.Made]) -> None:
        """The safe point of an earlier save is restored; ``made`` is what the setup made, and was left out of it."""
        self._saved_step = step
        self._setup.made = made
        self._resumed = True

    def tell_end(self) -> None:
        """Report the last step: those since the last look at the clock were not told yet."""
        if self.heads.replay is None and self._parts.steps.count:
            self._parts.reporter.progress(self._parts.steps.count, self._total, {})
        self._parts.reporter.flush()

    def close(self) -> None:
        """The script is over. A single process completes the save that is under way."""
        if self._parts.audits is not None:
            self._parts.audits.close()
        if self._saves is not None:
            self._saves.close()
        if self._votes is not None:
            self._votes.close()

    # --- safe points -----------------------------------------------------------------------------------------------

    def passed(self, record: Record) -> None:
        """At a head with a step since the last head of the same loop: save, hold or stop if that is due."""
        if self.heads.replay is not None:
            # A step of the setup, in a relaunch that has not arrived yet.
            return
        parts = self._parts
        parts.steps.alarm = None
        now = time.monotonic()
        # Written out where it is asked in each pass: a call takes as long as the rest.
        counted_due = parts.every_steps is not None and self._counted_due()
        stopping = parts.requests.stop or parts.terminations.asked
        if now < self._look_at and self._votes is None and not counted_due and not stopping:
            return
        self._look_at = now + _LOOK_EVERY_S
        with unseen():
            self._at_head(record, now)

    def _at_head(self, record: Record, now: float) -> None:
        if self._parts.audits is not None:
            self._parts.audits.look(now)
        self._report(now)
        wishes = self._agreed(self._wishes(now))
        if self._pending and not wishes.busy:
            self._unless_fenced(self._writer().advance)
        asked = wishes.asked or wishes.stop
        if not (asked or (wishes.save and self._next_may_begin())) or not self._save(record, now, at_once=asked):
            return
        if not asked:
            return
        self._parts.requests.saved()
        if wishes.stop:
            self._stop()
        if wishes.hold:
            self._hold()

    def _report(self, now: float) -> None:
        parts, count = self._parts, self._parts.steps.count
        if now - self._reported_at >= _REPORT_EVERY_S:
            self._reported_at = now
            self._total = progress.total(self.heads.stack[1:], count)
        parts.reporter.progress(count, self._total, {}, stepped=True)

    def _wishes(self, now: float) -> Wishes:
        parts = self._parts
        due = parts.pace.due(now, pending=self._pending)
        if parts.every_steps is not None:
            due = self._counted_due()
        parts.requests.look(parts.reporter.utc(), parts.pace.margin_s(pending=self._pending))
        parts.pace.expect(parts.requests.hazard_per_h)
        return Wishes(
            save=due and parts.gang.rank == 0,
            asked=parts.requests.save,
            stop=self._stopping(),
            hold=parts.requests.holding,
            busy=self._saves is not None and self._saves.busy(),
        )

    def _counted_due(self) -> bool:
        every = self._parts.every_steps
        return every is not None and self._parts.steps.count - self._saved_step >= every

    def _stopping(self) -> bool:
        return self._parts.requests.stop or self._parts.terminations.asked

    def _agreed(self, mine: Wishes) -> Wishes:
        """What all ranks want; nothing where they do not vote now."""
        if self._votes is None:
            return mine
        if self._apart or not self._votes.due():
            return NOTHING
        try:
            agreed = self._votes.vote(mine, self._parts.steps.count)
        except Apart as error:
            if self._resumed and not self._voted:
                refuse(f"the ranks did not come back to the same step: {error}")
            self._apart = True
            self._warn(f"no save can be made: {error}; training goes on, and starts from the last save if it is killed")
            return NOTHING
        self._voted = True
        return agreed

    def _gang(self) -> Gang:
        return self._parts.gang if self._votes is None else self._votes.gang

    def _hold(self) -> None:
        """Stand still with a saved state until killed, stopped, or told to go on by a later request."""
        parts = self._parts
        parts.reporter.flush()
        while True:
            time.sleep(_HOLD_LOOK_S)
            parts.requests.look(parts.reporter.utc(), parts.pace.margin_s())
            stop, hold = self._gang().agree(self._stopping(), parts.requests.holding)
            if stop:
                self._stop()
            if not hold:
                return

    def _stop(self) -> None:
        self._parts.reporter.flush()
        if self._parts.audits is not None:
            self._parts.audits.close(wait=False)
        leave(handshake.EXIT_SAVED)

    # --- saving ----------------------------------------------------------------------------------------------------

    def _save(self, record: Record, now: float, *, at_once: bool) -> bool:
        """True if a save of this step is published, or, unless it is to be ``at_once``, under way."""
        count, saves, audits = self._parts.steps.count, self._writer(), self._parts.audits
        # What is under way comes first: two saves never overlap, and the files of the next one are looked at later.
        self._unless_fenced(saves.complete)
        if saves.step == count:
            return True
        state = self._state_or_none(record, now)
        (nobody,) = self._gang().agree(state is None)
        if state is None or nobody:
            return False
        self._unsafe_since = None
        self._saved_step = count
        if at_once or self._parts.pace.each_step or (audits is not None and audits.due):
            done = self._unless_fenced(lambda: saves.now(count, lambda: state, began=now))
        else:
            saves.begin(count, lambda: state, began=now)
            done = True
        if done and audits is not None:
            audits.saved(count)
        return done

    def _writer(self) -> Saves:
        """What writes the saves; made when the ranks have met."""
        if self._saves is None:
            self._saves = self._parts.saves(self._gang())
        return self._saves

    @property
    def _pending(self) -> bool:
        return self._saves is not None and self._saves.pending

    def _next_may_begin(self) -> bool:
        """Whether a save that is due now need not be put off. A save each N steps waits for the one before."""
        return self._parts.every_steps is not None or not self._pending

    def _unless_fenced(self, act: Callable[[], _T]) -> _T:
        try:
            return act()
        except Fenced:
            refuse(
                "a newer attempt has begun in the checkpoint folder; this one stops, nobody would read what it saves"
            )

    def _state_or_none(self, record: Record, now: float) -> dict[str, Any] | None:
        """What is to be saved, over the memory that the script goes on with; None, perhaps with a complaint, where no
        save can be made.
        """
        try:
            return self._state(record)
        except NotNoted:
            return None
        except Hindered as reason:
            self._give_up(str(reason))
        except Unsafe as reason:
            self._complain(str(reason), now)
        except Exception as error:
            # A defect of ours, or an object that raises when it is looked at: neither may end the training.
            self._complain(f"no save can be made here: {type(error).__name__}: {error}", now)
        return None

    def _state(self, record: Record) -> dict[str, Any]:
        self._check_process()
        stack = self._frames(record)
        parts = self._parts
        output = parts.output.position()
        for where in descriptors.past_stdout:
            self._warn(f"{where}: what is printed through this is not in the log of all launches")
        path, captured = self._captured(stack)
        for problem in captured.problems:
            told = f"{managers.readable(problem.where)} ({problem.what}) cannot be saved: {problem.why}"
            if managers.holds(problem.where):
                # It will be used for certain, at the end of the `with`.
                self._warn(f"no save can be made: {told}")
                raise Unsafe(told)
            self._warn(f"{told}; a relaunch refuses if it is used")
        return {
            "kind": "script",
            "format": FORMAT,
            "step": parts.steps.count,
            "path": path,
            "graph": captured,
            "output": output,
            "states": states.capture(None),
            "modes": surroundings.modes(),
            "versions": surroundings.versions(),
            "sources": dict(parts.sources.sources),
            "arguments": sys.argv[1:],
            "save_cost_s": parts.pace.save_cost_s,
        }

    def _frames(self, record: Record) -> list[FrameType]:
        assert record.frame is not None
        sources = self._parts.sources
        try:
            return user_frames(record.frame, self._parts.bottom, sources.is_mine, sources.rewritten)
        except HeldBack as error:
            self._warn(f"no save can be made while this is on the call stack: {error}")
            raise Unsafe(str(error)) from None
        except Stranger as error:
            raise Unsafe(f"no save can be made while this is on the call stack: {error}") from None

    def _captured(self, stack: list[FrameType]) -> tuple[Path, graph.Captured]:
        sources = self._parts.sources
        while True:
            loops = LoopIterators(self.heads.stack[1:])
            path = self._path(stack, loops)
            grounds = Grounds(self.heads.stack[1:], loops.in_graph).space()
            spaces = [*objects.spaces(sources.modules(), stack, path.places), loops.space(), grounds, streams.space()]
            made = self._setup.made
            settings = graph.Settings(is_user=sources.has, made_by_setup=made, in_loop=loops.in_loop, live=True)
            captured = graph.capture(spaces, settings)
            if loops.fit(captured):
                return path, captured

    def _path(self, stack: list[FrameType], loops: LoopIterators) -> Path:
        records = self.heads.stack
        depths = {id(frame): depth for depth, frame in enumerate(stack)}
        turns = []
        for at, record in enumerate(records[1:]):
            turns.append(_turn(record, depths, innermost=record is records[-1], in_graph=at in loops.in_graph))
        return Path(tuple(place(frame) for frame in stack), tuple(turns), tuple(records[0].ended))

    def _check_process(self) -> None:
        others = strangers(self._parts.gang.world_size)
        if others is not None:
            raise Hindered(f"no save can be made: {others}")
        if any(torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")) and torch.is_autocast_cache_enabled():
            reason = "no save can be made inside of `torch.autocast`, which keeps copies of the weights until it ends"
            self._warn(f"{reason}: put it around the forward pass alone, or give cache_enabled=False")
            raise Unsafe(reason)
        opened = descriptors.in_use()
        if opened:
            raise Hindered(f"no save can be made while a file opened by number is in use: {opened}; open it by open()")
        for rewritten in self._parts.sources.rewritten.values():
            if rewritten.counters:
                raise Hindered(
                    f"no save can be made in a script that looks at the counters of a cache: {rewritten.counters}"
                )
        variable = set_context_variable(self._parts.sources.modules())
        if variable:
            raise Hindered(f"no save can be made while the context variable {variable} is set")
        main = threading.main_thread()
        for thread in threading.enumerate():
            if thread is not main and not _helps(thread):
                raise Hindered(f"no save can be made while a thread of the script is alive: {thread.name}")

    def _complain(self, reason: str, now: float) -> None:
        """Tell once, when it lasts: one head in a callback says nothing about the next."""
        if self._unsafe_since is None:
            self._unsafe_since = now
        if now - self._unsafe_since >= _PATIENCE_S:
            self._give_up(reason)

    def _nowhere(self) -> None:
        """Many steps, and no loop of the user's around them."""
        if self.heads.replay is None:
            self._give_up(
                "no save can be made: the loop that trains is not in the script's own files, or in a generator"
            )

    def _give_up(self, reason: str) -> None:
        # Nobody looks at a SIGTERM any more: it shall end the process as it would without us.
        self._parts.terminations.release()
        self._warn(f"{reason}; training goes on without saves, and starts from the beginning if it is killed")

    def _warn(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            self._parts.reporter.warn(text)


def _turn(record: Record, depths: dict[int, int], *, innermost: bool, in_graph: bool) -> Turn:
    assert record.loop is not None
    noted = innermost or (record.before is not None and record.before_at == record.begun - 1)
    if record.start is None or not noted:
        raise NotNoted
    where = None if record.iterator is None else position(record.iterator, record.begun)
    if where is not None and where["problems"] and not (innermost and in_graph and where["check"] is not None):
        raise Unsafe(f"no save can be made in the loop at {record.loop.site.place}: {where['problems'][0]}")
    return Turn(
        key=record.loop.key,
        ordinal=record.ordinal,
        depth=depths.get(id(record.frame), -1),
        begun=record.begun,
        start=record.start,
        before=None if innermost else record.before,
        item="" if innermost else record.checksum(),
        length=record.length,
        position=where,
        lines=record.loop.site.lines,
        ended=() if innermost else tuple(record.ended),
        in_graph=in_graph,
    )


def _helps(thread: threading.Thread) -> bool:
    """True for threads that libraries keep for themselves, and that hold nothing of the script's."""
    return any(name in f"{thread.name} {type(thread).__name__}" for name in _HELPING_THREADS)
