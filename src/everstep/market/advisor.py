"""AWS Spot Advisor: how often a machine type is interrupted, and what it saves, per region.

The public document has ``ranges`` (``[{"index", "label", "max"}]``), ``instance_types``
(``{type: {"cores", "ram_gb"}}``) and ``spot_advisor``
(``{region: {os: {type: {"r": index of the range, "s": percent saved}}}}``). An extract as CSV is read too: ``region``,
``os``, ``instance_type``, ``interruption_range_index``, ``interruption_range``, ``savings_pct_over_on_demand``.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everstep.market.documents import number, read_document, shown
from everstep.market.faults import Malformed
from everstep.market.rows import rows

COLUMNS = ("region", "os", "instance_type", "interruption_range", "savings_pct_over_on_demand")


@dataclass(frozen=True, slots=True)
class Advice:
    """What the advisor says of one machine type in one region, over the last month.

    Attributes:
        region, machine_type, os: what it is about; ``os`` is ``Linux`` or ``Windows``.
        interrupted_from, interrupted_to: share of the machines that were interrupted, as a fraction; the last range
            has no upper end and gives 1.
        saved: discount on the on-demand price, as a fraction; negative where spot is dearer.
    """

    region: str
    machine_type: str
    os: str
    interrupted_from: float
    interrupted_to: float
    saved: float


def read_advisor(path: Path) -> tuple[Advice, ...]:
    """Every machine type and region of the document, or of the extract if the name ends in ``.csv``.

    Raises:
        Malformed: an entry is malformed.
    """
    return _extract(path) if path.name.endswith((".csv", ".csv.gz")) else _document(path)


def _extract(path: Path) -> tuple[Advice, ...]:
    advice = []
    for row in rows(path, COLUMNS):
        bounds = _bounds(row.word("interruption_range"))
        if bounds is None:
            text = f"expected a range such as '<5%' or '5-10%', found {row.text('interruption_range')!r}"
            raise row.fault("interruption_range", text)
        saved = row.number("savings_pct_over_on_demand", "percent", least=-math.inf) / 100.0
        advice.append(Advice(row.word("region"), row.word("instance_type"), row.word("os"), *bounds, saved))
    return tuple(advice)


def _document(path: Path) -> tuple[Advice, ...]:
    document, _ = read_document(path)
    ranges = _ranges(path, document.get("ranges"))
    advice = []
    for region, systems in _object(path, "spot_advisor", document.get("spot_advisor")).items():
        for system, types in _object(path, f"spot_advisor.{region}", systems).items():
            where = f"spot_advisor.{region}.{system}"
            for machine_type, entry in _object(path, where, types).items():
                where_one = f"{where}.{machine_type}"
                found = _object(path, where_one, entry)
                told = found.get("r")
                bounds = ranges.get(told) if isinstance(told, int) else None
                if bounds is None:
                    raise Malformed(path, f"{where_one}.r", f"expected the index of a range, found {shown(told)}")
                saved = number(found.get("s"))
                if saved is None:
                    raise Malformed(path, f"{where_one}.s", f"expected percent, found {shown(found.get('s'))}")
                advice.append(Advice(region, machine_type, system, *bounds, saved / 100.0))
    if not advice:
        raise Malformed(path, "spot_advisor", "has no machine types")
    return tuple(advice)


def _ranges(path: Path, entries: Any) -> dict[int, tuple[float, float]]:
    if not isinstance(entries, list) or not entries:
        raise Malformed(path, "ranges", f"expected a list, found {shown(entries)}")
    ranges = {}
    for position, entry in enumerate(entries):
        where = f"ranges[{position}]"
        label = _object(path, where, entry).get("label")
        bounds = _bounds(label) if isinstance(label, str) else None
        if bounds is None:
            text = f"expected a range such as '<5%' or '5-10%', found {shown(label)}"
            raise Malformed(path, f"{where}.label", text)
        index = entry.get("index", position)
        if not isinstance(index, int):
            raise Malformed(path, f"{where}.index", f"expected a whole number, found {shown(index)}")
        ranges[index] = bounds
    return ranges


def _bounds(label: str) -> tuple[float, float] | None:
    """Fractions of ``<5%``, ``5-10%`` and ``>20%``."""
    found = re.fullmatch(r"\s*(?:<\s*(\d+)|>\s*(\d+)|(\d+)\s*-\s*(\d+))\s*%\s*", label)
    if found is None:
        return None
    if found[1]:
        return 0.0, int(found[1]) / 100.0
    if found[2]:
        return int(found[2]) / 100.0, 1.0
    return int(found[3]) / 100.0, int(found[4]) / 100.0


def _object(path: Path, where: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Malformed(path, where, f"expected an object, found {shown(value)}")
    return value
