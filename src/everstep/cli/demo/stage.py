"""A private installation on a cloud in a box of its own: nothing of the user's is touched, nothing stays."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from everstep.cli.demo import evidence, scenario
from everstep.cli.demo.interrupts import deferred
from everstep.cli.local import box_of
from everstep.client import launcher
from everstep.client.api import Client
from everstep.client.home import Home
from everstep.model.errors import EverstepError

_RELEASE_S = 20.0


class Stage:
    """The installation: ``home``, the box's configuration, the server and the box.

    Args:
        folder: empty folder for all of it; ``close`` ends whatever runs there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = Home(folder / "home")
        self.box_file = folder / "cloud" / evidence.BOX
        self.box_file.parent.mkdir(parents=True)
        self.box_file.write_text(scenario.BOX_YAML)
        for name, text in scenario.traces().items():
            (self.box_file.parent / name).write_text(text)

    def workdir(self, script: Path, task: str) -> Path:
        """The folder that is submitted: script, data, task file."""
        folder = self.folder / "work"
        (folder / scenario.DATA).parent.mkdir(parents=True)
        for name in (scenario.SCRIPT, scenario.DATA):
            shutil.copyfile(script / name, folder / name)
        (folder / evidence.TASK).write_text(task)
        return folder

    # --- the server --------------------------------------------------------------------------------------------------

    def start_server(self) -> None:
        """Starts the server in the background, unless it runs."""
        with deferred():
            launcher.start_background(self.home, arguments=("--cloud", str(self.box_file)))

    def kill_server(self) -> None:
        """SIGKILL: no last words."""
        info = self.home.server()
        if info is None:
            raise EverstepError("the demo's server is not there to be killed")
        os.kill(info.pid, signal.SIGKILL)

    def client(self) -> Client:
        """A client of the demo's own server."""
        return Client(home=self.home, timeout_s=20.0)

    # --- the box -----------------------------------------------------------------------------------------------------

    def box(self, method: str, params: Mapping[str, Any] | None = None) -> Any:
        """One call of the box; raises EverstepError."""
        from everstep.providers.local import rpc

        try:
            return asyncio.run(rpc.call(box_of(self.home), method, dict(params or {})))
        except (ConnectionRefusedError, FileNotFoundError):
            raise EverstepError("the demo's cloud in a box does not run") from None

    def meter(self) -> list[dict[str, Any]]:
        """What the box charges us."""
        return list(self.box("meter", {"deployment": self.deployment}))

    @property
    def deployment(self) -> str:
        """UUID of this installation."""
        return self.home.deployment_file.read_text().strip()

    def left_over(self) -> list[str]:
        """What is still leased after the job's end, after giving it a while to go; one line each."""
        deadline = time.monotonic() + _RELEASE_S
        while True:
            found = [r for r in self.box("resources", {"deployment": self.deployment}) if r["alive"]]
            if not found or time.monotonic() > deadline:
                return [f"{r['kind']} {r['id']} is still there" for r in found]
            time.sleep(0.2)

    # --- the end -----------------------------------------------------------------------------------------------------

    def close(self) -> list[str]:
        """Ends everything, whatever state it is in; what had to be killed because it would not go, one line each."""
        from everstep.providers.local.machines import sweep

        left = []
        try:
            launcher.stop(self.home, timeout_s=10.0)
        except EverstepError as error:
            left.append(str(error))
            info = self.home.server()
            if info is not None and launcher.is_running(self.home):
                os.kill(info.pid, signal.SIGKILL)
        with contextlib.suppress(EverstepError):
            self.box("stop")
        strays = sweep(box_of(self.home))
        if strays:
            left.append(f"{strays} processes of the box had to be killed")
        return left
