"""What the ranks reached, and when."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

WORLD = 2
STAGES = ("imported", "rendezvous", "restored")
"""What a rank tells before its first step, in order."""


@dataclass(slots=True)
class Life:
    """One process of one rank: when it reached what (UTC seconds), and its steps with their times."""

    pid: int
    rank: int
    host: str
    stages: dict[str, float]
    steps: list[tuple[int, float]]

    def first_beyond(self, step: int) -> float | None:
        """When it did the first step beyond ``step``, UTC seconds."""
        return next((at for number, at in self.steps if number > step), None)


@dataclass(frozen=True, slots=True)
class Recovery:
    """Work goes on at full size: the moment, and the life of each rank by which it does."""

    at: float
    lives: Mapping[int, Life]

    def stage(self, name: str) -> float:
        """When the last rank reached a stage."""
        return max(life.stages[name] for life in self.lives.values())


class Trail:
    """Follows a file of marks."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self.lives: list[Life] = []

    def look(self) -> None:
        """Takes in what was appended since."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._read)
                data = file.read()
        except FileNotFoundError:
            return
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            self._take(json.loads(line))

    def forget(self) -> None:
        """What was told so far belongs to a training that is over."""
        self.look()
        self.lives.clear()

    def _take(self, mark: dict[str, object]) -> None:
        pid, at, what = int(str(mark["pid"])), float(str(mark["t"])), str(mark["what"])
        if what == STAGES[0]:
            self.lives.append(Life(pid, int(str(mark["rank"])), str(mark["host"]), {}, []))
        life = next((life for life in reversed(self.lives) if life.pid == pid), None)
        if life is None:
            return  # of a training that is over
        if what == "step":
            life.steps.append((int(str(mark["step"])), at))
        else:
            life.stages[what] = at

    def last_step(self, until: float) -> int:
        """The highest step that any rank did until then."""
        return max((step for life in self.lives for step, at in life.steps if at <= until), default=0)

    def current(self) -> dict[int, Life]:
        """The newest process of each rank that does steps."""
        return {life.rank: life for life in self.lives if life.steps}

    def recovery(self, fault_at: float, beyond: int) -> Recovery | None:
        """The first step beyond ``beyond`` that every rank did in a process begun after the fault."""
        firsts: dict[int, tuple[float, Life]] = {}
        for life in self.lives:
            at = life.first_beyond(beyond)
            if life.stages[STAGES[0]] > fault_at and at is not None and at < firsts.get(life.rank, (at + 1, life))[0]:
                firsts[life.rank] = at, life
        if len(firsts) < WORLD:
            return None
        return Recovery(max(at for at, _ in firsts.values()), {rank: life for rank, (_, life) in firsts.items()})
