"""Availability and price of one zone over time, read from a trace file.

The format is ``{"metadata": {"gap_seconds": s, ...}, "data": [n, ...], "prices": [usd_per_h, ...]}``: at tick i, ``n``
machines could be had (positive = available) and one of them cost so much. ``prices`` is optional.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from everstep.model.errors import BadInput, Problem


class AfterTrace(StrEnum):
    """What happens when a trace is over."""

    HOLD = "hold"
    LOOP = "loop"


@dataclass(frozen=True, slots=True)
class Trace:
    """Ticks of ``gap_s`` market seconds.

    Attributes:
        available: machines that can be held at each tick.
        prices_usd_per_h: price of one at each tick; empty = the trace has none.
        after: what follows the last tick.
        offset_s: market second of the trace at which play starts.
    """

    gap_s: float
    available: tuple[int, ...]
    prices_usd_per_h: tuple[float, ...] = ()
    after: AfterTrace = AfterTrace.HOLD
    offset_s: float = 0.0

    def tick(self, market_s: float) -> int:
        """Index of the tick in force ``market_s`` market seconds after play started (negative: before it)."""
        # The slack undoes floating point: a wake-up computed for a boundary must find the boundary passed.
        index = math.floor((market_s + self.offset_s) / self.gap_s + 1e-9)
        if index < 0:
            return 0
        return index % len(self.available) if self.after is AfterTrace.LOOP else min(index, len(self.available) - 1)

    def available_at(self, market_s: float) -> int:
        """How many machines can be held then."""
        return self.available[self.tick(market_s)]

    def price_at(self, market_s: float) -> float | None:
        """Price of one machine then, USD per market hour; None if the trace has no prices."""
        return self.prices_usd_per_h[self.tick(market_s)] if self.prices_usd_per_h else None

    def changes(self, start_s: float, end_s: float) -> Iterator[float]:
        """Market seconds in ``(start_s, end_s]`` at which availability or price changes, in order."""
        index = max(math.floor((start_s + self.offset_s) / self.gap_s + 1e-9), 0)
        # A held trace is constant after its last tick.
        last = math.inf if self.after is AfterTrace.LOOP else len(self.available) - 1
        before = self._values(index)
        while index < last:
            index += 1
            at = index * self.gap_s - self.offset_s
            if at > end_s:
                return
            values = self._values(index)
            if values != before:
                before = values
                yield at

    def next_change(self, market_s: float) -> float | None:
        """Market second of the first change after ``market_s``; None if nothing changes any more."""
        horizon = (len(self.available) + 1) * self.gap_s
        return next(self.changes(market_s, max(market_s, -self.offset_s) + horizon), None)

    def _values(self, index: int) -> tuple[int, float | None]:
        index = index % len(self.available) if self.after is AfterTrace.LOOP else min(index, len(self.available) - 1)
        return self.available[index], self.prices_usd_per_h[index] if self.prices_usd_per_h else None


def read_trace(path: Path, *, after: AfterTrace = AfterTrace.HOLD, offset_s: float = 0.0) -> Trace:
    """Reads a trace file.

    Raises:
        BadInput: it cannot be read or is malformed; the line names the file, the key and the index.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise _bad(path, "", f"cannot be read: {error.strerror}", "check the path") from None
    except ValueError as error:
        raise _bad(path, "", f"is not JSON: {error}", "write the trace again") from None
    if not isinstance(document, dict):
        raise _bad(path, "", "expected an object with 'metadata' and 'data'", "write the trace again")
    metadata = document.get("metadata")
    gap_s = metadata.get("gap_seconds") if isinstance(metadata, dict) else None
    if gap_s is None or not _is_number(gap_s) or gap_s <= 0:
        raise _bad(path, "metadata.gap_seconds", f"expected seconds per tick, above 0, found {gap_s!r}", "")
    available = _series(path, document, "data", whole=True)
    prices = _series(path, document, "prices", whole=False) if document.get("prices") is not None else ()
    if not available:
        raise _bad(path, "data", "has no ticks", "give one number per tick")
    if prices and len(prices) != len(available):
        text = f"has {len(prices)} values, but data has {len(available)}"
        raise _bad(path, "prices", text, "give one price per tick, or none at all")
    return Trace(float(gap_s), tuple(int(n) for n in available), tuple(map(float, prices)), after, offset_s)


def _series(path: Path, document: dict[str, Any], key: str, *, whole: bool) -> tuple[float, ...]:
    values = document.get(key)
    if not isinstance(values, list):
        raise _bad(path, key, f"expected a list, found {type(values).__name__}", "give one number per tick")
    wanted = "a whole number, 0 or more" if whole else "a price in USD per hour, 0 or more"
    for index, value in enumerate(values):
        if not _is_number(value) or value < 0 or (whole and value != int(value)):
            raise _bad(path, f"{key}[{index}]", f"expected {wanted}, found {value!r}", "")
    return tuple(values)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _bad(path: Path, key: str, message: str, fix: str) -> BadInput:
    return BadInput(Problem(str(path), key, message, fix))
