"""Where a run is killed: drawn from a seed, so that any finding can be had again."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from tests.corpus.processes import Running

Kind = Literal["output", "folder", "term", "clock", "early"]
KINDS: tuple[Kind, ...] = get_args(Kind)

#: How often a save is due; small numbers save at every step.
CADENCES: tuple[tuple[str, str], ...] = (
    ("--every-steps", "1"),
    ("--every-steps", "3"),
    ("--every-steps", "8"),
    ("--every-steps", "20"),
    ("--every", "0.2s"),
)
GRACE_S = 5.0
#: Shares of the run: what the earlier kills get through together at most, and what the last one waits for.
_EARLIER, _LAST = 0.45, 0.45


@dataclass(frozen=True, slots=True)
class Kill:
    """When to end a launch.

    ``at`` is in seconds after its first output (clock, term) or after its start (early), in bytes of its output, or in
    changes of the checkpoint folder. Once ``latest`` bytes are written it is time in any case: every kill lands.
    """

    kind: Kind
    at: float
    latest: int

    def __str__(self) -> str:
        unit = {"output": "bytes", "folder": "changes"}.get(self.kind, "s")
        return f"{self.kind} {self.at:.2f} {unit}" if unit == "s" else f"{self.kind} {self.at:.0f} {unit}"


@dataclass(frozen=True, slots=True)
class Course:
    """How long an undisturbed run took, how much of it was start-up, and how much it printed."""

    startup_s: float
    total_s: float
    printed: int


@dataclass(frozen=True, slots=True)
class Plan:
    """How often to save, and the kills, one per launch."""

    cadence: tuple[str, str]
    kills: Sequence[Kill]


def draw(rng: random.Random, course: Course, count: int) -> Plan:
    """`count` kills: all but the last of any kind within half of the run, the last late enough to follow some saves."""
    kills = [_kill(rng, rng.choice(KINDS), course, rng.uniform(0.1, 1.0) * _EARLIER / count) for _ in range(count - 1)]
    return Plan(rng.choice(CADENCES), [*kills, _kill(rng, "output", course, _LAST)])


def _kill(rng: random.Random, kind: Kind, course: Course, share: float) -> Kill:
    latest = max(1, round(share * course.printed))
    at = {
        "output": latest,
        "folder": rng.randrange(1, 60),
        "early": rng.uniform(0.0, course.startup_s),
    }.get(kind, share * (course.total_s - course.startup_s))
    return Kill(kind, at, latest)


def moment(kill: Kill, folder: Path) -> Callable[[Running], bool]:
    """A condition that holds once it is time for `kill`; `folder` is the one with the checkpoints."""
    reached = _reached(kill, folder)
    return lambda running: running.written >= kill.latest or reached(running)


def _reached(kill: Kill, folder: Path) -> Callable[[Running], bool]:
    if kill.kind == "output":
        return lambda running: False
    if kill.kind == "folder":
        changes = _Changes(folder)
        return lambda running: changes.count() >= kill.at
    if kill.kind == "early":
        return lambda running: running.age_s >= kill.at
    return _AfterFirstOutput(kill.at)


class _AfterFirstOutput:
    """Holds some seconds after a launch wrote its first byte: its start-up takes as long as the machine likes."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._first_s: float | None = None

    def __call__(self, running: Running) -> bool:
        if self._first_s is None and running.written > 0:
            self._first_s = running.age_s
        return self._first_s is not None and running.age_s - self._first_s >= self._seconds


class _Changes:
    """Counts how often a look at a folder's listing (names and sizes) gave something new."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._last = self._listing()
        self._seen = 0

    def count(self) -> int:
        now = self._listing()
        if now != self._last:
            self._last = now
            self._seen += 1
        return self._seen

    def _listing(self) -> list[tuple[str, int]]:
        return sorted(self._entries())

    def _entries(self) -> Iterator[tuple[str, int]]:
        # Not `rglob`: folders vanish while we look, which is what we watch for.
        for folder, folders, files in os.walk(self._folder):
            for name in (*folders, *files):
                path = os.path.join(folder, name)
                try:
                    yield path, os.stat(path).st_size
                except OSError:
                    yield path, -1
