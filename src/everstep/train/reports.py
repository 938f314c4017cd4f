"""What a rank tells the agent beside it (``model/handshake.py``, "Rank side"). Never fails: training matters more."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from everstep.model import handshake

_PROGRESS_EVERY_S = 0.2
logger = logging.getLogger("everstep.train")


class Reporter:
    """Writes progress and facts of one rank into the report folder; without a folder it only logs warnings.

    Args:
        folder: the report folder, None for no agent.
        rank: of this process.
    """

    def __init__(self, folder: Path | None, rank: int) -> None:
        self._folder = folder
        self.rank = rank
        self._utc_offset_s = time.time() - time.monotonic()
        self._written_at = -1.0
        self._unwritten = False
        self.step = 0
        self.total: int | None = None
        self.steps_done = 0
        self.stall_s = 0.0
        self._first_step_at: float | None = None
        self._metrics: dict[str, float] = {}

    def utc(self) -> float:
        """UTC seconds since 1970, from one reading of the clock at start: steps of the clock later do not show."""
        return self._utc_offset_s + time.monotonic()

    def progress(self, step: int, total: int | None, metrics: dict[str, float], *, stepped: bool = False) -> None:
        """Note where training is; written at most every 0.2 s. ``stepped``: a step was done just now."""
        if stepped:
            self.steps_done += 1
        if self._first_step_at is None and (stepped or step > 0):
            self._first_step_at = self.utc()
        self.step = step
        self.total = total if total is not None else self.total
        self._metrics.update(metrics)
        self._unwritten = True
        if time.monotonic() - self._written_at >= _PROGRESS_EVERY_S or self._written_at < 0:
            self.flush()

    def flush(self) -> None:
        """Write the newest progress now."""
        if self._folder is None or not self._unwritten:
            return
        raw = {
            "t": self.utc(),
            "rank": self.rank,
            "step": self.step,
            "total": self.total,
            "first_step_at": self._first_step_at,
            "steps_done": self.steps_done,
            "metrics": self._metrics,
            "stall_s": self.stall_s,
        }
        path = self._folder / f"{handshake.REPORT_PROGRESS_PREFIX}{self.rank}.json"
        temporary = path.with_name(f".{path.name}.tmp")
        with contextlib.suppress(OSError):
            temporary.write_text(json.dumps(raw))
            os.replace(temporary, path)
        self._written_at = time.monotonic()
        self._unwritten = False

    def fact(self, kind: str, **fields: Any) -> None:
        """Append one fact, at once."""
        if self._folder is None:
            return
        line = json.dumps({"t": self.utc(), "kind": kind, **fields}) + "\n"
        path = self._folder / f"{handshake.REPORT_FACTS_PREFIX}{self.rank}.jsonl"
        with contextlib.suppress(OSError), path.open("a", encoding="utf-8") as file:
            file.write(line)

    def warn(self, text: str) -> None:
        """Tell the user (logger ``everstep.train``) and the agent."""
        logger.warning("everstep: %s", text)
        self.fact(handshake.FACT_WARNING, text=text)

    def say(self, text: str) -> None:
        """Tell the user, where warnings go, what is none."""
        logger.warning("everstep: %s", text)

    def refuse(self, text: str) -> None:
        """Tell the user, on stderr whatever logging does, and the agent, why training does not go on."""
        print(f"everstep: {text}", file=sys.stderr, flush=True)
        self.fact(handshake.FACT_WARNING, text=text)


def numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The metrics that are numbers, tensors of one element included; what is none is left out."""
    found: dict[str, float] = {}
    for name, value in metrics.items():
        with contextlib.suppress(TypeError, ValueError, RuntimeError):
            found[name] = float(value.detach() if isinstance(value, torch.Tensor) else value)
    return found
