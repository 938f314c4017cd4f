"""Many runs: tasks grouped by their traces, spread over processes, results in the order of the rows.

``Spread`` is the seam for another engine: it takes a function and batches, both picklable, and yields what the function
gives for each batch, in any order. ``processes`` is the default; a client of Dask or of a cluster is one line more
(``lambda work, batches: client.map(work, batches)`` and gathering).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from everstep.market.availability import Series, read_folder, read_series, shared_clock
from everstep.market.faults import Malformed
from everstep.model.errors import BadInput, Problem
from everstep.sim.reference.drive import Outcome, Watcher, drive
from everstep.sim.reference.entrants import OPTIMAL, entrant
from everstep.sim.reference.market import ON_DEMAND_USD_PER_H, SPOT_USD_PER_H, Job, Market, Zone
from everstep.sim.reference.optimal import NoPlan, optimal
from everstep.sim.reference.rows import Task, window

_BATCH = 150
TRANSFER_USD_PER_GB = 0.02
"""Between regions that the table of transfer prices does not name."""

Found = list[tuple[int, Outcome]]
Spread = Callable[[Callable[["Batch"], Found], Sequence["Batch"]], Iterable[Found]]
Egress = Mapping[tuple[str, str], float]
"""USD per GB from region to region."""


@dataclass(frozen=True)
class Batch:
    """Tasks on the same traces.

    Attributes:
        folder: the folder of traces.
        prices: spot and on-demand, USD per hour, where the traces' own are not used.
        egress: None = one zone per task.
    """

    folder: Path
    tasks: tuple[Task, ...]
    prices: tuple[float, float] = (SPOT_USD_PER_H, ON_DEMAND_USD_PER_H)
    egress: Egress | None = field(default=None)


def batches(
    tasks: Sequence[Task], folder: Path, *, prices: tuple[float, float], egress: Egress | None = None
) -> list[Batch]:
    """Tasks in handy portions, those on the same traces together."""
    groups: dict[str, list[Task]] = {}
    for task in tasks:
        groups.setdefault(task.traces, []).append(task)
    return [
        Batch(folder, tuple(group[first : first + _BATCH]), prices, egress)
        for group in groups.values()
        for first in range(0, len(group), _BATCH)
    ]


def run(parts: Sequence[Batch], spread: Spread, told: Callable[[int], None]) -> list[Outcome]:
    """Outcomes by the tasks' numbers; ``told`` hears how many more are done."""
    found: dict[int, Outcome] = {}
    for outcomes in spread(work, parts):
        found.update(outcomes)
        told(len(outcomes))
    return [found[number] for number in sorted(found)]


def here(work: Callable[[Batch], Found], parts: Sequence[Batch]) -> Iterator[Found]:
    """One after the other, in this process."""
    return map(work, parts)


def processes(workers: int) -> Spread:
    """Over so many processes of this machine; 1 = this one."""
    if workers <= 1:
        return here

    def spread(work: Callable[[Batch], Found], parts: Sequence[Batch]) -> Iterator[Found]:
        with ProcessPoolExecutor(min(workers, len(parts))) as pool:
            for done in as_completed([pool.submit(work, part) for part in parts]):
                yield done.result()

    return spread


def cores() -> int:
    """Processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check(tasks: Sequence[Task], folder: Path, *, many_zones: bool = False) -> None:
    """Reads every trace the tasks name and refuses what cannot be run, before anything is. Raises BadInput."""
    if not folder.is_dir():
        raise BadInput(Problem(str(folder), "", "is no folder", "name the folder that holds the traces"))
    known: dict[str, tuple[Series, ...]] = {}
    for task in tasks:
        if task.traces not in known:
            known[task.traces] = _found(task, folder / task.traces, many_zones)
        series = known[task.traces]
        most = max(one.capacity for one in series)
        if task.gang > most:
            text = f"{task.gang} machines at once, but {task.traces} was asked for {most} at most"
            raise BadInput(Problem(task.where, "gang", text))
        window(task, min(one.ticks for one in series), series[0].gap_s, task.traces)


def _found(task: Task, path: Path, many_zones: bool) -> tuple[Series, ...]:
    """The task's traces."""
    try:
        return _zones_of(path) if many_zones else (_series(path),)
    except Malformed as error:
        if path.exists():
            raise
        raise BadInput(Problem(task.where, "set" if many_zones else "file", str(error))) from None


def work(batch: Batch) -> Found:
    """The outcomes of a batch, with the tasks' numbers."""
    markets: dict[tuple[str, int, float], Market] = {}
    found = []
    for task in batch.tasks:
        key = task.traces, task.gang, task.checkpoint_gb
        if key not in markets:
            markets[key] = market_of(task, batch)
        found.append((task.number, simulate(markets[key], task.job, task.policy)))
    return found


def unpriced(tasks: Sequence[Task], folder: Path, egress: Egress) -> list[tuple[str, str]]:
    """Pairs of regions between which checkpoints may move and whose price of transfer is not known."""
    missing: dict[tuple[str, str], None] = {}
    for traces in dict.fromkeys(task.traces for task in tasks if task.checkpoint_gb):
        regions = dict.fromkeys(series.region for series in _zones_of(folder / traces))
        missing |= dict.fromkeys((a, b) for a in regions for b in regions if a != b and (a, b) not in egress)
    return list(missing)


def simulate(market: Market, job: Job, policy: str, *, watcher: Watcher | None = None) -> Outcome:
    """One run. Where no plan meets the deadline, ``optimal`` is what on-demand from the start comes to."""
    if policy == OPTIMAL:
        try:
            return optimal(market, job, watcher=watcher)
        except NoPlan:
            policy = "on_demand"
    return drive(market, job, entrant(policy), watcher=watcher)


def market_of(task: Task, batch: Batch) -> Market:
    """What a task runs in."""
    path = batch.folder / task.traces
    if batch.egress is None:
        one = _series(path)
        zone = Zone(one.zone, one.region, one.up(task.gang), *batch.prices)
        return Market([zone], one.gap_s)
    table = batch.egress
    series = _zones_of(path)
    return Market(
        [_priced(one, task.gang, batch.prices) for one in series],
        series[0].gap_s,
        transfer=lambda source, target: table.get((source, target), TRANSFER_USD_PER_GB),
        checkpoint_gb=task.checkpoint_gb,
    )


def _priced(series: Series, gang: int, prices: tuple[float, float]) -> Zone:
    """A zone with the prices of its file, tick by tick where it has them; else those given."""
    spot = series.prices if series.prices is not None else series.spot_usd_per_h
    steady = series.on_demand_usd_per_h
    return Zone(
        series.zone,
        series.region,
        series.up(gang),
        prices[0] if spot is None else spot,
        prices[1] if steady is None else steady,
    )


def _series(path: Path) -> Series:
    return _read(path, _stamp(path))


def _zones_of(folder: Path) -> tuple[Series, ...]:
    return _read_all(folder, tuple(_stamp(path) for path in sorted(folder.glob("*.json"))))


def _stamp(path: Path) -> tuple[str, int]:
    """Tells files apart that have the same name at different times, or seen from different folders."""
    return str(path.resolve()), path.stat().st_mtime_ns if path.exists() else 0


@lru_cache(maxsize=256)
def _read(path: Path, stamp: tuple[str, int]) -> Series:
    return read_series(path)


@lru_cache(maxsize=32)
def _read_all(folder: Path, stamps: tuple[tuple[str, int], ...]) -> tuple[Series, ...]:
    series = read_folder(folder)
    shared_clock(series)
    return series
