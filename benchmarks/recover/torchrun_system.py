"""torchrun with the c10d rendezvous: one elastic agent per host; who replaces a lost host's agent is this file."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.recover.marks import Recovery, Trail
from benchmarks.recover.system import Fault, Place

_STORE_PORT = 29_400
_STORE = f"""\
import sys, time
from datetime import timedelta
from torch.distributed import TCPStore
store = TCPStore("0.0.0.0", {_STORE_PORT}, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
print("serving", flush=True)
while True:
    time.sleep(60)
"""


@dataclass(slots=True)
class _Host:
    number: int
    log: Path
    process: subprocess.Popen[bytes]


@dataclass(slots=True)
class Torchrun:
    """See ``system.System``.

    Args:
        outside: the better setting: the rendezvous store is served by a process on a third host that is never lost,
            and TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, without which an agent that remembers the address of an earlier
            gang's store does not tell it to a newcomer (torch 2.13), which then waits in vain. Otherwise the defaults:
            the first host's agent serves the store.
    """

    place: Place
    outside: bool
    trail: Trail = field(init=False)
    name: str = field(init=False)
    _hosts: list[_Host] = field(default_factory=list)
    _store: subprocess.Popen[bytes] | None = None
    _endpoint: str = ""
    _store_host: int = 0
    _made: int = 0
    _starts: int = 0
    _boot_at: float | None = None

    def __post_init__(self) -> None:
        self.trail = Trail(self.place.marks)
        self.name = "torchrun, store outside and not shared" if self.outside else "torchrun"

    def start(self) -> None:
        self._starts += 1
        self.trail.forget()
        first = self._made + 1
        self._store_host = first
        if self.outside:
            self._plug_next()
            self._store = subprocess.Popen(
                [*self._inside(first), sys.executable, "-c", _STORE], stdout=subprocess.PIPE, start_new_session=True
            )
            assert self._store.stdout is not None
            self._store.stdout.readline()
        port = _STORE_PORT if self.outside or self.place.net is not None else _STORE_PORT + self._starts
        self._endpoint = f"{self._address(first)}:{port}"
        for _ in range(2):
            self._plug_next()
            self._hosts.append(self._new_host())

    def settled(self) -> bool:
        return len(self._hosts) == 2 and self._boot_at is None and all(h.process.poll() is None for h in self._hosts)

    def strike(self, fault: Fault, turn: int) -> tuple[float, float]:
        ranks = self.trail.current()
        if fault is Fault.WORKER:
            os.kill(ranks[turn % 2].pid, signal.SIGKILL)
            return time.time(), 0.0
        # Without an outside store the host that serves it is the one that matters; otherwise that of rank 0.
        master = int(ranks[0].host) if self.outside else self._store_host
        lost = next(h for h in self._hosts if (h.number == master) == (fault is Fault.MASTER))
        if self.place.net is not None:
            self.place.net.unplug(lost.number)
        at = time.time()
        self._end(lost)
        self._hosts.remove(lost)
        self._boot_at = at + self.place.boot_s
        self._plug_next()
        return at, self.place.boot_s

    def tick(self) -> str:
        if self._boot_at is not None and time.time() >= self._boot_at:
            self._boot_at = None
            self._hosts.append(self._new_host())
        gone = [h for h in self._hosts if h.process.poll() is not None]
        if not gone:
            return ""
        last = [line for line in gone[0].log.read_text(errors="replace").splitlines() if "Error" in line]
        return f"an agent that was not touched exited with {gone[0].process.returncode}: {last[-1] if last else ''}"[
            :300
        ]

    def parts(self, fault_at: float, recovery: Recovery) -> dict[str, float]:
        parts, at = {}, fault_at
        steps = [("detect, decide, restart", max(_began(life.pid) for life in recovery.lives.values()))]
        steps += [("import", recovery.stage("imported")), ("rendezvous", recovery.stage("rendezvous"))]
        steps += [("restore", recovery.stage("restored")), ("first new step", recovery.at)]
        for name, then in steps:
            parts[name] = max(0.0, then - at)
            at = max(at, then)
        return parts

    def stop(self) -> None:
        for host in self._hosts:
            self._end(host)
        self._hosts.clear()
        self._boot_at = None
        if self._store is not None:
            self._store.kill()
            self._store.wait()
            assert self._store.stdout is not None
            self._store.stdout.close()
            self._store = None

    # --- hosts -------------------------------------------------------------------------------------------------------

    def _new_host(self) -> _Host:
        number = self._made
        command = [*self._inside(number), str(Path(sys.executable).with_name("torchrun"))]
        command += ["--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", f"--rdzv-endpoint={self._endpoint}"]
        command += [f"--rdzv-id=recovery-{self._starts}", "--max-restarts=100000", "--monitor-interval=0.1"]
        command += [f"--local-addr={self._address(number)}"]
        if self.outside:
            command += ["--rdzv-conf=is_host=false"]
        elif self.place.net is not None:
            command += [f"--rdzv-conf=is_host={'true' if number == self._store_host else 'false'}"]
        command += self.place.command(self.place.folder / f"checkpoints-{self._starts}")[1:]
        log = self.place.folder / f"host-{number}.log"
        interface = "eth0" if self.place.net is not None else "lo"
        env = {**os.environ, "GLOO_SOCKET_IFNAME": interface, "BENCH_HOST": str(number), "OMP_NUM_THREADS": "1"}
        if self.outside:
            env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        with log.open("wb") as file:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=env, start_new_session=True
            )
        return _Host(number, log, process)

    def _plug_next(self) -> None:
        self._made += 1
        if self.place.net is not None:
            self.place.net.add(self._made)

    def _address(self, number: int) -> str:
        return "127.0.0.1" if self.place.net is None else self.place.net.address(number)

    def _inside(self, number: int) -> list[str]:
        return [] if self.place.net is None else ["nsenter", f"--net=/var/run/netns/{self.place.net.host(number)}"]

    def _end(self, host: _Host) -> None:
        """SIGKILL for everything on the host: its agent first, or it would start ranks again."""
        host.process.kill()
        host.process.wait()
        if self.place.net is not None:
            pids = self.place.net.pids(host.number)
        else:
            pids = [life.pid for life in self.trail.lives if life.host == str(host.number) and _is_ours(life.pid)]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _is_ours(pid: int) -> bool:
    try:
        return b"trainee.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _began(pid: int) -> float:
    """When a process was started, UTC seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    uptime_s = float(Path("/proc/uptime").read_text().split()[0])
    return time.time() - uptime_s + int(fields[19]) / os.sysconf("SC_CLK_TCK")
