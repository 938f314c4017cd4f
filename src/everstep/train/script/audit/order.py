"""What the run tells its audit, and what it is told: two small files in the audit's folder."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ORDER = "order.json"
RESULT = "result.json"
STDERR = "stderr"
SAVES = "saves"
WORK = "work"

REACHED = "reached"
"""The audit went all its steps."""
ENDED = "ended"
"""The script came to its end before."""
RAISED = "raised"
"""The script ended by an exception before."""
UNKNOWN = "unknown"
"""The audit could not be made."""


@dataclass(frozen=True)
class AuditOrder:
    """What a child is to do.

    Attributes:
        target: the script, relative to the working folder where it lies there, or the name of a module.
        is_module: the target is a module.
        arguments: of the script, as the run got them.
        roots: the folders of the run, ``work`` among them; real paths.
        checkpoints: the run's checkpoint folder.
        begin: steps done at the save.
        steps: how many to go from there.
        ends_at: the child, wherever it is then, ``time.monotonic()`` seconds: one clock for the whole machine.
    """

    target: str
    is_module: bool
    arguments: list[str]
    roots: dict[str, str]
    checkpoints: str
    begin: int
    steps: int
    ends_at: float

    def write(self, job: Path) -> None:
        """Put it into the audit's folder."""
        (job / ORDER).write_text(json.dumps(asdict(self)))

    @staticmethod
    def read(job: Path) -> AuditOrder:
        """The one in the audit's folder."""
        return AuditOrder(**json.loads((job / ORDER).read_text()))


def write_result(job: Path, outcome: str, text: str = "", evidence: Mapping[str, Any] | None = None) -> None:
    """Tell the run how it went.

    Args:
        job: the audit's folder.
        outcome: `REACHED`, `ENDED`, `RAISED` or `UNKNOWN`.
        text: what was raised, or why it is not known.
        evidence: what `Trail.gather` gave.
    """
    temporary = job / f"{RESULT}.tmp"
    temporary.write_text(json.dumps({"outcome": outcome, "text": text, "evidence": evidence}))
    os.replace(temporary, job / RESULT)


def read_result(job: Path) -> dict[str, Any] | None:
    """What the child told; None if it did not get so far."""
    try:
        return dict(json.loads((job / RESULT).read_text()))
    except (OSError, ValueError):
        return None
