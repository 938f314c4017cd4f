"""What comes of an audit: from what its process left, and from what the run itself had so many steps later."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everstep.model import handshake
from everstep.train.lineage import Position
from everstep.train.script.audit.evidence import difference
from everstep.train.script.audit.order import RAISED, STDERR, UNKNOWN, read_result
from everstep.train.script.audit.walls import EXIT_WALL, WALL

EXACT = "exact"
DIFFERS = "differs"
REFUSES = "refuses"
NOT_KNOWN = "unknown"
_TAIL = 4000


@dataclass(frozen=True)
class Verdict:
    """What an audit found.

    Attributes:
        verdict: ``exact``, ``differs``, ``refuses`` or ``unknown``.
        save: of which save, as ``attempt:step``.
        begin: steps done at the save.
        end: steps done where it was compared, or was to be.
        text: for people.
        first_difference: the first object that differs.
        first_step: the first step behind which a few values of the parameters differed.
        objects: all that differs, up to 50.
        stderr: the end of what the audit's process wrote there.
    """

    verdict: str
    save: str
    begin: int
    end: int
    text: str
    first_difference: str | None = None
    first_step: int | None = None
    objects: tuple[str, ...] = ()
    stderr: str = ""


class Judge:
    """One audit is judged.

    Args:
        job: the audit's folder.
        position: of the save.
        steps: how many were to go.
        mine: what the run had behind its last step; None: it did not get so far.
    """

    def __init__(self, job: Path, position: Position, steps: int, mine: dict[str, Any] | None) -> None:
        self._job = job
        self._position = position
        self._mine = mine
        self._end = position.step + (steps if mine is None else mine["steps"])
        self._stderr = _read(job / STDERR)

    def ended(self, code: int, timeout_s: float) -> Verdict:
        """The audit's process ended with this exit code (negative: a signal)."""
        result = read_result(self._job)
        if code == EXIT_WALL:
            path = _read(self._job / WALL)
            return self.unknown(f"the script changes {path}, which lies outside of its working folder")
        if code == handshake.EXIT_REFUSED:
            said = [line for line in self._stderr.splitlines() if line.startswith(handshake.REFUSAL)]
            reason = said[-1].removeprefix(handshake.REFUSAL) if said else "no reason was given"
            return self._verdict(REFUSES, f"a relaunch from it refuses: {reason}")
        if result is not None:
            return self._compared(result)
        if "Timeout (" in self._stderr:
            return self.unknown(f"it was not through after {timeout_s:g} s{_where(self._stderr)}")
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        last = self._stderr.strip().splitlines()[-1:] or ["not a word on stderr"]
        return self.unknown(f"its process ended {how}: {last[0]}")

    def unknown(self, why: str) -> Verdict:
        """It says nothing about the save."""
        return self._verdict(NOT_KNOWN, f"nothing is known: {why}")

    def _compared(self, result: dict[str, Any]) -> Verdict:
        mine, theirs = self._mine, result["evidence"]
        if result["outcome"] == UNKNOWN or mine is None:
            return self.unknown(result["text"] or "the run did not get so far")
        if result["outcome"] == RAISED and mine["steps"] > theirs["steps"]:
            step = self._position.step + theirs["steps"]
            text = f"behind step {step} the script ended by {result['text']}, and here it did not"
            return self._verdict(DIFFERS, f"not exact: {text}", first_difference=text, first_step=step)
        found = difference(mine, theirs)
        if found is None:
            return self._verdict(EXACT, f"exact after {mine['steps']} steps")
        since = "" if found.step is None else f" (since step {found.step})"
        text = f"not exact: at step {self._end}, {mine['steps']} steps later, {found.object} differs{since}"
        return self._verdict(
            DIFFERS, text, first_difference=found.object, first_step=found.step, objects=tuple(found.objects)
        )

    def _verdict(self, verdict: str, text: str, **more: Any) -> Verdict:
        text = f"audit of save {self._position}: {text}"
        tail = self._stderr[-_TAIL:]
        return Verdict(verdict, str(self._position), self._position.step, self._end, text, stderr=tail, **more)


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _where(stderr: str) -> str:
    """Where it stood still, from what faulthandler wrote."""
    found = re.search(r'File "([^"]+)", line (\d+) in (\S+)', stderr)
    return "" if found is None else f"; it was at {os.path.basename(found[1])}:{found[2]} in {found[3]}"
