"""The audits of a run, seen from the process that trains: begun behind a save, compared some steps later."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from everstep.model import handshake
from everstep.train.lineage import Position
from everstep.train.reports import Reporter
from everstep.train.script.audit.evidence import Trail
from everstep.train.script.audit.handover import NotFit, Script, hand_over
from everstep.train.script.audit.order import read_result
from everstep.train.script.audit.verdict import DIFFERS, EXACT, REFUSES, Judge, Verdict
from everstep.train.script.refusal import refuse
from everstep.train.script.steps import Steps

FOLDER = "audit"
DEFAULT_TIMEOUT_S = 600.0
_LOOK_EVERY_S = 0.1
_GRACE_S = 5.0


@dataclass(frozen=True)
class Wanted:
    """What the user asked for.

    Attributes:
        steps: to go from the save.
        every: the first save, and from there each so-manieth; None: the first save of each launch alone.
        strict: a save that is not exact ends the run with exit code 76.
        timeout_s: an audit that takes longer is ended.
    """

    steps: int
    every: int | None = None
    strict: bool = False
    timeout_s: float = DEFAULT_TIMEOUT_S


@dataclass
class _Running:
    """An audit under way. ``deadline``: monotonic seconds. ``mine``: what the run had behind the last step."""

    position: Position
    process: subprocess.Popen[bytes]
    trail: Trail
    deadline: float
    mine: dict[str, Any] | None = None


class Audits:
    """The audits of one launch, one at a time. To be used by the main thread alone: the child goes when that ends.

    Args:
        wanted: by the user.
        script: what runs here.
        folder: the checkpoint folder.
        reporter: told of every verdict.
        steps: the counter of steps.
    """

    def __init__(self, wanted: Wanted, script: Script, folder: Path, reporter: Reporter, steps: Steps) -> None:
        self._wanted = wanted
        self._script = script
        self._folder = folder.resolve()
        self._job = self._folder / FOLDER
        self._reporter = reporter
        self._steps = steps
        self._saves = 0
        self._due = True
        self._running: _Running | None = None
        self._look_at = 0.0
        self._pid = os.getpid()

    @property
    def due(self) -> bool:
        """Whether the next save is to be audited. It must be published before another step is done."""
        every = self._wanted.every
        due = self._due or (every is not None and self._saves % every == 0)
        return due and self._running is None

    def saved(self, step: int) -> None:
        """A save of this step has been made. Begins an audit of it if one is `due`: it is published then."""
        every, due = self._wanted.every, self.due
        self._due = self._due or (every is not None and self._saves % every == 0)
        self._saves += 1
        if not due:
            return
        self._due = False
        wanted, position = self._wanted, Position(self._script.attempt, step)
        try:
            process = hand_over(self._script, self._folder, self._job, (position, wanted.steps, wanted.timeout_s))
        except NotFit as problem:
            self._reporter.warn(f"save {position} is not audited: {problem}")
            return
        except Exception as error:
            # No room for the links, no process to be had: neither may end the training.
            self._reporter.warn(f"save {position} is not audited: {type(error).__name__}: {error}")
            return
        deadline = time.monotonic() + wanted.timeout_s + _GRACE_S
        self._running = _Running(position, process, Trail(step, wanted.steps), deadline)
        self._steps.watcher = self._stepped

    def _stepped(self, optimizer: Any) -> None:
        """Behind every step while an audit goes on, until it has gone as many."""
        running = self._running
        if running is None or os.getpid() != self._pid or not running.trail.stepped(optimizer):
            return
        self._steps.watcher = None
        try:
            running.mine = running.trail.gather()
        except Exception as error:
            # An object that raises when it is looked at must not end the training.
            self._give_up(running, f"the state cannot be looked at: {type(error).__name__}: {error}")

    def look(self, now: float) -> None:
        """At a safe point; ``now``: monotonic seconds. Compares if the audit is through, ends it if its time is up."""
        running = self._running
        if running is None or now < self._look_at:
            return
        self._look_at = now + _LOOK_EVERY_S
        if running.process.poll() is None:
            if now > running.deadline:
                self._give_up(running, f"it was not through after {self._wanted.timeout_s:g} s")
        elif running.mine is not None or not self._is_ahead():
            self._conclude(running)

    def close(self, *, wait: bool = True) -> None:
        """The script is over. What goes on is waited for if it may change the exit code, else ended.

        Args:
            wait: false where nobody has the time.
        """
        if os.getpid() != self._pid:
            return
        if self._running is not None:
            self._finish(self._running, wait=wait and self._wanted.strict)
        clear(self._folder)

    def _finish(self, running: _Running, *, wait: bool) -> None:
        self._steps.watcher = None
        if wait:
            running.mine = running.trail.gather() if running.mine is None else running.mine
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.process.wait(max(0.0, running.deadline - time.monotonic()))
        if running.process.poll() is None or (running.mine is None and self._is_ahead()):
            self._give_up(running, "the run ended before it was through", keep=False)
        else:
            self._conclude(running)

    def _is_ahead(self) -> bool:
        """The child has gone its steps, and we have not."""
        result = read_result(self._job)
        return result is not None and result["evidence"] is not None

    def _give_up(self, running: _Running, why: str, *, keep: bool = True) -> None:
        """End all of it, the processes of its loaders included."""
        for kill in (os.killpg, os.kill):
            with contextlib.suppress(OSError):
                kill(running.process.pid, signal.SIGKILL)
        running.process.wait()
        self._running, self._steps.watcher = None, None
        self._tell(self._judge(running).unknown(why), keep=keep)

    def _conclude(self, running: _Running) -> None:
        self._running, self._steps.watcher = None, None
        verdict = self._judge(running).ended(running.process.returncode, self._wanted.timeout_s)
        self._tell(verdict, keep=verdict.verdict != EXACT)
        if self._wanted.strict and verdict.verdict in (DIFFERS, REFUSES):
            clear(self._folder)
            refuse(f"ended by --audit-strict: {verdict.text}")

    def _judge(self, running: _Running) -> Judge:
        return Judge(self._job, running.position, self._wanted.steps, running.mine)

    def _tell(self, verdict: Verdict, *, keep: bool) -> None:
        """One line and one fact; ``keep``: and a file."""
        text, path = verdict.text, self._folder / f"{FOLDER}-{verdict.begin}.json"
        if keep:
            with contextlib.suppress(OSError):
                path.write_text(json.dumps(asdict(verdict), indent=1) + "\n")
                text += f"; more in {path}"
        fields = {key: value for key, value in asdict(verdict).items() if key not in ("objects", "stderr")}
        self._reporter.fact(handshake.FACT_AUDIT, **fields)
        if keep:
            self._reporter.warn(text)
        else:
            self._reporter.say(text)


def clear(folder: Path) -> None:
    """Remove what an audit has left: whatever is in its folder."""
    if (folder / FOLDER).is_dir():
        shutil.rmtree(folder / FOLDER, ignore_errors=True)
