"""Real agents (as their ``.pyz``, on Python 3.9 where there is one) against the strict in-memory server."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from everstep.agent import proctree
from everstep.agent.bundle import build_pyz
from everstep.model import handshake as hs
from everstep.testing.agent_server import AgentServer, Member

MARK = "EVERSTEP_TEST_TREE"


def python39() -> str:
    """The oldest Python the agent must run on, else this one."""
    candidates = [*Path.home().glob(".pyenv/versions/3.9.*/bin/python3.9"), shutil.which("python3.9") or ""]
    for candidate in candidates:
        if candidate and subprocess.run([candidate, "-c", ""], capture_output=True, check=False).returncode == 0:
            return str(candidate)
    return sys.executable


@pytest.fixture(scope="session")
def pyz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_pyz(tmp_path_factory.mktemp("bundle") / "agent.pyz")


@pytest.fixture(scope="session")
def old_python() -> str:
    return python39()


@pytest.fixture
def server() -> Iterator[AgentServer]:
    one = AgentServer()
    yield one
    one.close()
    assert one.violations == []


@dataclass
class RunningAgent:
    """An agent process; ``member`` is it as the server sees it."""

    process: subprocess.Popen[bytes]
    member: Member
    root: Path
    mark: str
    output: Path

    def descendants(self) -> list[proctree.Proc]:
        """All living processes that this agent started, keepers and orphans included."""
        entry = f"{MARK}={self.mark}".encode()
        return [
            one for one in proctree.with_environment(entry) if one.pid != self.process.pid and one.state not in "ZX"
        ]

    def kill9(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)

    def stderr(self) -> str:
        return self.output.read_text()


def until(condition: Callable[[], Any], what: str, timeout_s: float = 20.0) -> Any:
    """The first true value of ``condition``; fails with ``what`` if there is none."""
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError(f"waited in vain for {what}")


class Agents:
    """Starts agents of one server and ends all that they started, also when the test failed."""

    def __init__(self, server: AgentServer, pyz: Path, python: str, folder: Path) -> None:
        self.server = server
        self._pyz = pyz
        self._python = python
        self._folder = folder
        self._started: list[RunningAgent] = []

    def start(
        self, instance: str = "i-1", *, again: RunningAgent | None = None, first: str = "", **boot: str
    ) -> RunningAgent:
        """A new agent, or (``again``) a restarted one on the same root.

        ``first``: Python that its process runs before it begins, to make a wait of minutes a short one.
        """
        member = again.member if again else self.server.admit(instance)
        root = self._folder / instance
        root.mkdir(exist_ok=True)
        output = self._folder / f"{instance}.{len(self._started)}.stderr"
        mark = f"{self._folder}/{instance}"
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(self._folder),
            "LANG": "C.UTF-8",
            MARK: mark,
            hs.BOOT_SERVER: self.server.url,
            hs.BOOT_TOKEN: member.token,
            hs.BOOT_ROOT: str(root),
            hs.BOOT_INSTANCE: instance,
            hs.BOOT_ADDRESS: "127.0.0.1",
            **boot,
        }
        with open(output, "wb") as stderr:
            process = subprocess.Popen(self._command(first), env=env, stderr=stderr, cwd=self._folder)
        agent = RunningAgent(process, member, root, mark, output)
        self._started.append(agent)
        return agent

    def _command(self, first: str) -> list[str]:
        if not first:
            return [self._python, str(self._pyz)]
        start = "from everstep.agent.__main__ import main; sys.exit(main([]))"
        return [self._python, "-c", f"import sys; sys.path.insert(0, {str(self._pyz)!r}); {first}; {start}"]

    def close(self) -> None:
        left = []
        for agent in self._started:
            if agent.process.poll() is None:
                agent.process.kill()
                agent.process.wait(10)

            def find(agent: RunningAgent = agent) -> list[proctree.Proc]:
                return agent.descendants()

            left += proctree.kill_all(find, reap=lambda: None, timeout_s=10.0)
        assert left == []


@pytest.fixture
def agents(server: AgentServer, pyz: Path, old_python: str, tmp_path: Path) -> Iterator[Agents]:
    one = Agents(server, pyz, old_python, tmp_path)
    yield one
    one.close()


def spec(run: str = "", **more: Any) -> dict[str, Any]:
    """A spec with one node and no set-up."""
    return {hs.SPEC_JOB: "j-1", hs.SPEC_RUN: run, hs.SPEC_NUM_NODES: 1, hs.SPEC_STOP_GRACE_S: 5.0, **more}


class Driver:
    """Gives the usual orders to a gang of agents, as a controller would."""

    def __init__(self, server: AgentServer, *gang: RunningAgent) -> None:
        self.server = server
        self.gang = gang

    def order(self, phase: str, attempt: int | None, what: dict[str, Any], **more: Any) -> None:
        peers = []
        for rank, agent in enumerate(self.gang):
            if agent.member.joined is not None:
                port = agent.member.joined[hs.JOIN_PROBE_PORT]
                peers.append({"rank": rank, "address": "127.0.0.1", "probe_port": port})
        for rank, agent in enumerate(self.gang):
            document = {
                hs.ORDERS_PHASE: phase,
                hs.ORDERS_ATTEMPT: attempt,
                hs.ORDERS_SPEC: what,
                hs.ORDERS_NODE_RANK: rank,
                hs.ORDERS_PEERS: peers,
                hs.ORDERS_MASTER: self._master(),
                **more,
            }
            self.server.order(agent.member, **document)

    def _master(self) -> dict[str, Any] | None:
        ready = self.gang[0].member.of_kind(hs.MSG_READY)
        return {"address": "127.0.0.1", "port": ready[-1]["port"]} if ready else None

    def prepare(self, what: dict[str, Any], attempt: int = 1) -> None:
        for agent in self.gang:
            self.server.wait(lambda agent=agent: agent.member.joined, what="join")
        self.order(hs.PHASE_PREPARE, attempt, what)
        for agent in self.gang:
            self.server.wait_message(agent.member, hs.MSG_READY)

    def run(self, what: dict[str, Any], attempt: int = 1, **more: Any) -> None:
        self.prepare(what, attempt)
        self.order(hs.PHASE_RUN, attempt, what, **more)

    def ended(self, rank: int = 0, attempt: int = 1) -> dict[str, Any]:
        member = self.gang[rank].member
        return self.server.wait_message(member, hs.MSG_ENDED, where=lambda message: message["attempt"] == attempt)

    def started(self, rank: int = 0, attempt: int = 1) -> dict[str, Any]:
        member = self.gang[rank].member
        return self.server.wait_message(member, hs.MSG_STARTED, where=lambda message: message["attempt"] == attempt)

    def log(self, text: str, rank: int = 0, attempt: int = 1, name: str | None = None) -> None:
        """Wait until a log has ``text``."""
        member = self.gang[rank].member
        label = str(rank) if name is None else name
        self.server.wait(lambda: text in member.log_text(attempt, label), what=f"{text!r} in log {label}")
