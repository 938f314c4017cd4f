"""500 jobs preempted at once, then 200 submissions at once, with launch credits and without: realistic simulator.

``python -m benchmarks surge -- [--jobs 500] [--burst 200] [--per-minute 60] [--told]``. All jobs run in one zone, which
has nothing left after an hour. Five others have room for a third of them each. Unless ``--told``, nobody says how much:
only launching finds out. Launch calls beyond the account's rate are throttled, as clouds do.

Reported are the time until every job trains again, until every submitted job trains, what all of it cost, launches
in the busiest minute of any pool, and launches that were refused or throttled.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.runs import report
from everstep.control.kernel import Line
from everstep.model.events import LaunchFailed, LaunchIntended, Restored
from everstep.model.ids import JobId
from everstep.model.offers import MachineType
from everstep.model.task import CheckpointSpec, Task, Work
from everstep.sim.accounts import bill
from everstep.sim.realistic import SETTINGS, Entry, Played, World, play
from everstep.sim.world.conditions import Conditions, Workload
from everstep.sim.world.supply import Lot, Supply

START = 1_000_000.0
LOST_S, BURST_S = 7_200.0, 14_400.0
_GAP_S = 60.0
_PRICES = (1.1, 1.15, 1.2, 1.3, 1.4)
_NO_CREDITS = 1_000_000


@dataclass(frozen=True)
class Surge:
    """How large, and how it went.

    Attributes:
        recovered_s: from the loss to the first step of each job. began_s: from submission to it, of the burst.
        busiest: launches of one pool in its busiest 60 s. refused, throttled: launches that came to nothing.
    """

    recovered_s: list[float]
    began_s: list[float]
    busiest: int
    refused: int
    throttled: int
    cost_usd: float
    finished: int


def lots(jobs: int) -> tuple[Lot, ...]:
    machine = MachineType("p3.2xlarge", "V100", 1, 8, 61)
    ticks = int(BURST_S * 4 / _GAP_S)
    first = np.full(ticks, jobs, dtype=np.int64)
    first[int(LOST_S / _GAP_S) :] = 0
    others = np.full(ticks, -(-jobs // 3), dtype=np.int64)
    supplies = [(first, 1.0), *((others, price) for price in _PRICES)]
    return tuple(
        Lot(f"z{n}", f"r{n}", machine, 3.06, Supply(counts, None, price, _GAP_S, START))
        for n, (counts, price) in enumerate(supplies)
    )


def entries(jobs: int, burst: int, hours: float) -> list[Entry]:
    """Jobs that come one by one in the first hour, and the burst, all within a second."""
    work = Workload(steps=int(hours * 3600))
    task = Task(
        name="t",
        run="train",
        policy="greedy",
        work=Work(steps=work.steps, hours=hours),
        checkpoint=CheckpointSpec(every_s=900.0),
    )
    early = [Entry(JobId(f"j-a{n:04d}"), task, work, START + 3600.0 * n / jobs) for n in range(jobs)]
    return early + [Entry(JobId(f"j-b{n:04d}"), task, work, START + BURST_S + n / max(burst, 1)) for n in range(burst)]


def surge(jobs: int, burst: int, *, per_minute: int | None, told: bool = False, hours: float = 5.0) -> Surge:
    """One run; ``per_minute`` None = no credits."""
    world = World(lots(jobs), START, START + BURST_S * 4, Conditions(told=told), seed=1)
    settings = replace(SETTINGS, launches_per_minute=per_minute or _NO_CREDITS)
    return measured(play(world, entries(jobs, burst, hours), settings=settings), world)


def measured(played: Played, world: World) -> Surge:
    lost_at = START + LOST_S
    recovered: dict[JobId, float] = {}
    began: dict[JobId, float] = {}
    for line in played.journal:
        if isinstance(line.event, Restored):
            if line.job.startswith("j-b"):
                began.setdefault(line.job, line.at - played.states[line.job].submitted_at)
            elif line.at >= lost_at:
                recovered.setdefault(line.job, line.at - lost_at)
    return Surge(
        recovered_s=list(recovered.values()),
        began_s=list(began.values()),
        busiest=busiest(played.journal),
        refused=sum(isinstance(line.event, LaunchFailed) for line in played.journal),
        throttled=played.cloud.throttled,
        cost_usd=sum(one.cost_usd for s in played.states.values() for one in bill(s, played.ended_at, world.tariff)),
        finished=sum(state.phase.value == "succeeded" for state in played.states.values()),
    )


def busiest(journal: Iterable[Line], window_s: float = 60.0) -> int:
    """Most launches into one pool within any window of that length."""
    at: dict[str, list[float]] = {}
    for line in journal:
        if isinstance(line.event, LaunchIntended):
            at.setdefault(str(line.event.offer.pool), []).append(line.at)
    most = 0
    for times in at.values():
        first = 0
        for last, when in enumerate(times):
            while times[first] <= when - window_s:
                first += 1
            most = max(most, last - first + 1)
    return most


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks surge --")
    parser.add_argument("--jobs", type=int, default=500)
    parser.add_argument("--burst", type=int, default=200)
    parser.add_argument("--per-minute", type=int, default=SETTINGS.launches_per_minute)
    parser.add_argument("--told", action="store_true", help="offers say how many machines there are")
    given = parser.parse_args(arguments)
    command = f"python -m benchmarks surge -- {' '.join(arguments)}".strip()
    kept = True
    for name, per_minute in (
        (f"{given.per_minute} launches a minute and pool", given.per_minute),
        ("no credits", None),
    ):
        began = time.perf_counter()
        found = surge(given.jobs, given.burst, per_minute=per_minute, told=given.told)
        more = {
            "command": command,
            "full_s": max(found.recovered_s, default=0.0),
            "busiest_minute_of_a_pool": found.busiest,
            "refused": found.refused,
            "throttled": found.throttled,
            "cost_usd": round(found.cost_usd, 2),
            "finished": found.finished,
            "simulated_in_s": round(time.perf_counter() - began, 1),
        }
        report("surge", f"{given.jobs} preempted at once, {name}: training again", found.recovered_s, unit="s", **more)
        if found.began_s:
            report(
                "surge",
                f"{given.burst} submitted at once, {name}: first step",
                found.began_s,
                unit="s",
                command=command,
                median_s=statistics.median(found.began_s),
            )
        kept = kept and (per_minute is None or found.busiest <= per_minute)
        kept = kept and found.finished == given.jobs + given.burst
    return 0 if kept else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
