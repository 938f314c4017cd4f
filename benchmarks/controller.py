"""One real server, a thousand simulated agents: how much it takes, how fast it answers, what a kill -9 costs.

The server is ``python -m everstep.server`` with SQLite on one core; the agents are objects in this process on another,
over real sockets: each holds one long poll and sends its reports on a second connection. Goal: 5,000 messages/s of
which 500 are journalled; 99 % of events have their effect within 50 ms; at most 50 KB of memory per job; a restart with
10,000 finished and 1,000 live jobs within 2 s.

The mix, per second, for 1,000 agents in jobs of two: 2,250 heartbeats and 2,250 progress messages, sent in pairs (the
real agent sends one of each per second at most: the period is shortened to 0.43 s to reach the rate); 3 notices of
preemption, each carried out two seconds later, and 1 loss without notice, each followed by a replacement, a new attempt
and the ten or so messages that belong to it; 2 jobs that end well and 2 submissions; saves of rank 0 fill up the 500
that are journalled.

Memory grows for the first minutes, by what jobs remember: machines and attempts of each live job until it ends (four
more a second, 500 jobs that live for 250 s: about 4 MiB, reached after three lives), 16 saves of each attempt.
Afterwards only ended jobs add to it, some 200 bytes each: their states lie on disk.

Latencies are of use only where nothing else wants the two cores: on a busy machine run it as ``chrt -r 1 python -m
benchmarks controller``. The time of an fsync on the same disk is told beside them. The full run is ``--duration 600``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import itertools
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.crowd.audit import audit
from benchmarks.crowd.crowd import NODES, Crowd, Mix, Second
from benchmarks.crowd.past import Past
from benchmarks.crowd.serving import ServerProcess
from benchmarks.runs import report

_SETTLE_S = 5.0
_WINDOW_S = 5
_RAMP_S = 120.0


@dataclass(frozen=True)
class Sample:
    """One second of the server process."""

    at: float
    cpu_s: float
    rss_mib: float
    fsync_s: float


class Bench:
    """One run of the benchmark."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options = options
        self.folder = folder
        given = [f"--{k.replace('_', '-')} {v}" for k, v in vars(options).items() if v not in (None, False)]
        self.command = f"python -m benchmarks controller -- {' '.join(given)}"
        self.ok = True

    def report(
        self, case: str, values: Sequence[float], *, unit: str, reached: bool | None = None, **more: Any
    ) -> None:
        """Prints a result; ``reached`` tells whether its goal was."""
        if reached is not None:
            more["reached"] = reached
            self.ok = self.ok and reached
        report("controller", case, values, unit=unit, command=self.command, **more)

    # --- Under load -------------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """The mix for as long as asked, with a kill -9 in the middle."""
        o = self.options
        folder = self.folder / "load"
        server = ServerProcess(folder, core=o.server_core)
        scale = o.agents / 1000
        mix = Mix(
            agents=o.agents, tick_s=_pair_period_s(o), journalled=1.02 * o.journalled,
            notices=3 * scale, losses=scale, finishes=2 * scale,
        )  # fmt: skip
        crowd = Crowd(server.socket, mix, port=server.port)
        await crowd.open()
        try:
            await server.start()
            crowd.token = server.token
            all_jobs = o.agents // NODES
            # What the first jobs take is the server's own: modules, caches, buffers.
            await self._fill(crowd, all_jobs // 10)
            _, warm_mib = server.usage()
            jobs = all_jobs - all_jobs // 10
            await self._fill(crowd, jobs)
            _, full_mib = server.usage()
            self.report(
                "memory per live job, its two connected agents included", [(full_mib - warm_mib) * 1024 / jobs],
                unit="KiB", jobs=jobs,
            )  # fmt: skip
            samples: list[Sample] = []
            watching = asyncio.create_task(_watch(server, samples))
            began = time.time() + _SETTLE_S
            half = o.duration / 2
            await crowd.live(began + half)
            cut = time.time()
            outage = await self._kill(server, crowd)
            again = time.time() + _SETTLE_S
            await crowd.live(again + half)
            ended = time.time()
            await asyncio.sleep(1.0)
            watching.cancel()
            spans = [(began, cut), (again, ended)]
            self._tell_load(crowd, samples, spans, outage)
        finally:
            server.stop()
            await crowd.close()
        await self._tell_audit(crowd, folder)

    async def _fill(self, crowd: Crowd, jobs: int) -> None:
        """Submits so many jobs and waits until nearly all that there are train."""
        began = time.time()
        for _ in range(jobs):
            await crowd.submit()
        while crowd.running < 0.97 * NODES * crowd.submitted:
            if time.time() - began > _RAMP_S:
                raise RuntimeError(f"only {crowd.running} agents run after {_RAMP_S:.0f} s; {crowd.errors[:3]}")
            await asyncio.sleep(0.1)

    async def _kill(self, server: ServerProcess, crowd: Crowd) -> dict[str, float]:
        """kill -9 under full load, and a new start; what it took, seconds."""
        living = asyncio.create_task(crowd.live(time.time() + 60.0))
        await asyncio.sleep(0.5)
        killed = time.time()
        server.kill()
        started_s = await server.start()
        while crowd.heard_since(killed + started_s / 2) < 0.97 * len(crowd.agents) and time.time() < killed + 60.0:
            await asyncio.sleep(0.05)
        living.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await living
        return {"start_s": started_s, "all_agents_back_s": time.time() - killed}

    def _tell_load(
        self, crowd: Crowd, samples: list[Sample], spans: list[tuple[float, float]], outage: dict[str, float]
    ) -> None:
        o, steady = self.options, [s for span in spans for s in crowd.between(*span)]
        rates = [float(s.telemetry + s.journalled) for s in steady]
        journalled = [float(s.journalled) for s in steady]
        self.report(
            "messages", rates, unit="1/s", target=o.rate, reached=statistics.mean(rates) >= 0.98 * o.rate,
            agents=o.agents,
            posts_per_s=statistics.mean(s.posts for s in steady), seconds=len(steady), agents_alive=len(crowd.agents),
        )  # fmt: skip
        self.report(
            "journalled messages", journalled, unit="1/s", target=o.journalled,
            reached=statistics.mean(journalled) >= 0.98 * o.journalled, mix=_mix_of(crowd),
        )  # fmt: skip
        self._latency(
            "event to effect: notice sent to save order at the other agent", steady, "effects_s", goal_ms=50.0
        )
        self._latency("event to durable: journalled message sent to acknowledged", steady, "acks_s", goal_ms=50.0)
        self._latency("submission, user API", steady, "submits_s")
        inside = [s for s in samples if any(a <= s.at <= b for a, b in spans)]
        shares = [b.cpu_s - a.cpu_s for a, b in itertools.pairwise(inside) if 0.9 < b.at - a.at < 1.2]
        busy = [share for share in shares if share >= 0]
        self.report("server CPU", busy, unit="share of one core", core=o.server_core)
        self.report("fsync of 4 KiB beside the journal", [s.fsync_s * 1000 for s in inside], unit="ms")
        for number, (a, b) in enumerate(spans):
            rss = [(s.at - a, s.rss_mib) for s in inside if a <= s.at <= b]
            if len(rss) > 2:
                slope = statistics.linear_regression(*zip(*rss, strict=True)).slope * 60.0
                name = "before" if number == 0 else "after"
                self.report(
                    f"resident memory {name} the kill", [mib for _, mib in rss], unit="MiB", start=rss[0][1],
                    end=rss[-1][1], slope_mib_per_min=slope,
                )  # fmt: skip
        self.report("kill -9 under load to the first answer", [outage["start_s"]], unit="s")
        self.report("kill -9 under load to the last agent back", [outage["all_agents_back_s"]], unit="s")

    def _latency(self, case: str, steady: list[Second], name: str, *, goal_ms: float | None = None) -> None:
        """All values; the 99th percentile over all of them, and its spread over windows of five seconds."""
        values = [v * 1000 for s in steady for v in getattr(s, name)]
        if not values:
            self.report(case, [0.0], unit="ms", reached=None if goal_ms is None else False, samples=0)
            return
        p99 = _quantile(values, 0.99)
        windows = [
            _quantile(found, 0.99)
            for at in range(0, len(steady), _WINDOW_S)
            if (found := [v * 1000 for s in steady[at : at + _WINDOW_S] for v in getattr(s, name)])
        ]
        self.report(
            case, values, unit="ms", p50=_quantile(values, 0.5), p99=p99, p99_goal=goal_ms,
            p99_of_5s_windows={"median": statistics.median(windows), "min": min(windows), "max": max(windows)},
            reached=None if goal_ms is None else p99 < goal_ms,
        )  # fmt: skip

    async def _tell_audit(self, crowd: Crowd, folder: Path) -> None:
        found = await audit(folder / "home" / "journal.db", crowd.acked)
        self.report(
            "acknowledged messages that the journal lost", [float(found.lost)], unit="messages",
            reached=found.lost == 0 and found.quarantined == 0, acknowledged=found.acknowledged, fenced=found.fenced,
            journal_lines=found.lines, quarantined_jobs=found.quarantined, errors=crowd.errors[:3],
        )  # fmt: skip

    # --- Restarts ---------------------------------------------------------------------------------------------------

    async def restarts(self) -> None:
        """kill -9 and start, with many jobs; memory by what is in it."""
        o = self.options
        empty = await self._restart("empty", finished=0, live=0, after=0)
        living = await self._restart("live", finished=0, live=o.live, after=0)
        both = await self._restart("both", finished=o.finished, live=o.live, after=o.after_snapshot)
        live_kib = (statistics.median(living[1]) - statistics.median(empty[1])) * 1024 / max(o.live, 1)
        ended_kib = (statistics.median(both[1]) - statistics.median(living[1])) * 1024 / max(o.finished, 1)
        goal: dict[str, Any] = {"goal_kib": 50.0}
        self.report("memory per live job after a restart", [live_kib], unit="KiB", reached=live_kib <= 50, **goal)
        self.report("memory per finished job after a restart", [ended_kib], unit="KiB", reached=ended_kib <= 50, **goal)
        self.report("restart, empty", empty[0], unit="s")
        self.report(
            f"restart with {o.finished} finished and {o.live} live jobs, {o.after_snapshot} lines after the snapshot",
            both[0], unit="s", target=2.0, reached=statistics.median(both[0]) <= 2.0,
        )  # fmt: skip

    async def _restart(self, name: str, *, finished: int, live: int, after: int) -> tuple[list[float], list[float]]:
        """(seconds from the start of the process to an answer, resident MiB) of each start."""
        server = ServerProcess(self.folder / name, core=self.options.server_core)
        machines = await Past(server.home, nodes=NODES).write(finished=finished, live=live, after_snapshot=after)
        crowd = Crowd(server.socket, Mix(), port=server.port)
        crowd.remember(machines)
        await crowd.open()
        taken, resident = [], []
        try:
            for _ in range(self.options.restarts):
                taken.append(await server.start())
                await asyncio.sleep(1.0)
                resident.append(server.usage()[1])
                server.kill()
        finally:
            server.kill()
            await crowd.close()
        return taken, resident


async def _watch(server: ServerProcess, samples: list[Sample]) -> None:
    """Looks at the server once a second; what fsync costs on the same disk tells a slow disk from a slow server."""
    path = server.home / "fsync-probe"
    while True:
        fsync_s = await asyncio.to_thread(_fsync, path)
        with contextlib.suppress(Exception):  # it is being killed or started just now
            samples.append(Sample(time.time(), *server.usage(), fsync_s))
        await asyncio.sleep(1.0 - time.time() % 1.0)


def _fsync(path: Path) -> float:
    with path.open("wb") as file:
        file.write(b"\0" * 4096)
        file.flush()
        began = time.perf_counter()
        os.fsync(file.fileno())
        return time.perf_counter() - began


def _pair_period_s(options: argparse.Namespace) -> float:
    """A little faster than needed: machines that boot, or wait for an answer, send nothing."""
    return 0.97 * 2 * options.agents / max(options.rate - options.journalled, 1.0)


def _mix_of(crowd: Crowd) -> dict[str, int]:
    counts: dict[str, int] = {}
    for message in crowd.acked:
        counts[message[2]] = counts.get(message[2], 0) + 1
    return counts


def _quantile(values: Sequence[float], fraction: float) -> float:
    ordered = sorted(values)
    return ordered[round(fraction * (len(ordered) - 1))]


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks controller --")
    parser.add_argument("--duration", type=float, default=60.0, help="seconds under load; the full run is 600")
    parser.add_argument("--agents", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=5000.0, help="messages per second over all agents")
    parser.add_argument("--journalled", type=float, default=500.0, help="of these, messages that the journal takes")
    parser.add_argument("--finished", type=int, default=10_000, help="jobs of the restart that have ended")
    parser.add_argument("--live", type=int, default=1000, help="jobs of the restart that train")
    parser.add_argument("--after-snapshot", type=int, default=5000, help="journal lines to read after the snapshot")
    parser.add_argument("--restarts", type=int, default=3)
    parser.add_argument("--only", choices=("load", "restarts"))
    parser.add_argument("--folder", help="where the journal lies; default: a temporary folder")
    cores = sorted(os.sched_getaffinity(0))
    parser.add_argument("--server-core", type=int, default=cores[0])
    parser.add_argument("--crowd-core", type=int, default=cores[-1])
    return parser.parse_args(arguments)


async def _run(options: argparse.Namespace, folder: Path) -> bool:
    bench = Bench(options, folder)
    parts: list[Awaitable[None]] = []
    if options.only != "restarts":
        parts.append(bench.load())
    if options.only != "load":
        parts.append(bench.restarts())
    for part in parts:
        await part
    return bench.ok


def main(arguments: list[str]) -> int:
    """Exit status 0 if every goal was reached."""
    import uvloop

    options = _options(arguments)
    allowed = os.sched_getaffinity(0)
    folder = Path(tempfile.mkdtemp(prefix="bench-controller-", dir=options.folder))
    # The crowd's own pauses would be taken for the server's.
    gc.disable()
    try:
        os.sched_setaffinity(0, {options.crowd_core})
        return 0 if uvloop.run(_run(options, folder)) else 1
    finally:
        gc.enable()
        os.sched_setaffinity(0, allowed)
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
