"""Lifetimes of preemptible machines, with what was not seen to the end.

The generic format is a CSV with ``duration_h``, ``observed`` (1 = preempted then; 0 = still there then, or ended by its
owner) and, where known, ``pool`` and ``start``. Published sets are told by their header, logs of clusters by their
first row.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from everstep.brain.forecast.records import Lifetime, lasted
from everstep.market.alive import lives_of_counts, lives_of_events, read_counts, read_events
from everstep.market.clouds import region_of_zone
from everstep.market.faults import Malformed
from everstep.market.rows import Row, header, rows
from everstep.model.offers import Market, Pool

_HOURS = "hours, 0 or more"


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """All machines of a file.

    Attributes:
        source: the file's name.
        lives: one per machine, in the order of the file.
        paired: the source counted machines without naming them, and ends were paired with starts, oldest first. Number
            of ends and hours of life are right, and so is the mean rate; the shape of the distribution is not to be
            believed.
    """

    source: str
    lives: tuple[Lifetime, ...]
    paired: bool = False


def read_lifetimes(path: Path) -> Lifetimes:
    """Every machine of the file, in its order.

    Raises:
        Malformed: a row is malformed, or the header is of no known set.
    """
    names = header(path)
    for columns, read in _SETS:
        if set(columns) <= set(names):
            return Lifetimes(path.name, tuple(read(row) for row in rows(path, columns)))
    if len(names) == 3 and names[1] in ("add", "remove"):
        return Lifetimes(path.name, tuple(lives_of_events(read_events(path))))
    if len(names) in (2, 3) and names[-1].isdigit():
        return Lifetimes(path.name, tuple(lives_of_counts(read_counts(path))), paired=True)
    fix = f"the file has {', '.join(names)}"
    raise Malformed(path, "", "expected at least the columns duration_h and observed", line=1, fix=fix)


def _plain(row: Row) -> Lifetime:
    start_s = row.instant("start") if row.text("start") else None
    pool = row.text("pool")
    return lasted(row.number("duration_h", _HOURS), row.flag("observed"), (pool,) if pool else (), start_s)


def _gcp_2019(row: Row) -> Lifetime:
    """An owner's stop is no preemption, nor is the end at the 24 hours that such machines had at most."""
    kind = row.word("end_kind")
    if kind not in ("preempted", "user_stop"):
        raise row.fault("end_kind", f"expected preempted or user_stop, found {kind!r}")
    hours = row.number("lifetime_s", "seconds, 0 or more") / 3600.0
    observed = kind == "preempted" and not row.flag("max_life_kill")
    return lasted(hours, observed, _pool("gcp", row.word("zone"), row.word("machine_type")), row.instant("start_utc"))


def _gcp_gpu_2019(row: Row) -> Lifetime:
    """To the minute. Who reached the maximum life was not preempted."""
    pool = _pool("gcp", row.word("zone"), row.word("gpu"))
    return lasted(row.number("lifetime_h", _HOURS), not row.flag("reached_max_life"), pool, row.instant("start"))


def _probed_2020(row: Row) -> Lifetime:
    """Looked at every few minutes: the end lies between two looks."""
    lo_h, hi_h = row.number("lo_h", _HOURS), row.number("hi_h", _HOURS)
    if hi_h < lo_h:
        raise row.fault("hi_h", f"expected lo_h ({lo_h:g}) or more, found {row.text('hi_h')!r}")
    pool = _pool(row.word("cloud"), row.word("zone"), f"{row.word('gpu').upper()}:{row.count('num_gpus')}")
    return Lifetime(lo_h, hi_h if row.flag("preempted") else math.inf, pool, row.instant("start"))


def _pool(cloud: str, zone: str, machine: str) -> tuple[str, ...]:
    """From the widest to the narrowest: cloud, region, pool."""
    return cloud, region_of_zone(cloud, zone), str(Pool(cloud, zone, machine, Market.SPOT))


_SETS: tuple[tuple[tuple[str, ...], Callable[[Row], Lifetime]], ...] = (
    (("duration_h", "observed"), _plain),
    (("lifetime_s", "end_kind", "max_life_kill", "machine_type", "zone", "start_utc"), _gcp_2019),
    (("lifetime_h", "reached_max_life", "gpu", "zone", "start"), _gcp_gpu_2019),
    (("lo_h", "hi_h", "preempted", "cloud", "zone", "gpu", "num_gpus", "start"), _probed_2020),
)
"""Columns that tell a set, and what makes a lifetime of its row."""
