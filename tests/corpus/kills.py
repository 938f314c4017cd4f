"""Where a run is killed: drawn from a seed, so that any finding can be had again."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.corpus.processes import Running

Kind = Literal["clock", "output", "folder", "term"]
KINDS: tuple[Kind, ...] = ("output", "folder", "term", "clock")

#: How often a save is due; small numbers save at every step.
CADENCES: tuple[tuple[str, str], ...] = (
    ("--every-steps", "1"),
    ("--every-steps", "3"),
    ("--every-steps", "8"),
    ("--every-steps", "20"),
    ("--every", "0.2s"),
)
GRACE_S = 5.0
_EARLY = 0.15


@dataclass(frozen=True, slots=True)
class Kill:
    """End a launch at `at`: seconds after its start (clock, term), bytes of its output, or changes of the folder."""

    kind: Kind
    at: float

    def __str__(self) -> str:
        unit = {"clock": "s", "term": "s", "output": "bytes", "folder": "changes"}[self.kind]
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
    """`count` kills of all kinds, spread so that each launch gets on by about a share of the whole."""
    first = rng.randrange(len(KINDS))
    kinds = [KINDS[(first + i) % len(KINDS)] for i in range(count)]
    rng.shuffle(kinds)
    return Plan(rng.choice(CADENCES), [_kill(rng, kind, course, count) for kind in kinds])


def _kill(rng: random.Random, kind: Kind, course: Course, count: int) -> Kill:
    share = rng.uniform(0.1, 1.1) / (count + 1)
    if kind == "output":
        return Kill(kind, max(1, round(share * course.printed)))
    if kind == "folder":
        return Kill(kind, rng.randrange(1, 60))
    if kind == "clock" and rng.random() < _EARLY:
        return Kill(kind, rng.uniform(0.0, course.startup_s))
    return Kill(kind, course.startup_s + share * (course.total_s - course.startup_s))


def moment(kill: Kill, folder: Path) -> Callable[[Running], bool]:
    """A condition that holds once it is time for `kill`; `folder` is the one with the checkpoints."""
    if kill.kind == "output":
        return lambda running: running.written >= kill.at
    if kill.kind == "folder":
        changes = _Changes(folder)
        return lambda running: changes.count() >= kill.at
    return lambda running: running.age_s >= kill.at


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
        for path in self._folder.rglob("*"):
            try:
                yield str(path), path.stat().st_size
            except OSError:  # renamed or removed meanwhile, which is what we watch for
                yield str(path), -1
