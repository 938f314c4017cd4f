"""What ranks leave in their report folder: progress (overwritten) and facts (appended). Rank side of the handshake."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everstep.agent import atomic
from everstep.model import handshake as hs

_FACTS_READ = 1 << 20
_TEXT = 500


@dataclass(frozen=True)
class Progress:
    """The newest progress of one rank; None where the rank did not say."""

    rank: int
    t: float | None
    step: int | None
    total: int | None
    first_step_at: float | None
    steps_done: int
    stall_s: float
    metrics: dict[str, float]

    @property
    def complete(self) -> bool:
        """Whether the last step was made."""
        return self.step is not None and self.total is not None and self.step >= self.total


class ReportFolder:
    """Reads the report folder of one attempt. Torn, alien or absurd content is skipped: ranks are the user's code."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._offsets: dict[str, int] = {}

    def in_use(self) -> bool:
        """Whether any rank reports, that is, uses our library."""
        return bool(self._names(hs.REPORT_PROGRESS_PREFIX) or self._names(hs.REPORT_FACTS_PREFIX))

    def progress(self) -> Progress | None:
        """The newest progress of the lowest rank on this node."""
        found = sorted(self._names(hs.REPORT_PROGRESS_PREFIX))
        for rank, name in found:
            data = atomic.read_json(self.folder / name)
            if data:
                return Progress(
                    rank=rank,
                    t=_float(data.get("t")),
                    step=_int(data.get("step")),
                    total=_int(data.get("total")),
                    first_step_at=_float(data.get("first_step_at")),
                    steps_done=_int(data.get("steps_done")) or 0,
                    stall_s=_float(data.get("stall_s")) or 0.0,
                    metrics=_metrics(data.get("metrics")),
                )
        return None

    def new_facts(self) -> list[tuple[int, dict[str, Any]]]:
        """Facts since the last call, as (rank, fact), in order per rank, ranks ascending."""
        facts: list[tuple[int, dict[str, Any]]] = []
        for rank, name in sorted(self._names(hs.REPORT_FACTS_PREFIX)):
            try:
                with open(self.folder / name, "rb") as file:
                    file.seek(self._offsets.get(name, 0))
                    data = file.read(_FACTS_READ)
            except OSError:
                continue
            end = data.rfind(b"\n") + 1  # the rest is being written just now
            self._offsets[name] = self._offsets.get(name, 0) + end
            for line in data[:end].splitlines():
                try:
                    fact = json.loads(line)
                except ValueError:
                    continue
                if isinstance(fact, dict) and isinstance(fact.get("kind"), str):
                    facts.append((rank, fact))
        return facts

    def _names(self, prefix: str) -> list[tuple[int, str]]:
        suffix = ".json" if prefix == hs.REPORT_PROGRESS_PREFIX else ".jsonl"
        try:
            names = os.listdir(self.folder)
        except OSError:
            return []
        ranks = [
            (name[len(prefix) : -len(suffix)], name)
            for name in names
            if name.startswith(prefix) and name.endswith(suffix)
        ]
        return [(int(rank), name) for rank, name in ranks if rank.isdigit()]


def fact_message(fact: dict[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """A rank's fact as message kind and fields, with the types the handshake promises.

    None if it is no fact for the server.
    """
    if fact["kind"] == hs.FACT_RESTORED:
        base = fact.get("base")
        return hs.MSG_RESTORED, {
            "base": base if isinstance(base, str) else None,
            "restore_s": _float(fact.get("restore_s")) or 0.0,
            **({"missed": missed} if isinstance(missed := fact.get("missed"), str) else {}),
        }
    if fact["kind"] == hs.FACT_SAVED and _int(fact.get("step")) is not None:
        return hs.MSG_SAVED, {
            "step": _int(fact.get("step")),
            "bytes": _int(fact.get("bytes")) or 0,
            "save_s": _float(fact.get("save_s")) or 0.0,
            "stall_s": _float(fact.get("stall_s")) or 0.0,
            "durable": fact.get("durable") is True,
        }
    if fact["kind"] == hs.FACT_AUDIT and isinstance(fact.get("save"), str):
        return hs.MSG_AUDITED, {key: str(fact.get(key) or "")[:_TEXT] for key in ("save", "verdict", "text")}
    return None


def folder_state(folder: Path, limit: int = 20000) -> tuple[int, float]:
    """(number of bytes, newest change) of a folder, looking at no more than ``limit`` files.

    (0, 0.0) if there is none.
    """
    size, newest, seen = 0, 0.0, 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                stat = os.stat(os.path.join(parent, name), follow_symlinks=False)
            except OSError:
                continue
            size += stat.st_size
            newest = max(newest, stat.st_mtime)
            seen += 1
            if seen >= limit:
                return size, newest
    return size, newest


def _int(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _float(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    number = float(value)
    return number if number == number and abs(number) != float("inf") else None


def _metrics(value: Any) -> dict[str, float]:
    if not isinstance(value, dict):
        return {}
    pairs = ((str(name), _float(item)) for name, item in list(value.items())[:64])
    return {name: number for name, number in pairs if number is not None}
