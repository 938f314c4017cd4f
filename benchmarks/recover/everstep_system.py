"""everstep on a cloud in a box: server, agents and hosts are real processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.recover.host import number_of
from benchmarks.recover.marks import Recovery, Trail
from benchmarks.recover.system import Fault, Place
from everstep.agent.bundle import build_pyz
from everstep.cli.local import box_of
from everstep.client import launcher
from everstep.client.api import Client
from everstep.client.home import Home
from everstep.client.results import EventView, JobDetail
from everstep.client.taskfile import load_task
from everstep.model.errors import EverstepError
from everstep.providers.local import rpc
from everstep.providers.local.machines import sweep

API_TELLS_S = 1.0
"""So long after a loss the cloud's list of machines shows it."""
_NETWORK_S = 1.0
_CLOUD = """\
boot_s: {boot_s}
notice_s: 6
stop_grace_s: 2
billing: {{granularity_s: 1, minimum_s: 60}}
disk_usd_per_gib_h: 0.0001
machines:
  small: {{cpus: 4, memory_gib: 8, prices: {{on_demand: 3.6, spot: 1.2}}}}
zones:
  east-a: {{region: east}}
"""
_ENDS = ("RanksEnded", "InstanceEnded", "InstanceSilent", "InstanceJoined")


class Everstep:
    """See ``system.System``."""

    name = "everstep"

    def __init__(self, place: Place) -> None:
        self._place = place
        self.trail = Trail(place.marks)
        self._home = Home(place.folder / "home")
        self._client = Client(home=self._home, timeout_s=20.0)
        self._server: subprocess.Popen[bytes] | None = None
        self._job = ""
        self._fault = Fault.WORKER
        self._seen = 0

    def start(self) -> None:
        self._home.path.mkdir(mode=0o700, parents=True)
        cloud = self._place.folder / "cloud.yaml"
        boot_s = self._place.boot_s
        if self._place.net is not None:
            # The network is made while the machine boots.
            boot_s -= _NETWORK_S
            agent = [sys.executable, str(Path(__file__).with_name("host.py")), self._place.net.tag, str(_NETWORK_S)]
            agent += [sys.executable, str(build_pyz(self._home.path / "agent.pyz"))]
            self._home.config_file.write_text(json.dumps({"providers": {"local": {"agent_argv": agent}}}))
        cloud.write_text(_CLOUD.format(boot_s=boot_s))
        command = [sys.executable, "-m", "everstep.server", "--home", str(self._home.path), "--cloud", str(cloud)]
        with self._home.log_file.open("ab") as log:
            self._server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + 60
        while not launcher.status(self._home).healthy:
            if time.monotonic() > deadline:
                raise RuntimeError(f"no healthy server: {self._home.log_file.read_text()[-2000:]}")
            time.sleep(0.1)
        document = {
            "name": "recovery",
            "num_nodes": 2,
            "resources": {"ranks_per_node": 1, "spot": False},
            "recovery": {"max_restarts": 100_000},
            "run": shlex.join(self._place.command(self._place.folder / "checkpoints")),
        }
        loaded = load_task("recovery.yaml", text=json.dumps(document), secrets=None, cwd=self._place.folder)
        self._job = self._client.submit(loaded.task, secrets={})

    def settled(self) -> bool:
        detail = self._detail()
        if detail.ended:
            raise RuntimeError(f"the job is {detail.phase}: {detail.why}")
        if detail.phase != "running" or len(self.members(detail)) < 2:
            return False
        held = {m.instance: m for m in detail.machines}
        return all(held[name].phase == "ready" and not held[name].silent for name in self.members(detail))

    def members(self, detail: JobDetail | None = None) -> tuple[str, ...]:
        """Instances of the newest attempt, by node rank."""
        attempts = (detail or self._detail()).attempts
        return attempts[-1].members if attempts else ()

    def attempts(self) -> int:
        """How many attempts there were."""
        return self._detail().attempt

    def strike(self, fault: Fault, turn: int) -> tuple[float, float]:
        self._fault = fault
        self._seen = max((event.version for event in self._client.events(self._job)), default=0)
        if fault is Fault.WORKER:
            pid = self.trail.current()[turn % 2].pid
            os.kill(pid, signal.SIGKILL)
            return time.time(), 0.0
        instance = self.members()[0 if fault is Fault.MASTER else 1]
        if self._place.net is None:
            self.box("kill", instance=instance, detect_s=API_TELLS_S, silent=False)
            return time.time(), self._place.boot_s
        number = self._number(instance)
        self._place.net.unplug(number)
        at = time.time()
        self.box("kill", instance=instance, detect_s=API_TELLS_S, silent=True)
        return at, self._place.boot_s

    def tick(self) -> str:
        return ""

    def parts(self, fault_at: float, recovery: Recovery) -> dict[str, float]:
        events = [e for e in self._client.events(self._job, after=self._seen) if e.at >= fault_at]
        parts, at = {}, fault_at

        def until(name: str, then: float) -> None:
            nonlocal at
            parts[name] = parts.get(name, 0.0) + max(0.0, then - at)
            at = max(at, then)

        until("detect", _first(events, *_ENDS).at)
        if self._fault is not Fault.WORKER:
            launched = _first(events, "LaunchSucceeded")
            until("decide", launched.body["started_at"])
            until("boot", launched.body["started_at"] + self._place.boot_s)
            instance = launched.body["instance"]
            until("restart", _first(events, "InstanceJoined", instance=instance).at)
            until("import", _first(events, "InstanceReady", instance=instance).at)  # what its standby imports
        started = [e for e in events if e.kind == "RanksStarted"]
        attempt = max(e.body["attempt"] for e in started if e.body["spawned_at"] <= recovery.stage("imported"))
        until("restart", max(e.body["spawned_at"] for e in started if e.body["attempt"] == attempt))
        until("import", recovery.stage("imported"))
        until("rendezvous", recovery.stage("rendezvous"))
        until("restore", recovery.stage("restored"))
        until("first new step", recovery.at)
        return parts

    def stop(self) -> None:
        self._client.close()
        if self._server is not None:
            self._server.send_signal(signal.SIGTERM)
            try:
                self._server.wait(20)
            except subprocess.TimeoutExpired:
                self._server.kill()
                self._server.wait()
        with contextlib.suppress(OSError, EverstepError):
            self.box("stop")
            asyncio.run(rpc.gone(box_of(self._home)))
        sweep(box_of(self._home))

    # --- for the test of false losses --------------------------------------------------------------------------------

    def box(self, method: str, **params: Any) -> Any:
        """One call of the box."""
        return asyncio.run(rpc.call(box_of(self._home), method, params))

    def agent_pid(self, instance: str) -> int:
        """The agent of a machine."""
        status = json.loads((box_of(self._home) / "instances" / instance / "status.json").read_text())
        return int(status["agent"])

    def _number(self, instance: str) -> int:
        rows = self.box("status")["instances"]
        return number_of(next(row["address"] for row in rows if row["id"] == instance))

    def _detail(self) -> JobDetail:
        return self._client.status(self._job)


def _first(events: list[EventView], *kinds: str, **body: str) -> EventView:
    return next(e for e in events if e.kind in kinds and all(e.body[key] == value for key, value in body.items()))
