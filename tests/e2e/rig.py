"""A whole installation with real processes, private to one test: server, box, agents, client.

``Rig.close`` takes everything down and tells what was wrong: a process that survived, a machine or a disk that was
left, a bill that differs from the provider's own meter.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from everstep.cli.local import box_of
from everstep.client import launcher
from everstep.client.api import Client
from everstep.client.bringing import bring
from everstep.client.home import Home, NoServer
from everstep.client.results import EventView, JobDetail
from everstep.client.taskfile import load_task
from everstep.client.wire import ServerTrouble, Unavailable
from everstep.model.errors import EverstepError
from everstep.providers.local import processes, rpc
from everstep.providers.local.machines import BOX_MARK, box_mark, sweep

T = TypeVar("T")
SCRIPTS = Path(__file__).parent / "scripts"
EXAMPLES = Path(__file__).parents[2] / "examples"
PATIENCE_S = 90.0
"""A bound against hanging, far beyond what is expected even of a busy computer."""
MONEY = 1e-6

#: Two zones with plenty of everything; boots at once.
PLENTY = """\
boot_s: 0
notice_s: 6
stop_grace_s: 3
billing: {granularity_s: 1, minimum_s: 60}
disk_usd_per_gib_h: 0.0001
machines:
  small: {cpus: 4, memory_gib: 8, prices: {on_demand: 3.6, spot: 1.2}}
zones:
  east-a: {region: east, spot: {capacity: 8}}
  east-b: {region: east, spot: {capacity: 8}}
"""


@dataclass(frozen=True)
class Line:
    """What a script did (see ``scripts/stepper.py``)."""

    t: float
    what: str
    attempt: int
    node: int
    pid: int
    step: int
    more: Mapping[str, Any]


class Rig:
    """One installation below ``folder``.

    Args:
        folder: empty; everything is below it.
        cloud: configuration of the box, YAML.
        config: ``config.yaml`` of the server.
    """

    def __init__(self, folder: Path, *, cloud: str = PLENTY, config: str = "") -> None:
        self.folder = folder
        self.home = Home(folder / "home")
        self.home.path.mkdir(mode=0o700, parents=True)
        self.box_home = box_of(self.home)
        self.cloud_file = folder / "cloud.yaml"
        self.cloud_file.write_text(cloud)
        if config:
            self.home.config_file.write_text(config)
        self.trail_file = folder / "trail.jsonl"
        self.client = Client(home=self.home, timeout_s=20.0)
        self.jobs: list[str] = []
        self.server: subprocess.Popen[bytes] | None = None
        self.restarts = 0
        self._supervised = False
        self._supervisor: threading.Thread | None = None
        self._env: dict[str, str] = {}

    # --- the server --------------------------------------------------------------------------------------------------

    def start(self, **env: str) -> None:
        """Starts the server and waits until it answers; ``env``: more environment, kept for restarts."""
        self._env.update(env)
        self._spawn()
        self.wait_for(lambda: launcher.status(self.home).healthy, "a healthy server")

    def _spawn(self) -> None:
        command = [sys.executable, "-m", "everstep.server", "--home", str(self.home.path), "--verbose"]
        command += ["--cloud", str(self.cloud_file)]
        with self.home.log_file.open("ab") as log:
            self.server = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, **self._env}
            )

    def kill_server(self) -> None:
        """SIGKILL, and it is gone when this returns."""
        assert self.server is not None
        self.server.kill()
        self.server.wait()
        self.client.close()

    def supervise(self) -> None:
        """From now on a server that dies is started again, as an init system would."""
        self._supervised = True
        self._supervisor = threading.Thread(target=self._keep_alive, daemon=True)
        self._supervisor.start()

    def _keep_alive(self) -> None:
        while self._supervised:
            if self.server is not None and self.server.poll() is not None:
                self.restarts += 1
                self._spawn()
            time.sleep(0.02)

    def _stop_supervising(self) -> None:
        self._supervised = False
        if self._supervisor is not None:
            self._supervisor.join()

    # --- jobs --------------------------------------------------------------------------------------------------------

    def submit(self, run: str, *, secrets: Mapping[str, str] | None = None, **keys: Any) -> str:
        """Submits a task; ``keys`` are those of the task file, ``run`` its script."""
        document: dict[str, Any] = {"name": "e2e", "resources": {}, **keys, "run": run}
        loaded = bring(self.client, load_task("e2e.yaml", text=json.dumps(document), secrets=secrets, cwd=self.folder))
        job = self.client.submit(loaded.task, secrets=loaded.secrets)
        self.jobs.append(job)
        return job

    def stepper(self, *, nodes: int = 1, options: str = "", **keys: Any) -> str:
        """Submits ``scripts/stepper.py``."""
        run = f"exec {shlex.quote(sys.executable)} -S {shlex.quote(str(SCRIPTS / 'stepper.py'))} {options}"
        envs = {"TRAIL": str(self.trail_file), **keys.pop("envs", {})}
        return self.submit(run, num_nodes=nodes, envs=envs, **{"stop_grace": "5s", **keys})

    def trainer(self, *, nodes: int = 1, options: str = "", **keys: Any) -> str:
        """Submits ``scripts/trainer.py`` with one rank per node; the digest of its weights goes to ``digest_file``."""
        run = f"exec {shlex.quote(sys.executable)} {shlex.quote(str(SCRIPTS / 'trainer.py'))} {options} "
        run += f"--out {shlex.quote(str(self.digest_file))}"
        keys = {"stop_grace": "5s", "checkpoint": {"every": "1s"}, "resources": {"ranks_per_node": 1}, **keys}
        return self.submit(run, num_nodes=nodes, envs={"TRAIL": str(self.trail_file)}, **keys)

    def undisturbed(self, *, nodes: int = 1, steps: int) -> str:
        """Digest of the weights after a run without everstep around it: plain processes, nothing goes wrong."""
        folder = self.folder / "undisturbed"
        folder.mkdir()
        command = [sys.executable, str(SCRIPTS / "trainer.py"), "--steps", str(steps), "--step-s", "0"]
        command += ["--out", str(folder / "digest.txt")]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        ranks = []
        for rank in range(nodes):
            env = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(nodes), "TRAIL": str(folder / "trail.jsonl")}
            env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
            env |= {"EVERSTEP_CHECKPOINT_DIR": str(folder / "checkpoints"), "EVERSTEP_CHECKPOINT_SHARED": "1"}
            ranks.append(subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL))
        try:
            codes = [rank.wait(PATIENCE_S) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
        # Now and then torch aborts a process that leaves its group ("terminate called without an active exception"),
        # after all of its work is done.
        assert set(codes) <= {0, -signal.SIGABRT}
        assert (folder / "trail.jsonl").read_text().count('"what": "ended"') == nodes
        return (folder / "digest.txt").read_text()

    @property
    def digest_file(self) -> Path:
        """Where ``trainer`` leaves the digest of its weights."""
        return self.folder / "digest.txt"

    def trail(self, what: str = "") -> list[Line]:
        """What the scripts did so far."""
        try:
            rows = [json.loads(text) for text in self.trail_file.read_text().splitlines()]
        except FileNotFoundError:
            return []
        keys = ("t", "what", "attempt", "node", "pid", "step")
        return [
            Line(*(row[key] for key in keys), more={k: v for k, v in row.items() if k not in keys})
            for row in rows
            if not what or row["what"] == what
        ]

    # --- looking -----------------------------------------------------------------------------------------------------

    def wait_for(self, look: Callable[[], T], what: str, *, timeout_s: float = PATIENCE_S) -> T:
        """What ``look`` gives once it is true. A server that is away is waited for. Fails with everything known."""
        deadline = time.monotonic() + timeout_s
        trouble = ""
        while time.monotonic() < deadline:
            try:
                if found := look():
                    return found
                trouble = ""
            except (NoServer, Unavailable, ServerTrouble) as error:
                trouble = f" ({error})"
                self.client.close()
            time.sleep(0.05)
        pytest.fail(f"no {what} within {timeout_s:.0f} s{trouble}\n{self.diagnosis()}", pytrace=False)

    def detail(self, job: str) -> JobDetail:
        """The job now; waits for a server that is away."""
        return self.wait_for(lambda: self.client.status(job), "answer of the server")

    def wait_phase(self, job: str, *phases: str) -> JobDetail:
        """The job once it is in one of the phases; one that ended otherwise fails at once."""

        def look() -> JobDetail | None:
            detail = self.client.status(job)
            if detail.phase in phases:
                return detail
            if detail.ended:
                pytest.fail(f"job is {detail.phase}: {detail.why}\n{self.diagnosis()}", pytrace=False)
            return None

        return self.wait_for(look, f"phase {' or '.join(phases)} of {job}")

    def wait_step(self, job: str, step: int, *, attempt: int = 1, node: int = 0) -> None:
        """Until the script did a step in an attempt not older than that."""
        self.wait_for(
            lambda: any(x.step >= step and x.attempt >= attempt and x.node == node for x in self.trail("step")),
            f"step {step} on node {node} in attempt {attempt} of {job}",
        )

    def events(self, job: str, *kinds: str) -> list[EventView]:
        """The job's journal, or those kinds of it."""
        return [e for e in self.client.events(job) if not kinds or e.kind in kinds]

    def members(self, job: str) -> tuple[str, ...]:
        """Instances of the newest attempt, by node rank."""
        return self.detail(job).attempts[-1].members

    def log(self, job: str) -> str:
        """Everything that the job's ranks and set-ups printed."""
        return "".join(part.text for part in self.client.logs(job))

    # --- the box -----------------------------------------------------------------------------------------------------

    def box(self, method: str, /, **params: Any) -> Any:
        """One call of the box."""
        return asyncio.run(rpc.call(self.box_home, method, params))

    def box_comes_back(self) -> None:
        """Until the box serves again: whoever calls it next starts it, the server does so every few seconds."""

        def serves() -> bool:
            with contextlib.suppress(OSError, EverstepError):
                return bool(self.box("status"))
            return False

        self.wait_for(serves, "box that serves")

    def box_pid(self) -> int:
        """Process of the box."""
        return int(self.box("status")["pid"])

    def pids(self, instance: str) -> list[int]:
        """Processes of a machine, its init not among them."""
        needle = f"EVERSTEP_BOX_INSTANCE={box_mark(self.box_home)}/{instance}"
        return sorted(key.pid for key in processes.marked(needle))

    def agent_pid(self, instance: str) -> int:
        """The agent of a machine."""
        status = json.loads((self.box_home / "instances" / instance / "status.json").read_text())
        return int(status["agent"])

    @property
    def deployment(self) -> str:
        """UUID of the installation."""
        return self.home.deployment_file.read_text().strip()

    def meter(self) -> list[dict[str, Any]]:
        """What the box charges."""
        return list(self.box("meter", deployment=self.deployment))

    def alive(self) -> list[dict[str, Any]]:
        """Machines and disks that cost."""
        return [r for r in self.box("resources", deployment=self.deployment) if r["alive"]]

    # --- judging -----------------------------------------------------------------------------------------------------

    def check_settled(self, *, volumes: bool = True) -> None:
        """Every job has ended: no machine and no disk is left, and the bills are what the meter says, line by line."""

        def gone() -> bool:
            return not [r for r in self.alive() if volumes or r["kind"] != "volume"]

        self.wait_for(gone, "end of every machine and disk")

        def booked() -> bool:
            details = [self.client.status(job) for job in self.jobs]
            machines = all(m.ended_at is not None or m.phase == "refused" for d in details for m in d.machines)
            return machines and all(v.deleted_at is not None or not volumes for d in details for v in d.volumes)

        self.wait_for(booked, "journalled end of every machine and disk")
        self.check_bills()

    def check_bills(self) -> None:
        """Ledger and meter: the same resources, times and charges."""
        ledger = {line.resource: line for job in self.jobs for line in self.client.cost(job).lines}
        meter = {line["resource"]: line for line in self.meter()}
        assert set(ledger) == set(meter), "the bill and the meter name different machines and disks"
        for resource, line in ledger.items():
            charge = meter[resource]
            assert line.kind == charge["kind"], resource
            assert line.start == pytest.approx(charge["start"], abs=1e-3), resource
            assert line.end == pytest.approx(charge["end"], abs=1e-3), resource
            assert line.reclaimed == charge["reclaimed"], resource
            assert line.cost_usd == pytest.approx(charge["cost_usd"], abs=MONEY), resource
        total = sum(line["cost_usd"] for line in meter.values())
        assert self.client.costs().total_usd == pytest.approx(total, abs=MONEY)

    def check_tokens(self) -> None:
        """One machine per launch token, and every machine of the meter was asked for in the journal."""
        asked = [e.body["token"] for job in self.jobs for e in self.events(job, "LaunchIntended")]
        assert len(asked) == len(set(asked)), "a token was used for two launches"
        got = [e.body for job in self.jobs for e in self.events(job, "LaunchSucceeded")]
        by_token: dict[str, set[str]] = {}
        for body in got:
            by_token.setdefault(body["token"], set()).add(body["instance"])
        assert all(len(instances) == 1 for instances in by_token.values()), by_token
        machines = {line["resource"] for line in self.meter() if line["kind"] == "compute"}
        assert machines == {instance for instances in by_token.values() for instance in instances}

    def check_ranks(self) -> None:
        """No attempt's ranks ran twice, and no two attempts ran at the same time on the same node."""
        began = [(line.attempt, line.node) for line in self.trail("began")]
        assert len(began) == len(set(began)), f"ranks of an attempt were started twice: {sorted(began)}"

    def check_exclusive(self) -> None:
        """Once ranks of an attempt have begun, no rank of an older one does a step on the same node."""
        newest: dict[int, int] = {}
        for line in self.trail():
            newest[line.node] = max(newest.get(line.node, 0), line.attempt)
            assert line.attempt == newest[line.node], f"{line} after attempt {newest[line.node]} had begun"

    # --- when something is wrong -------------------------------------------------------------------------------------

    def diagnosis(self) -> str:
        """Everything there is to know, newest last."""
        parts = []
        for job in self.jobs:
            with contextlib.suppress(Exception):
                detail = self.client.status(job)
                parts.append(f"--- job {job}: {detail.phase}, wait {detail.wait!r}, why {detail.why!r}")
                parts += [f"  machine {m.instance} {m.phase} {m.zone} {m.end} {m.failure}" for m in detail.machines]
                parts += [f"  attempt {a.attempt} {a.phase} {a.cause} {a.evidence}" for a in detail.attempts]
            with contextlib.suppress(Exception):
                parts += [f"  {e.at:.2f} {e.kind} {str(e.body)[:300]}" for e in self.events(job) if e.kind != "Decided"]
            with contextlib.suppress(Exception):
                for d in self.client.why(job, limit=5):
                    parts.append(f"  decision {d.at:.2f} {d.effects} {d.reasons} wait {d.wait!r} until {d.wake_at}")
        with contextlib.suppress(Exception):
            parts += [f"--- the box still has: {r['kind']} {r['id']} {r['token']}" for r in self.alive()]
        parts += [f"--- trail: {line.what} {line.attempt}.{line.node} step {line.step}" for line in self.trail()[-8:]]
        logs = [self.home.log_file, self.box_home / "daemon.log", *sorted((self.box_home / "consoles").glob("*.log"))]
        for path in logs:
            with contextlib.suppress(OSError):
                lines = path.read_text(errors="replace").splitlines()[-40:]
                parts.append(f"--- {path.name}\n" + "\n".join(f"  {text[:300]}" for text in lines))
        return "\n".join(parts)

    # --- the end -----------------------------------------------------------------------------------------------------

    def close(self) -> list[str]:
        """Ends everything; what was still there although it should not, one line each."""
        self._stop_supervising()
        if self.server is not None and self.server.poll() is None:
            self.server.send_signal(signal.SIGTERM)
            try:
                self.server.wait(20)
            except subprocess.TimeoutExpired:
                self.server.kill()
                self.server.wait()
        self.client.close()
        with contextlib.suppress(OSError, EverstepError):
            self.box("stop")
            asyncio.run(rpc.gone(self.box_home))
        strays = processes.marked(f"{BOX_MARK}={box_mark(self.box_home)}")
        told = [f"process {key.pid} of a machine outlived its box: {_command(key.pid)}" for key in strays]
        sweep(self.box_home)
        return told


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return "?"


R = TypeVar("R", bound=Rig)


@contextlib.contextmanager
def taken_down(rig: R) -> Iterator[R]:
    """The rig, which is always taken down; what it leaves behind fails the test."""
    try:
        yield rig
    finally:
        told = rig.close()
    assert not told, "\n".join(told)
