"""What a report holds, whatever it was made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spell:
    """A stretch of time on one kind of machine; hours since the start. ``kind``: spot, on_demand or another market."""

    start_h: float
    end_h: float
    kind: str
    place: str
    end: str = ""


@dataclass(frozen=True, slots=True)
class Lane:
    """One row of the timeline."""

    label: str
    spells: tuple[Spell, ...]


@dataclass(frozen=True, slots=True)
class Bar:
    """One policy: mean cost over its runs, and how the runs spread.

    Attributes:
        usd: mean. lowest_usd, highest_usd: over the runs.
        finish_h: mean of those that finished; None = none did.
        missed: deadlines.
    """

    policy: str
    runs: int
    usd: float
    lowest_usd: float
    highest_usd: float
    finish_h: float | None
    missed: int
    more: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """A report.

    Attributes:
        mode: which world, in words.
        traces: files that the market was read from. sources: where those come from, as far as the input says.
        on_demand_usd, optimal_usd: means of the same runs on demand and of the clairvoyant optimum; None = not known.
        marks: what the two are, in words.
        values: by policy, one figure per run, in ``unit``: cost over the optimum of the same run, or cost.
    """

    title: str
    mode: str
    traces: tuple[str, ...]
    sources: tuple[str, ...]
    bars: tuple[Bar, ...]
    on_demand_usd: float | None
    optimal_usd: float | None
    marks: str
    values: Mapping[str, Sequence[float]]
    unit: str
    lanes: tuple[Lane, ...] = ()
    notes: tuple[str, ...] = ()
