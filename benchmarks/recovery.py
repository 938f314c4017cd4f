"""How soon training goes on after a loss: the same two-node training under everstep and under torchrun, side by side.

``python -m benchmarks recovery -- --rounds 20 --stops 20``. Each round kills a rank, a host that is not the master, and
the master's host. Measured is the time from the fault to the first step beyond the last one before it, done by both;
the boot of the replacement, a fixed time, is subtracted. Where this user is root, every host has a network of its own
and a lost host's link goes down before its processes are killed, so that nobody is told by a closing connection.

With everstep alone: 20 times an agent or a whole host is stopped for 3 s under full load; none may be taken for lost.

By default there is one round, and 6 stops: about 6 minutes, most of them torchrun's, which does not recover from some
losses. 20 rounds take about 15 minutes for everstep and 90 for both forms of torchrun.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.recover import everstep_system, net
from benchmarks.recover.everstep_system import Everstep
from benchmarks.recover.system import Fault, Place, System
from benchmarks.recover.torchrun_system import Torchrun
from benchmarks.runs import environment

GOALS_S = {Fault.WORKER: 3.0, Fault.CHILD: 5.0, Fault.MASTER: 5.0}
SYSTEMS: dict[str, Callable[[Place], System]] = {
    "everstep": Everstep,
    "torchrun": lambda place: Torchrun(place, outside=False),
    "torchrun-outside-store": lambda place: Torchrun(place, outside=True),
}
_LOOK_S = 0.02
_START_S = 120.0
_STOPPED_S = 3.0


def main(arguments: list[str]) -> int:
    given = _parser().parse_args(arguments)
    separate = not given.loopback and net.possible()
    about = {
        "boot_s": given.boot_s,
        "pause_s": given.pause_s,
        "give_up_s": given.give_up_s,
        "hosts": "network namespaces, link down and kill" if separate else "loopback, kill",
        "command": f"python -m benchmarks recovery -- {' '.join(arguments)}".rstrip(" -"),
    }
    good = True
    for number, name in enumerate(given.systems):
        with tempfile.TemporaryDirectory(prefix="recovery-") as folder, _network(separate, number) as network:
            place = Place(Path(folder), network, given.boot_s)
            system = SYSTEMS[name](place)
            try:
                results = _Course(system, given, about).run()
                good = good and (name != "everstep" or all(result["reached"] for result in results))
                if isinstance(system, Everstep) and given.stops:
                    good = _false_losses(system, given.stops, given, about)["reached"] and good
            finally:
                system.stop()
    return 0 if good else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks recovery --")
    parser.add_argument("--rounds", type=int, default=1, help="of each fault and system")
    parser.add_argument("--stops", type=int, default=6, help="SIGSTOPs of 3 s under full load")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--faults", nargs="+", choices=[f.name.lower() for f in Fault], help="default: all")
    parser.add_argument("--boot-s", type=float, default=2.0, help="from the launch of a host to its agent, at least 1")
    parser.add_argument("--pause-s", type=float, default=10.0, help="of undisturbed training before each fault")
    parser.add_argument("--give-up-s", type=float, default=60.0, help="no recovery within that (beyond boot) is none")
    parser.add_argument("--loopback", action="store_true", help="no networks, even if they could be had")
    return parser


@contextmanager
def _network(wanted: bool, number: int) -> Iterator[net.Net | None]:
    if not wanted:
        yield None
        return
    network = net.Net(f"{os.getpid() % 10_000}{'abc'[number % 3]}")
    try:
        network.open()
        yield network
    finally:
        network.close()


class _Course:
    """All rounds of one system."""

    def __init__(self, system: System, given: argparse.Namespace, about: dict[str, Any]) -> None:
        self._system = system
        self._given = given
        self._about = about
        self._seconds: dict[Fault, list[float]] = {}
        self._parts: dict[Fault, list[dict[str, float]]] = {}
        self._failures: dict[Fault, list[str]] = {}
        self._loads: list[float] = []

    def run(self) -> list[dict[str, Any]]:
        faults = [f for f in Fault if not self._given.faults or f.name.lower() in self._given.faults]
        self._system.start()
        for turn, fault in itertools.product(range(self._given.rounds), faults):
            steady(self._system, self._given.pause_s)
            self._loads.append(os.getloadavg()[0])
            failure = self._round(fault, turn)
            if failure:
                self._failures.setdefault(fault, []).append(failure)
                self._system.stop()
                self._system.start()
        return [self._result(fault) for fault in faults]

    def _round(self, fault: Fault, turn: int) -> str:
        """One fault; why it was not recovered from, or nothing."""
        system, trail = self._system, self._system.trail
        at, boot_s = system.strike(fault, turn)
        trail.look()
        beyond = trail.last_step(at)
        while time.time() < at + boot_s + self._given.give_up_s:
            failure = system.tick()
            if failure:
                return failure
            trail.look()
            recovery = trail.recovery(at, beyond)
            if recovery is not None:
                parts = system.parts(at, recovery)
                self._seconds.setdefault(fault, []).append(recovery.at - at - boot_s)
                self._parts.setdefault(fault, []).append(parts)
                _say(system, fault, turn, recovery.at - at - boot_s, parts)
                return ""
            time.sleep(_LOOK_S)
        return f"no step within {self._given.give_up_s:.0f} s"

    def _result(self, fault: Fault) -> dict[str, Any]:
        seconds, failures = sorted(self._seconds.get(fault, [])), self._failures.get(fault, [])
        parts = self._parts.get(fault, [])
        names = list(dict.fromkeys(name for one in parts for name in one if name != "boot"))
        result: dict[str, Any] = {
            "bench": "recovery",
            "case": fault.value,
            "system": self._system.name,
            "n": len(seconds) + len(failures),
            "recovered": len(seconds),
            "unit": "s beyond boot",
            **spread(seconds),
            "parts_median": {name: round(statistics.median(one.get(name, 0.0) for one in parts), 3) for name in names},
            "failures": sorted(set(failures)),
        }
        if self._system.name == "everstep":
            result["goal"] = GOALS_S[fault]
            result["reached"] = not failures and bool(seconds) and result["median"] < GOALS_S[fault]
            result["api_tells_s"] = everstep_system.API_TELLS_S
        return _report(result, self._about, self._loads)


def steady(system: System, pause_s: float) -> None:
    """Waits until both ranks have trained for ``pause_s`` and the system says that all is well."""
    deadline, since = time.time() + _START_S + pause_s, 0.0
    while True:
        system.trail.look()
        trained = [life.steps[0][1] for life in system.trail.current().values()]
        going = [life.steps[-1][1] for life in system.trail.current().values()]
        now = time.time()
        if len(trained) == 2 and min(going) > now - 1.0 and now - max(trained) > pause_s and now - since > 0.5:
            if system.settled():
                return
            since = now
        if now > deadline:
            raise RuntimeError(f"{system.name} does not train")
        time.sleep(0.1)


def _say(system: System, fault: Fault, turn: int, seconds: float, parts: dict[str, float]) -> None:
    text = ", ".join(f"{name} {value:.2f}" for name, value in parts.items())
    print(f"{system.name}: {fault.value}, round {turn + 1}: {seconds:.2f} s ({text})", file=sys.stderr, flush=True)


def spread(ordered: Sequence[float]) -> dict[str, float | None]:
    """Median, quartiles, extremes of sorted values; None for each if there are none."""
    if not ordered:
        return dict.fromkeys(("median", "p25", "p75", "min", "max"))
    low, _, high = statistics.quantiles(ordered, n=4, method="inclusive") if len(ordered) > 1 else list(ordered) * 3
    found = {"median": statistics.median(ordered), "p25": low, "p75": high, "min": ordered[0], "max": ordered[-1]}
    return {name: round(value, 3) for name, value in found.items()}


def _report(result: dict[str, Any], about: dict[str, Any], loads: Sequence[float]) -> dict[str, Any]:
    from importlib.metadata import version

    load = {"load_1min": {"median": statistics.median(loads), "max": max(loads)}} if loads else {}
    result = {**result, **about, "environment": {**environment(), "torch": version("torch")}, **load}
    print(json.dumps(result), flush=True)
    return result


# --- False losses ----------------------------------------------------------------------------------------------------


def _false_losses(system: Everstep, stops: int, given: argparse.Namespace, about: dict[str, Any]) -> dict[str, Any]:
    """Stops agents and whole hosts for a moment while every core is busy; counts what was taken for lost."""
    steady(system, given.pause_s)
    attempts, members = system.attempts(), system.members()
    loads = []
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        time.sleep(2.0)
        for turn in range(stops):
            loads.append(os.getloadavg()[0])
            victim = system.members()[turn // 2 % 2]
            if turn % 2:
                system.box("pause", instance=victim, seconds=_STOPPED_S)
                time.sleep(_STOPPED_S)
            else:
                pid = system.agent_pid(victim)
                os.kill(pid, signal.SIGSTOP)
                time.sleep(_STOPPED_S)
                os.kill(pid, signal.SIGCONT)
            time.sleep(2.0)
    finally:
        for process in busy:
            process.kill()
            process.wait()
    steady(system, 1.0)
    false = system.attempts() - attempts
    result = {
        "bench": "recovery",
        "case": f"stopped for {_STOPPED_S:.0f} s under full load",
        "system": system.name,
        "n": stops,
        "false_losses": false,
        "goal": 0,
        "reached": false == 0 and system.members() == members,
    }
    return _report(result, about, loads)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
