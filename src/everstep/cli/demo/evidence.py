"""The files of a report: enough for anybody to compute every figure again."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everstep.model.errors import BadInput, Problem

JOURNAL, METER, ACTS, SUMMARY = "journal.jsonl", "meter.jsonl", "faults.jsonl", "summary.json"
WEIGHTS, REFERENCE = "weights.pt", "weights-undisturbed.pt"
TASK, BOX = "task.yaml", "box.yaml"
TIMELINE = "timeline"


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a run left behind.

    Attributes:
        journal: the job's journal, oldest first: ``version, at, kind, text, body``.
        meter: what the provider charged.
        acts: what was broken when: ``at`` (UTC seconds), ``step``, ``what``, ``target``.
        weights, reference: the final weights, of this run and of the undisturbed one.
    """

    journal: tuple[Mapping[str, Any], ...]
    meter: tuple[Mapping[str, Any], ...]
    acts: tuple[Mapping[str, Any], ...]
    weights: Path
    reference: Path


def write_lines(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """One JSON object a line."""
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))


def read_lines(path: Path) -> tuple[dict[str, Any], ...]:
    """What ``write_lines`` wrote. Raises BadInput with file and line."""
    found = []
    for number, line in enumerate(_text(path).splitlines(), start=1):
        try:
            value = json.loads(line)
        except ValueError:
            raise BadInput(Problem(f"{path}:{number}", "", "is not JSON")) from None
        if not isinstance(value, dict):
            raise BadInput(Problem(f"{path}:{number}", "", "is not a JSON object"))
        found.append(value)
    return tuple(found)


def read_summary(folder: Path) -> dict[str, Any]:
    """The figures as they were written. Raises BadInput."""
    path = folder / SUMMARY
    try:
        value = json.loads(_text(path))
    except ValueError:
        raise BadInput(Problem(str(path), "", "is not JSON")) from None
    if not isinstance(value, dict):
        raise BadInput(Problem(str(path), "", "is not a JSON object"))
    return value


def write_summary(folder: Path, figures: Mapping[str, Any]) -> Path:
    """Writes the figures; the path."""
    path = folder / SUMMARY
    path.write_text(json.dumps(figures, indent=2) + "\n")
    return path


def read(folder: Path) -> Evidence:
    """The evidence in ``folder``. Raises BadInput that names every missing file."""
    missing = [name for name in (JOURNAL, METER, WEIGHTS, REFERENCE, SUMMARY) if not (folder / name).is_file()]
    if missing:
        problems: Sequence[Problem] = [Problem(str(folder / name), "", "there is no such file") for name in missing]
        raise BadInput(*problems)
    acts = read_lines(folder / ACTS) if (folder / ACTS).is_file() else ()
    return Evidence(
        read_lines(folder / JOURNAL), read_lines(folder / METER), acts, folder / WEIGHTS, folder / REFERENCE
    )


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(Problem(str(path), "", f"cannot be read: {error}")) from None
