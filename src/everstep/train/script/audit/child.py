"""The process of an audit: copies the working folder, restores the save there, goes some steps, tells what it has."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from everstep.train.script.audit import copying
from everstep.train.script.audit.evidence import Trail
from everstep.train.script.audit.order import (
    ENDED,
    RAISED,
    REACHED,
    SAVES,
    UNKNOWN,
    WORK,
    AuditOrder,
    read_result,
    write_result,
)
from everstep.train.script.audit.walls import Walls
from everstep.train.script.graph.relocate import moved
from everstep.train.script.heads import Heads
from everstep.train.script.launching import Order, launch
from everstep.train.script.output import Place
from everstep.train.script.output.journal import Journal
from everstep.train.script.refusal import leave
from everstep.train.script.steps import Steps

_PR_SET_PDEATHSIG = 1
_NICE = 19
_NEVER = sys.maxsize


def main(job: Path) -> NoReturn:
    """Make the audit whose order is in ``job``."""
    _stand_back()
    order = AuditOrder.read(job)
    # A thread of C: it ends this process also where Python does not get a turn any more. By the run's clock: on a busy
    # machine this process comes late, and would still be silent when the run loses patience.
    faulthandler.dump_traceback_later(max(0.001, order.ends_at - time.monotonic()), exit=True)
    work = job / WORK
    place = _copy(order, job, work)
    os.chdir(work)
    sys.dont_write_bytecode = True
    walls = Walls(str(job), [*order.roots.values(), order.checkpoints])
    walls.put_up()
    trial = _Trial(order, job, walls)
    move = place.mover(Place(order.roots).described())
    arguments = tuple(order.arguments if move is None else moved(order.arguments, move))
    try:
        launch(Order(order.target, order.is_module, arguments, job / SAVES, None, _NEVER), trial.begin)
    except BaseException as error:
        ended = isinstance(error, SystemExit) and not error.code
        trial.finish(ENDED if ended else RAISED, f"{type(error).__name__}: {error}")
    trial.finish(ENDED)


def _stand_back() -> None:
    """Whatever there is too little of, the run gets it first; and what is forked here goes when this process does."""
    os.setpgid(0, 0)
    os.nice(_NICE)
    with contextlib.suppress(OSError):
        # A step is as slow as its slowest thread: even the lowest priority takes turns that would be felt.
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    os.register_at_fork(after_in_child=_die_with_parent)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _copy(order: AuditOrder, job: Path, work: Path) -> Place:
    source = order.roots["work"]
    try:
        copying.copy_folder(Path(source), work, but=Path(order.checkpoints))
        # In this order: what the run touches while it is copied is in the journal before it is touched.
        journal = Journal(Path(order.checkpoints), 0, Place(order.roots))
        journal.load()
        copying.undo(journal, source, str(work))
    except (copying.Impossible, OSError) as problem:
        write_result(job, UNKNOWN, f"the working folder cannot be copied: {problem}")
        leave(0)
    return copying.moved_place(order.roots, str(work))


class _Trial:
    """Follows the steps behind the restored save."""

    def __init__(self, order: AuditOrder, job: Path, walls: Walls) -> None:
        self._order = order
        self._job = job
        self._walls = walls
        self._heads: Heads | None = None
        self._pid = os.getpid()
        self._trail = Trail(order.begin, order.steps)

    def begin(self, heads: Heads, steps: Steps) -> None:
        """Before the script starts."""
        if heads.replay is None:
            write_result(self._job, UNKNOWN, "the save could not be read")
            leave(0)
        self._heads = heads
        steps.watcher = self._stepped

    def _stepped(self, optimizer: Any) -> None:
        if self._heads is None or self._heads.replay is not None or os.getpid() != self._pid:
            return  # a step of the setup, on the way to the save
        if self._trail.stepped(optimizer):
            self.finish(REACHED)

    def finish(self, outcome: str, text: str = "") -> NoReturn:
        """Tell what there is now, and end."""
        if os.getpid() != self._pid:
            os._exit(1)
        if read_result(self._job) is None:
            write_result(self._job, outcome, text, self._trail.gather())
        self._walls.clean()
        os.chdir(self._job)
        for name in (WORK, SAVES):
            shutil.rmtree(self._job / name, ignore_errors=True)
        leave(0)
