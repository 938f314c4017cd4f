"""The process behind a cloud in a box: serves the API, the metadata and the gateways, and lets time pass.

It is no child of the server, so that machines live on, notices come and preemptions happen while the server is dead.
It may be killed itself: machines go on, and the next daemon finds them again and catches up with what the market did
meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

from everstep.model.causes import InstanceEnd
from everstep.model.errors import EverstepError
from everstep.model.offers import Market
from everstep.providers.local import metadata, rpc, workstation
from everstep.providers.local.api import Api
from everstep.providers.local.box import Box, Due
from everstep.providers.local.config import THIS_COMPUTER, BoxConfig
from everstep.providers.local.machines import ProcessMachines
from everstep.providers.local.processes import StillAlive
from everstep.providers.local.proxy import Gateways, listen
from everstep.providers.local.state import InstanceRecord, State
from everstep.providers.local.supply import SupplyBook

_log = logging.getLogger("everstep.box")
#: Time passes at least this often, so that a step of the computer's sleep or a missed wake-up heals by itself.
_LONGEST_NAP_S = 5.0
_SHORTEST_NAP_S = 0.001
_RETRY_KILL_S = 1.0
_GRACE_POLL_S = 0.01


class Daemon:
    """One running box.

    Args:
        home: its folder, locked by the caller.
        lock: the descriptor of the lock file.
        config: what it offers.
        state: what it remembers.
        api_socket, metadata_socket: listening already, so that callers may connect before the loop runs.
        name: name of the provider in offers.
    """

    def __init__(
        self,
        home: Path,
        config: BoxConfig,
        state: State,
        *,
        lock: int,
        api_socket: socket.socket,
        metadata_socket: socket.socket,
        name: str,
    ) -> None:
        self.home = home
        self._lock = lock
        self.config = config
        self.state = state
        self.name = name
        self.gateways = Gateways()
        self.metadata_url = f"http://127.0.0.1:{metadata_socket.getsockname()[1]}"
        self.machines = ProcessMachines(
            home,
            self.gateways,
            metadata_url=self.metadata_url,
            agent_argv=state.facts.agent_argv,
            restart_agent_s=config.restart_agent_s,
            on_start=self.watch,
        )
        began_at = state.facts.market_began_at
        self.book = SupplyBook(config, provider=name, workstation=None, began_at=began_at)
        self.box = Box(state, self.book, self.machines, home)
        self._sockets = (api_socket, metadata_socket)
        self._anchor = time.time() - time.monotonic()
        self._poke = asyncio.Event()
        self._stop = asyncio.Event()
        self._endings: dict[str, asyncio.Task[None]] = {}
        self._background: set[asyncio.Task[Any]] = set()
        self._api = Api(self)

    def now(self) -> float:
        """UTC seconds, anchored at start and moved by the monotonic clock."""
        return self._anchor + time.monotonic()

    # --- running -----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serves until ``leave``; machines that still run then are found again by the next daemon."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.leave)
        self.look_at_workstation()
        self.adopt()
        api_socket, metadata_socket = self._sockets
        api = await _serve_unix(self._serve_api, api_socket)
        told = await asyncio.start_server(self._serve_metadata, sock=metadata_socket, limit=1 << 14)
        for left_over in (self.home / "trash").iterdir():
            self.spawn(asyncio.to_thread(shutil.rmtree, left_over, ignore_errors=True))
        passing = loop.create_task(self._pass_time())
        await self._stop.wait()
        passing.cancel()
        for server in (api, told):
            server.close()
        self.state.close()

    def leave(self) -> None:
        """Ends this process; machines live on."""
        self._stop.set()

    def poke(self) -> None:
        """Something changed: look at the clocks again."""
        self._poke.set()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Runs something aside; a failure is logged."""
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background_ended)
        return task

    def _background_ended(self, task: asyncio.Task[Any]) -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("%s", error, exc_info=error)

    def _homeless(self) -> bool:
        """Whether somebody deleted the folder: nobody can call this box any more, another may have begun there."""
        try:
            return not os.path.samestat(os.fstat(self._lock), os.stat(self.home / rpc.LOCK_NAME))
        except FileNotFoundError:
            return True

    async def _pass_time(self) -> None:
        while True:
            if self._homeless():
                _log.error("the folder %s is gone: all machines end, and so does this box", self.home)
                self.spawn(self._end_homeless())
                return
            now = self.now()
            try:
                for due in self.box.advance(now):
                    self.begin_end(due)
                wake = self.box.next_wake(now)
            except Exception:
                # One bad record must not stop the clocks of all the others.
                _log.exception("while time passed")
                wake = now + 1.0
            self._poke.clear()
            nap_s = _LONGEST_NAP_S if wake is None else min(max(wake - self.now(), _SHORTEST_NAP_S), _LONGEST_NAP_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(nap_s):
                    await self._poke.wait()

    def look_at_workstation(self) -> None:
        """Finds out in a thread what this computer has, if the configuration sells it: drivers may take seconds."""
        self.workstation_known = asyncio.Event()
        if not any(Market.STATIC in zone.supply for zone in self.config.zones.values()):
            self.workstation_known.set()
            return

        async def look() -> None:
            try:
                self.book.workstation = await asyncio.to_thread(workstation.this_computer, THIS_COMPUTER)
            finally:
                self.workstation_known.set()

        self.spawn(look())

    # --- machines ----------------------------------------------------------------------------------------------------

    def adopt(self) -> None:
        """Takes over the machines of an earlier daemon, and settles those that did not survive."""
        for record in list(self.state.living.values()):
            found = self.machines.adopt(record)
            if found is not None:
                self._reopen(found)
                self.watch(found)
                if found.dead_at is None:
                    # A pause that the old daemon did not live to end.
                    self.machines.thaw(found)
            elif not record.pid:
                # It was ordered and never started, and nobody was told: it never was.
                free = [replace(v, attached_to=None) for v in self.state.volumes.values() if v.attached_to == record.id]
                self.state.save_soon(*free)
                self.state.forget(record)
                shutil.rmtree(self.machines.folder(record.id), ignore_errors=True)
            elif record.dead_at is None:
                # If it was to end anyway, the old daemon ended it and did not live to say so.
                self.begin_end(self.box.due(record, self.now()) or Due(record, InstanceEnd.LOST))

    def _reopen(self, record: InstanceRecord) -> None:
        if record.server:
            try:
                self.gateways.open(record.id, record.server, record.proxy_port)
            except OSError as error:
                self.machines.report(record, f"the way to the server (port {record.proxy_port}) is lost: {error}")
            self.gateways.partition(record.id, record.partition)
        self.state.save_soon(record)

    def watch(self, record: InstanceRecord) -> None:
        """Calls ``_init_ended`` when its init is gone."""
        loop = asyncio.get_running_loop()
        try:
            handle = os.pidfd_open(record.pid)
        except OSError:
            loop.call_soon(self._init_ended, record.id)
            return

        def gone() -> None:
            loop.remove_reader(handle)
            os.close(handle)
            self._init_ended(record.id)

        loop.add_reader(handle, gone)

    def _init_ended(self, instance: str) -> None:
        record = self.state.instances.get(instance)
        if record is None or not record.alive or instance in self._endings or record.dead_at is not None:
            return
        failed = self.machines.status(instance).get("state") == "failed"
        self.begin_end(Due(record, InstanceEnd.BOOT_FAILED if failed else InstanceEnd.LOST))

    def begin_end(self, due: Due) -> None:
        """Starts ending a machine, once."""
        if due.record.id not in self._endings:
            task = self.spawn(self._end(due))
            self._endings[due.record.id] = task
            task.add_done_callback(lambda _: self._endings.pop(due.record.id, None))

    async def _end(self, due: Due) -> None:
        record = due.record
        if due.end is InstanceEnd.OWNER:
            await self._grace(record)
        try:
            await asyncio.to_thread(self.machines.destroy, record)
        except StillAlive as error:
            self.machines.report(record, str(error))
            await asyncio.sleep(_RETRY_KILL_S)  # the next look at the clocks tries again
            self.poke()
            return
        at = self.now()
        trash = self.machines.discard(record.id)
        self.box.ended(record.id, due.end, at)
        self.poke()
        await asyncio.to_thread(shutil.rmtree, trash, ignore_errors=True)

    async def _grace(self, record: InstanceRecord) -> None:
        self.machines.ask_to_stop(record)
        while self.now() < (record.stop_by or 0.0) and not self.machines.stopped(record):
            if self.state.instances[record.id].dead_at is not None:
                return
            await asyncio.sleep(_GRACE_POLL_S)

    def discard_volume(self, volume: str) -> None:
        """Removes the bytes of a deleted disk, at leisure."""
        trash = self.home / "trash" / volume
        with contextlib.suppress(OSError):
            os.rename(self.box.volume_folder(volume), trash)
        self.spawn(asyncio.to_thread(shutil.rmtree, trash, ignore_errors=True))

    async def _end_homeless(self) -> None:
        """Nothing can be written down any more: processes are all that is left to end."""
        for record in list(self.state.living.values()):
            with contextlib.suppress(OSError, StillAlive):
                await asyncio.to_thread(self.machines.destroy, record)
        self.leave()

    async def stop_everything(self) -> None:
        """Ends every machine as its owner would, and waits for it."""
        self.box.terminate(list(self.state.living), self.now())
        while self.state.living:
            self.poke()
            await asyncio.sleep(_GRACE_POLL_S)
        # What is left to do is to delete bytes of disks.
        await asyncio.gather(*self._endings.values(), return_exceptions=True)

    # --- serving -----------------------------------------------------------------------------------------------------

    async def _serve_metadata(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await metadata.serve(self.state.instances, reader, writer)

    async def _serve_api(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                writer.write(rpc.encode(await self._answer(line)))
                await writer.drain()
                self._api.after_answer()
        except (OSError, ValueError, asyncio.CancelledError):
            pass  # a client that hangs up, or this daemon leaving
        finally:
            writer.close()

    async def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            request = json.loads(line)
            method: Callable[..., Any] = self._api.method(request["method"])
            return {"ok": await self._api.run(request["method"], method, request.get("params") or {})}
        except EverstepError as error:
            return {"error": rpc.encode_error(error)}
        except Exception as error:
            _log.exception("while answering %r", line[:200])
            return {"error": rpc.encode_error(error)}


async def _serve_unix(answer: Callable[..., Any], sock: socket.socket) -> asyncio.Server:
    if sys.version_info >= (3, 13):
        # Its name was a short way to the file, see `rpc.socket_address`: asyncio could not find the file to delete it.
        return await asyncio.start_unix_server(answer, sock=sock, limit=rpc.LINE_LIMIT, cleanup_socket=False)
    return await asyncio.start_unix_server(answer, sock=sock, limit=rpc.LINE_LIMIT)


def open_metadata_socket(state: State) -> socket.socket:
    """The metadata endpoint's socket, on the port that running machines already know."""
    port = state.facts.metadata_port
    try:
        sock = listen(port)
    except OSError:
        # Machines that run keep asking the old port in vain; that is the best that can be done.
        _log.error("port %d of the metadata endpoint is taken by another program", port)
        sock = listen(0)
    if sock.getsockname()[1] != port:
        state.save(replace(state.facts, metadata_port=sock.getsockname()[1]))
    return sock


def begin_market(state: State, config: BoxConfig, now: float) -> None:
    """Starts the clock of the traces when this configuration is seen for the first time."""
    facts = state.facts
    if facts.config_digest == config.digest:
        return
    began_at = None if config.trace_from_first_launch else now
    faults_left = [fault.times for fault in config.faults]
    state.save(replace(facts, config_digest=config.digest, market_began_at=began_at, faults_left=faults_left))
