"""The client side of a cloud in a box: a Provider that starts its own cloud when none runs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from everstep.model.causes import NoticeKind
from everstep.model.codec import from_dict, to_dict
from everstep.model.errors import Unreachable
from everstep.model.ids import DeploymentId, InstanceId, VolumeId
from everstep.model.offers import Offer
from everstep.ports import (
    HistoryPoint,
    HistoryQuery,
    Launched,
    LaunchRequest,
    Notice,
    OfferQuery,
    ProviderResource,
    VolumeSpec,
)
from everstep.providers.local import rpc
from everstep.providers.local.config import DEFAULT_CONFIG

_START_TIMEOUT_S = 30.0


class LocalProvider:
    """A cloud in a box: instances are process groups on this computer, the market follows traces.

    The box runs in a daemon of its own, started by the first call that finds none; it outlives this object and this
    process, and ends with ``stop``. The price of a spot machine is fixed at its launch; offers show the price of the
    moment. Implements ``Provider``, ``Metered`` and ``SharedFolder``; faults on command are methods too.

    Args:
        home: folder of the box: one box per folder.
        config_path: what the box offers (``config.py`` lists the keys); None = what it was last started with, or this
            computer as one static machine. A box that runs with another one is started anew, unless it has machines.
        agent_argv: command of the agent, run with the ``BOOT_*`` environment in the machine's own folder; empty = as
        the
            configuration says, or as last time.
        name: name of the provider in offers and pools.
        shared: whether all machines see one shared folder, as on a cluster with a file server; if not, every slot has
            a disk of its own, as on most clouds.
    """

    on_this_host = True
    """See ``OnThisHost``: its machines are process groups of this computer."""

    def __init__(
        self,
        home: str | Path,
        config_path: str | Path | None = None,
        *,
        agent_argv: Sequence[str] = (),
        name: str = "local",
        shared: bool = True,
    ) -> None:
        self.name = name
        self._shared = shared
        self.home = Path(home).resolve()
        self._config = None if config_path is None else Path(config_path).resolve()
        self._agent_argv = list(agent_argv)
        self._greeted = False

    @staticmethod
    def default_config() -> str:
        """The embedded configuration, YAML: this computer as one static machine."""
        return DEFAULT_CONFIG

    # --- Provider ----------------------------------------------------------------------------------------------------

    async def offers(self, query: OfferQuery) -> Sequence[Offer]:
        """See ``Provider.offers``; pools that are sold out are listed with ``available=0``."""
        return [from_dict(Offer, o) for o in await self._call("offers", query=to_dict(query))]

    async def launch(
        self, requests: Sequence[LaunchRequest], *, all_or_nothing: bool
    ) -> Sequence[Launched | Exception]:
        """See ``Provider.launch``. A token that comes again with other parameters is a BadRequest, as on EC2."""
        wanted = [_request_dict(r) for r in requests]
        answers = await self._call("launch", requests=wanted, all_or_nothing=all_or_nothing)
        return [rpc.decode_error(a["error"]) if "error" in a else from_dict(Launched, a["ok"]) for a in answers]

    async def resources(self, deployment: DeploymentId) -> Sequence[ProviderResource]:
        """See ``Provider.resources``; what ended is listed for two hours."""
        return [from_dict(ProviderResource, r) for r in await self._call("resources", deployment=deployment)]

    async def terminate(self, instances: Sequence[InstanceId]) -> None:
        """See ``Provider.terminate``: SIGTERM for the agent, a short grace, then everything is killed."""
        await self._call("terminate", instances=list(instances))

    async def ensure_volume(self, spec: VolumeSpec) -> VolumeId:
        """See ``Provider.ensure_volume``; names are per deployment and zone. Mounted as ``<BOOT_ROOT>/volume``."""
        return VolumeId(await self._call("ensure_volume", spec=to_dict(spec)))

    async def delete_volume(self, volume: VolumeId) -> None:
        """See ``Provider.delete_volume``; BadRequest while a machine has it."""
        await self._call("delete_volume", volume=volume)

    async def notices(self, deployment: DeploymentId) -> Sequence[Notice]:
        """See ``Provider.notices``."""
        return [from_dict(Notice, n) for n in await self._call("notices", deployment=deployment)]

    async def history(self, query: HistoryQuery) -> Sequence[HistoryPoint]:
        """See ``Provider.history``: per pool one point at the beginning and one per change."""
        return [from_dict(HistoryPoint, p) for p in await self._call("history", query=to_dict(query))]

    # --- Metered, SharedFolder ---------------------------------------------------------------------------------------

    async def meter(self, deployment: DeploymentId) -> Sequence[Mapping[str, Any]]:
        """See ``Metered.meter``. A machine's own disk is part of its price; volumes are charged by the GiB-hour."""
        charges: list[Mapping[str, Any]] = await self._call("meter", deployment=deployment)
        return charges

    def shared_folder(self, zone: str) -> str | None:
        """One folder for every zone: it is all one computer. None if the box was told to share nothing."""
        if not self._shared:
            return None
        folder = self.home / "shared"
        folder.mkdir(parents=True, exist_ok=True)
        return str(folder)

    # --- the box -----------------------------------------------------------------------------------------------------

    async def status(self) -> dict[str, Any]:
        """The daemon's pid and metadata endpoint, market time, and every instance with its processes and places."""
        status: dict[str, Any] = await self._call("status")
        return status

    def runs(self) -> bool:
        """Whether the box's daemon serves at this moment."""
        return self.home.is_dir() and rpc.serves(self.home)

    async def leave(self) -> None:
        """Ends the daemon alone: machines live on, and the next call starts it again. None there is no error."""
        with contextlib.suppress(ConnectionRefusedError, FileNotFoundError):
            await rpc.call(self.home, "leave", {})
            await rpc.gone(self.home)
        self._greeted = False

    async def stop(self) -> None:
        """Ends every machine, then the daemon; volumes stay. A box that does not run is no error."""
        try:
            await rpc.call(self.home, "stop", {})
            await rpc.gone(self.home)
        except (ConnectionRefusedError, FileNotFoundError):
            return
        finally:
            self._greeted = False

    # --- faults on command -------------------------------------------------------------------------------------------

    async def preempt(self, instance: str, *, notice: bool = True, notice_s: float | None = None) -> None:
        """The vendor takes a machine back: with the usual warning, one of ``notice_s`` seconds, or none."""
        await self._call("preempt", instance=instance, notice=notice, notice_s=notice_s)

    async def warn(self, instance: str, kind: NoticeKind, *, in_s: float | None = None) -> None:
        """Puts any notice in force; only TERMINATE and MAX_LIFE end the machine, after ``in_s`` seconds."""
        await self._call("warn", instance=instance, kind=kind.value, in_s=in_s)

    async def kill(self, instance: str, *, detect_s: float = 0.0, silent: bool = False) -> None:
        """The host is lost, without notice; the API tells so after ``detect_s`` seconds (end LOST, dated to the loss).

        Args:
            silent: processes stop where they stand and their sockets stay open until the API tells, so that peers
            notice
                nothing, as with a host whose power fails; otherwise they are killed, and every peer sees its
                connections break.
        """
        await self._call("kill", instance=instance, detect_s=detect_s, silent=silent)

    async def pause(self, instance: str, seconds: float) -> None:
        """Stops every process of a machine for so long: a loss that is none."""
        await self._call("pause", instance=instance, seconds=seconds)

    async def partition(self, instance: str, *, mode: str = "blackhole") -> None:
        """Cuts the agent from its server: ``blackhole`` = silence, ``reset`` = connections break and are refused."""
        await self._call("partition", instance=instance, mode=mode)

    async def heal(self, instance: str) -> None:
        """Ends a partition."""
        await self._call("partition", instance=instance, mode="")

    async def slow_boot(self, boot_s: float, *, zone: str = "", times: int = 1) -> None:
        """The next launches (in that zone) take ``boot_s`` seconds to boot."""
        await self._call("slow_boot", boot_s=boot_s, zone=zone, times=times)

    async def api_fault(
        self, method: str, *, error: str = "", delay_s: float = 0.0, late: bool = False, times: int = 1
    ) -> None:
        """The next calls of a method of the port are answered late, or with an error.

        Args:
            method: ``launch``, ``offers``, ...
            error: ``kind`` of a ProviderError; empty = none.
            delay_s: wait so long before anything else.
            late: the effect happens and the answer is an error all the same (``unreachable`` unless ``error`` is set).
            times: how many calls.
        """
        await self._call("api_fault", method=method, error=error, delay_s=delay_s, late=late, times=times)

    # --- the wire ----------------------------------------------------------------------------------------------------

    async def _call(self, method: str, /, **params: Any) -> Any:
        for _ in range(2):
            try:
                if not self._greeted:
                    await self._greet()
                return await rpc.call(self.home, method, params)
            except (ConnectionRefusedError, FileNotFoundError):
                self._greeted = False
                await asyncio.to_thread(self._start)
        raise Unreachable(f"the box in {self.home} does not stay up; see {self.home / 'daemon.log'}")

    async def _greet(self) -> None:
        """Raises ConnectionRefusedError when the daemon makes way for our configuration, and has gone."""
        config = None if self._config is None else str(self._config)
        answer = await rpc.call(self.home, "hello", {"config": config, "agent_argv": self._agent_argv})
        if answer["leaving"]:
            await rpc.gone(self.home)
            raise ConnectionRefusedError
        self._greeted = True

    def _start(self) -> None:
        """Starts the daemon and returns when it serves; harmless if another caller is faster (the lock decides)."""
        command = [sys.executable, "-m", "everstep.providers.local", "serve", "--detach"]
        command += ["--home", str(self.home), "--name", self.name, "--agent-argv", json.dumps(self._agent_argv)]
        if self._config is not None:
            command += ["--config", str(self._config)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_START_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            raise Unreachable(f"the box in {self.home} did not start within {_START_TIMEOUT_S:.0f} s") from None
        if done.returncode == 0:
            return
        lines = done.stdout.splitlines()
        if lines:
            raise rpc.decode_error(json.loads(lines[-1]))
        raise Unreachable(f"the box in {self.home} did not start: {done.stderr.strip()[-500:]}")


def _request_dict(request: LaunchRequest) -> dict[str, Any]:
    return {
        "token": request.token,
        "deployment": request.deployment,
        "job": request.job,
        "launch_no": request.launch_no,
        "offer": to_dict(request.offer),
        "max_price_usd_per_h": request.max_price_usd_per_h,
        "user_data": dict(request.user_data),
        "volume": request.volume,
        "disk_gib": request.disk_gib,
    }
