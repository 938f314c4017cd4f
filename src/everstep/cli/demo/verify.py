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
    return [
        {
            "figure": name,
            "stated": _shown(stated.get(name, "missing")),
            "again": _shown(value),
            "verdict": "OK" if name in stated and _same(stated[name], value) else "DIFFERS",
        }
        for name, value in again.items()
    ]


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, float) or isinstance(b, float):
        numbers = isinstance(a, int | float) and isinstance(b, int | float)
        return numbers and math.isclose(a, b, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
    return bool(a == b)


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_shown(item)}" for name, item in value.items())
    text = str(value)
    return text if len(text) <= 20 else f"{text[:12]}..."


_COLUMNS = (
    Column("FIGURE", lambda row: row["figure"]),
    Column("STATED", lambda row: row["stated"]),
    Column("FROM THE FILES", lambda row: row["again"]),
    Column("", lambda row: row["verdict"]),
)
