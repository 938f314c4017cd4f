"""``everstep demo --verify DIR``: every figure again, from journal, meter and weights alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from everstep.cli.demo import evidence, figures
from everstep.cli.output import Column, table

_TOLERANCE = 1e-9


def verify(folder: Path) -> int:
    """Print each figure with its verdict; the exit code: 0 if all are right and nothing is wrong with them, else 1.

    Raises:
        BadInput: a file is missing or cannot be read.
    """
    found = evidence.read(folder)
    stated = evidence.read_summary(folder)
    again = figures.summary(
        found.journal,
        found.meter,
        weights_sha256=figures.weights_sha256(found.weights),
        reference_sha256=figures.weights_sha256(found.reference),
    )
    rows = compare(stated, again)
    table(rows, _COLUMNS)
    wrong = [row["figure"] for row in rows if row["verdict"] != "OK"]
    failures = figures.failures(again)
    for line in failures:
        print(f"FAILED: {line}")
    print(f"{'differs: ' + ', '.join(wrong) if wrong else 'OK: all figures follow from the files'}")
    return 1 if wrong or failures else 0


def compare(stated: Mapping[str, Any], again: Mapping[str, Any]) -> list[dict[str, str]]:
    """Per figure: what the summary states, what the files give, and whether that is the same."""
    ours, theirs = _flat(stated), _flat(again)
    return [
        {
            "figure": name,
            "stated": _shown(ours.get(name, "missing")),
            "again": _shown(theirs.get(name, "nothing")),
            "verdict": "OK" if name in ours and name in theirs and _same(ours[name], theirs[name]) else "DIFFERS",
        }
        for name in {**theirs, **ours}
    ]


def _flat(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Figures within a figure under names of their own: ``overhead_instance_s.boot``."""
    found: dict[str, Any] = {}
    for name, value in figures.items():
        if isinstance(value, Mapping):
            found |= {f"{name}.{inner}": item for inner, item in value.items()}
        else:
            found[name] = value
    return found


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, float) or isinstance(b, float):
        numbers = isinstance(a, int | float) and isinstance(b, int | float)
        return numbers and math.isclose(a, b, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
    return bool(a == b)


def _shown(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 20 else f"{text[:12]}..."


_COLUMNS = (
    Column("FIGURE", lambda row: row["figure"]),
    Column("STATED", lambda row: row["stated"]),
    Column("FROM THE FILES", lambda row: row["again"]),
    Column("", lambda row: row["verdict"]),
)
