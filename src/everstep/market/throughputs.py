"""How fast models train: ``model``, ``gpu``, ``steps_per_s`` on one accelerator."""

from __future__ import annotations

from pathlib import Path

from everstep.market.rows import rows

COLUMNS = ("model", "gpu", "steps_per_s")


def read_throughputs(path: Path) -> dict[str, dict[str, float]]:
    """Steps per second by model and accelerator (small letters), in the order of the file.

    Raises:
        Malformed: a row is malformed, or is there twice.
    """
    found: dict[str, dict[str, float]] = {}
    for row in rows(path, COLUMNS):
        model, gpu = row.word("model"), row.word("gpu").lower()
        of_model = found.setdefault(model, {})
        if gpu in of_model:
            raise row.fault("gpu", f"{gpu} is there twice for {model}")
        steps_per_s = row.number("steps_per_s", "steps per second, above 0")
        if steps_per_s == 0:
            raise row.fault("steps_per_s", "expected steps per second, above 0, found 0")
        of_model[gpu] = steps_per_s
    return found
