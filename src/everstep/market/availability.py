"""Availability and preemption traces: how many machines one zone had, tick by tick.

The format is ``{"metadata": {"gap_seconds": s, ...}, "data": [n, ...], "prices": [usd_per_h, ...]}``. Gap and data must
be there. **Positive = available**; published simulators use the opposite sign, 1 = preempted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from everstep.market.documents import line_of, read_document, shown
from everstep.market.faults import Malformed
from everstep.market.rows import instant


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """One zone over time, in ticks of ``gap_s`` seconds.

    Attributes:
        file: where it was read.
        zone, region, cloud, machine_type, accelerator: as the file says; ``zone`` is the file's name where it does not.
        gap_s: seconds per tick.
        start: UTC seconds of the first tick. A file that states no zone of time is taken as UTC; None = not stated.
        capacity: how many machines were asked for at each tick.
        counts: shape (ticks,), int64, read-only: machines that were there, 0 to ``capacity``.
        prices: shape (ticks,), float64, read-only: spot USD per hour of one machine; None = the file has none.
        spot_usd_per_h: one spot price for the whole time, where the file states it.
        on_demand_usd_per_h: list price of one machine; None = not stated.
        kind: what a tick is: a probe (could a machine start?) or a held machine with real preemptions.
        source: where the file says that it comes from.
    """

    file: str
    zone: str
    region: str
    cloud: str
    machine_type: str
    accelerator: str
    gap_s: float
    start: float | None
    capacity: int
    counts: NDArray[np.int64]
    prices: NDArray[np.float64] | None
    spot_usd_per_h: float | None
    on_demand_usd_per_h: float | None
    kind: str
    source: str

    @property
    def ticks(self) -> int:
        """Length."""
        return len(self.counts)

    @property
    def hours(self) -> float:
        """Length in hours."""
        return self.ticks * self.gap_s / 3600.0

    def up(self, gang: int = 1) -> NDArray[np.bool_]:
        """Shape (ticks,): whether ``gang`` machines were there at once."""
        return self.counts >= gang


def read_series(path: Path) -> Series:
    """Reads one trace.

    Raises:
        Malformed: it cannot be read, has a gap (a tick without a value), no ticks, a negative value, more machines
            than were asked for, or not one price per tick.
    """
    document, source = read_document(path)
    metadata = document.get("metadata")
    if not isinstance(metadata, dict):
        raise Malformed(path, "metadata", f"expected an object, found {shown(metadata)}", fix="give gap_seconds in it")
    gap_s = metadata.get("gap_seconds")
    if not _is_number(gap_s) or gap_s < _LEAST_GAP_S:
        raise Malformed(
            path, "metadata.gap_seconds", f"expected seconds per tick, {_LEAST_GAP_S:g} or more, found {shown(gap_s)}"
        )
    counts = _values(path, source, document, "data", "a whole number of machines, 0 or more").astype(np.int64)
    prices = None
    if document.get("prices") is not None:
        prices = _values(path, source, document, "prices", "a price in USD per hour, 0 or more").astype(np.float64)
        if len(prices) != len(counts):
            text = f"has {len(prices)} values, but data has {len(counts)}"
            raise Malformed(path, "prices", text, fix="give one price per tick, or none at all")
        prices.setflags(write=False)
    counts.setflags(write=False)
    words = {key: _text(path, metadata, key) for key in _TEXTS}
    return Series(
        file=str(path),
        zone=words["zone"] or path.stem,
        region=words["region"],
        cloud=words["cloud"],
        machine_type=words["instance_type"],
        accelerator=words["accelerator"],
        gap_s=float(gap_s),
        start=_start(path, metadata),
        capacity=_capacity(path, source, metadata, counts),
        counts=counts,
        prices=prices,
        spot_usd_per_h=_price(path, metadata, "spot", words["instance_type"]),
        on_demand_usd_per_h=_price(path, metadata, "on_demand", words["instance_type"]),
        kind=words["kind"],
        source=words["source"],
    )


def read_folder(folder: Path) -> tuple[Series, ...]:
    """Every trace of a folder, by file name.

    Raises:
        Malformed: the folder has none, or one of them is malformed.
    """
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise Malformed(folder, "", "has no traces (*.json)" if folder.is_dir() else "is no folder")
    return tuple(read_series(path) for path in paths)


def shared_clock(series: Sequence[Series]) -> int:
    """How many ticks all of ``series`` have in common, from the first.

    Raises:
        Malformed: they tick at different lengths or start at different times, so that their ticks cannot be compared.
    """
    first = series[0]
    for other in series[1:]:
        if other.gap_s != first.gap_s:
            text = f"ticks of {other.gap_s:g} s, but {first.file} has ticks of {first.gap_s:g} s"
            raise Malformed(other.file, "metadata.gap_seconds", text, fix="zones of one job must share the clock")
        if other.start != first.start:
            text = f"starts at {_when(other.start)}, but {first.file} starts at {_when(first.start)}"
            raise Malformed(other.file, "metadata.start_time", text, fix="zones of one job must share the clock")
    return min(one.ticks for one in series)


_LEAST_GAP_S = 0.001
"""Shorter ticks could not be told apart in UTC seconds."""
_MOST = 1e12
"""No trace means a larger number."""
_TEXTS = ("zone", "region", "cloud", "instance_type", "accelerator", "kind", "source")


def _values(path: Path, source: str, document: dict[str, Any], key: str, wanted: str) -> NDArray[Any]:
    """The list ``key`` as an array; the first value that is not what is wanted is named."""
    values = document.get(key)
    if not isinstance(values, list):
        raise Malformed(path, key, f"expected a list, found {shown(values)}", fix="give one number per tick")
    if not values:
        raise Malformed(path, key, "has no ticks", fix="give one number per tick")
    whole = key == "data"
    # Types first: numpy would take true for 1, and None for nothing at all.
    if set(map(type, values)) <= {int, float}:
        try:
            array = np.asarray(values, dtype=np.float64)
        except OverflowError:
            array = np.full(1, np.nan)
        good = (array >= 0) & (array <= _MOST) & ((array == np.floor(array)) | (not whole))
        if good.all():
            return array
    for index, value in enumerate(values):
        if value is None:
            message, fix = "a gap: this tick has no value", "fill it or cut the trace there"
        elif not _is_number(value) or value < 0 or (whole and value != int(value)):
            message, fix = f"expected {wanted}, found {shown(value)}", ""
        else:
            continue
        raise Malformed(path, f"{key}[{index}]", message, line=line_of(source, key, index), fix=fix)
    raise AssertionError("the array was refused, but each of its values is good")


def _capacity(path: Path, source: str, metadata: dict[str, Any], counts: NDArray[np.int64]) -> int:
    capacity = metadata.get("capacity")
    most = int(counts.max())
    if capacity is None:
        return max(most, 1)
    if not _is_number(capacity) or capacity < 1 or capacity != int(capacity):
        raise Malformed(path, "metadata.capacity", f"expected a whole number, 1 or more, found {shown(capacity)}")
    if most > capacity:
        index = int(np.argmax(counts > capacity))
        message = f"has more machines than the capacity of {int(capacity)} that was asked for"
        raise Malformed(path, f"data[{index}]", message, line=line_of(source, "data", index))
    return int(capacity)


def _price(path: Path, metadata: dict[str, Any], market: str, machine_type: str) -> float | None:
    """``on_demand_usd_per_h`` of the machine, or of a machine with more of the same: ``..._a3_highgpu_8g`` over 8."""
    plain = f"{market}_usd_per_h"
    # The machine's own price comes before that of a larger one.
    for key in sorted(key for key in metadata if key == plain or key.startswith(f"{plain}_")):
        value = metadata[key]
        if value is None:
            continue
        if not _is_number(value) or value < 0:
            raise Malformed(path, f"metadata.{key}", f"expected USD per hour, 0 or more, found {shown(value)}")
        return float(value) if key == plain else float(value) * _units(machine_type) / _units(key)
    return None


def _units(name: str) -> float:
    """Accelerators of a machine type named ``a3-highgpu-8g``; 1 for names that do not say."""
    last = name.replace("_", "-").rpartition("-")[2]
    number = last.removesuffix("g")
    return float(number) if last.endswith("g") and number.isdecimal() and int(number) else 1.0


def _start(path: Path, metadata: dict[str, Any]) -> float | None:
    for key in ("start_time", "start_date"):
        value = metadata.get(key)
        if value is None:
            continue
        try:
            return instant(str(value))
        except ValueError:
            text = f"expected a time such as 2030-01-31T18:00:00+00:00, found {shown(value)}"
            raise Malformed(path, f"metadata.{key}", text) from None
    return None


def _text(path: Path, metadata: dict[str, Any], key: str) -> str:
    value = metadata.get(key, "")
    if not isinstance(value, str):
        raise Malformed(path, f"metadata.{key}", f"expected text, found {shown(value)}")
    return value


def _when(start: float | None) -> str:
    return "an unknown time" if start is None else datetime.fromtimestamp(start, UTC).isoformat()


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _MOST
