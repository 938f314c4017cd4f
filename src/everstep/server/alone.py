"""A plan where no server runs: its parts are put together for one look at the market, and leave nothing behind.

The journal is not read, so what earlier jobs taught of pools is not weighed.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from everstep.client.home import Home
from everstep.client.results import PlanView
from everstep.control.controller import Controller
from everstep.model.codec import from_dict
from everstep.model.ids import DeploymentId
from everstep.model.task import Task
from everstep.ports import Provider
from everstep.providers.local.provider import LocalProvider
from everstep.server import daemon, installation, listening
from everstep.server.options import Options, parse
from everstep.server.planning import planned
from everstep.server.policies import selectors
from everstep.server.reach import Reach
from everstep.server.secrets import SecretFiles
from everstep.store.registry import open_store


def plan_alone(home: Home, task: Task) -> PlanView:
    """What a server of ``home`` would do with ``task`` now.

    Raises:
        BadInput: the task would be refused, or ``config.yaml`` is wrong.
    """
    options = daemon.as_last_time(parse(["--home", str(home.path)]))
    with tempfile.TemporaryDirectory(prefix="everstep-plan-") as folder, contextlib.ExitStack() as stack:
        if home.path.is_dir():
            stack.enter_context(contextlib.chdir(home.path))  # as a server does: options may name files there
        return from_dict(PlanView, asyncio.run(_plan(options, task, Path(folder))))


async def _plan(options: Options, task: Task, folder: Path) -> dict[str, Any]:
    async with _providers(options, folder) as found:
        last = installation.last_address(options.home)
        port = options.port or (last.port if last is not None else 0)
        here = listening.url_of(options.host, port, tls=options.own_tls or options.tls is not None)
        address = options.advertise or here.removesuffix(":0")
        store = open_store("memory://")
        controller = Controller(
            store=store,
            providers=found,
            deployment=DeploymentId("plan"),
            key=b"",
            server_url=lambda: address,
            vault=SecretFiles(folder / "secrets"),
            selectors=selectors(),
        )
        try:
            return await planned(task, controller, Reach.of(found, address))
        finally:
            await store.close()


@contextlib.asynccontextmanager
async def _providers(options: Options, folder: Path) -> AsyncIterator[Mapping[str, Provider]]:
    """As a server has them. A cloud in a box that nobody had, or that did not run, is gone again afterwards."""
    given = dict(options.providers)
    if "local" in given:
        box = options.home.path / "local"
        kept = {"home": box} if box.is_dir() else {"home": folder / "local"}
        # No machine is started, so no agent is needed.
        given["local"] = {"agent_argv": [], **kept, **given["local"]}
    found = daemon.make_providers(replace(options, providers=given))
    idle = [p for p in found.values() if isinstance(p, LocalProvider) and not p.runs()]
    try:
        await daemon.check_configurations(found)
        yield found
    finally:
        for provider in idle:
            await provider.leave()
