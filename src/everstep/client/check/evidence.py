"""What the witness in a process left behind (``everstep.train.script.witness``), read back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from everstep.model import handshake


class Step(NamedTuple):
    """One optimizer step: monotonic seconds, and fingerprints of the parameters after and before it (0: not taken)."""

    at: float
    mark: int
    before: int = 0


class Trail:
    """The facts that a process writes while it runs; `follow` reads what is new.

    Attributes:
        moments: ``started``, ``torch`` (its import begins), ``ready`` (it is over): monotonic seconds.
        steps: optimizer steps; for a script without an optimizer the calls of ``backward``.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._optimized: list[Step] = []
        self._backward: list[Step] = []
        self.moments: dict[str, float] = {}

    @property
    def steps(self) -> Sequence[Step]:
        """See the class."""
        return self._optimized or self._backward

    @property
    def optimized(self) -> Sequence[Step]:
        """Steps of optimizers alone; with accumulated gradients there are calls of ``backward`` before the first."""
        return self._optimized

    def follow(self) -> Trail:
        """Read on to the end of the file; a torn last line waits for its rest."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                new = file.read()
        except FileNotFoundError:
            return self
        whole, end, _ = new.rpartition(b"\n")
        self._offset += len(whole) + len(end)
        for line in whole.decode().splitlines():
            at, word, *rest = line.split()
            if word == "step":
                self._optimized.append(Step(float(at), *map(int, rest[1:3])))
            elif word == "backward":
                self._backward.append(Step(float(at), 0))
            else:
                self.moments[word] = float(at)
        return self


@dataclass(frozen=True, slots=True)
class Facts:
    """What the runner or the library reported to the agent's folder.

    Attributes:
        restored: the ``restored`` fact, None before it.
        saves: all ``saved`` facts.
        warnings: texts.
        step: newest reported position, in the unit of the reports.
        step_at: when that was, in seconds UTC.
    """

    restored: dict[str, Any] | None = None
    saves: tuple[dict[str, Any], ...] = ()
    warnings: tuple[str, ...] = ()
    step: int | None = None
    step_at: float | None = None

    @property
    def base_step(self) -> int | None:
        """The step the process went on from; None if it began from nothing or said nothing."""
        base = None if self.restored is None else self.restored.get("base")
        return None if base is None else int(str(base).rpartition(":")[2])


def read_facts(folder: Path, rank: int = 0) -> Facts:
    """The reports of a rank in its report folder; torn lines are left out."""
    facts = list(_lines(folder / f"{handshake.REPORT_FACTS_PREFIX}{rank}.jsonl"))
    restored = [fact for fact in facts if fact.get("kind") == handshake.FACT_RESTORED]
    progress = read_json(folder / f"{handshake.REPORT_PROGRESS_PREFIX}{rank}.json") or {}
    return Facts(
        restored=restored[-1] if restored else None,
        saves=tuple(fact for fact in facts if fact.get("kind") == handshake.FACT_SAVED),
        warnings=tuple(str(fact["text"]) for fact in facts if fact.get("kind") == handshake.FACT_WARNING),
        step=progress.get("step"),
        step_at=progress.get("t"),
    )


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            fact = json.loads(line)
        except ValueError:
            continue
        if isinstance(fact, dict):
            yield fact


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a file; None where there is no readable one."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


@dataclass(frozen=True, slots=True)
class Ending:
    """How a whole run ended, over all its launches.

    Attributes:
        exit_code: of the last launch; negative: the signal that ended it.
        finals: the witness's last word per rank, None where it had none.
        stdout: what each rank wrote, as files.
        files: what is in the working folder that was not there before, by relative path.
        deleted: what is no longer there.
        steps: steps of the whole training; None: not known.
    """

    exit_code: int
    finals: tuple[dict[str, Any] | None, ...]
    stdout: tuple[Path, ...]
    files: dict[str, Path] = field(default_factory=dict)
    deleted: tuple[str, ...] = ()
    steps: int | None = None

    def optimizers(self, rank: int) -> list[dict[str, Any]]:
        """Those that the rank's last process stepped."""
        final = self.finals[rank] if rank < len(self.finals) else None
        return [] if final is None else list(final["optimizers"])

    @property
    def attached(self) -> bool:
        """Whether the script uses `everstep.train.attach`."""
        return any(final is not None and final["attached"] for final in self.finals)

    @property
    def cuda(self) -> bool:
        """Whether a GPU was in use."""
        return any(final is not None and final["cuda"] for final in self.finals)
