"""The server under test: the real command, in a folder and on a core of its own, its provider plugged in."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

_REPOSITORY = Path(__file__).resolve().parents[2]
_START_S = 120.0


class ServerProcess:
    """``python -m everstep.server`` for one folder; may be started again and again.

    Args:
        folder: where it lives; made if need be.
        core: CPU that it is kept on; None = any.
    """

    def __init__(self, folder: Path, *, core: int | None) -> None:
        self.home = folder / "home"
        # Not in the folder: names of sockets may have 107 bytes, and folders of tests are longer than that.
        self.socket = Path(tempfile.gettempdir()) / f"crowd-{secrets.token_hex(6)}.sock"
        self.port = _free_port()
        self._core = core
        self._process: subprocess.Popen[bytes] | None = None
        self._log = folder / "server.log"
        self._plugins = folder / "plugins"
        self.home.mkdir(parents=True, exist_ok=True)
        config = {"port": self.port, "providers": {"crowd": {"path": str(self.socket)}}}
        (self.home / "config.yaml").write_text(json.dumps(config))
        _plug_in(self._plugins)

    @property
    def pid(self) -> int:
        """Its process."""
        assert self._process is not None
        return self._process.pid

    @property
    def token(self) -> str:
        """The user's token; there once it was started."""
        return (self.home / "token").read_text().strip()

    def spawn(self) -> float:
        """Starts the process; gives the monotonic second at which it did."""
        paths = [str(self._plugins), str(_REPOSITORY)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "EVERSTEP_HOME": str(self.home)}
        began = time.monotonic()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "everstep.server", "--home", str(self.home)],
                env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                preexec_fn=None if self._core is None else lambda: os.sched_setaffinity(0, {self._core}),
            )  # fmt: skip
        return began

    def answers(self) -> bool:
        """Whether it answers a user's request now."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/api/v1/health", headers={"Authorization": f"Bearer {self.token}"})
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    async def start(self) -> float:
        """Starts it; seconds until it answered a request, counted from the start of the process."""
        began = self.spawn()
        while time.monotonic() - began < _START_S:
            if await asyncio.to_thread(self.answers):
                return time.monotonic() - began
            if self._process is not None and self._process.poll() is not None:
                break
            await asyncio.sleep(0.01)
        raise RuntimeError(f"the server did not start:\n{self.log_tail()}")

    def kill(self) -> None:
        """kill -9."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Asks it to stop, and waits."""
        self._end(signal.SIGTERM)

    def _end(self, number: int) -> None:
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    def log_tail(self) -> str:
        """The end of what it had to say."""
        return self._log.read_text(errors="replace")[-3000:] if self._log.exists() else ""

    def usage(self) -> tuple[float, float]:
        """(CPU seconds so far, resident MiB)."""
        process = psutil.Process(self.pid)
        times = process.cpu_times()
        return times.user + times.system, process.memory_info().rss / 2**20


def _plug_in(folder: Path) -> None:
    """What pip would leave behind for a distribution that brings a provider."""
    info = folder / "everstep_crowd-0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: everstep-crowd\nVersion: 0\n")
    (info / "entry_points.txt").write_text("[everstep.providers]\ncrowd = benchmarks.crowd.cloud:Cloud\n")


def _free_port() -> int:
    from everstep.server.listening import bind_anywhere

    with contextlib.closing(bind_anywhere("127.0.0.1")) as found:
        assert isinstance(found, socket.socket)
        port: int = found.getsockname()[1]
        return port
