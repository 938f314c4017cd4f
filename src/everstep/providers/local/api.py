"""The methods of the daemon: the Provider port, the meter, and faults on command."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from everstep.model.causes import NoticeKind
from everstep.model.codec import from_dict, to_dict
from everstep.model.errors import PROVIDER_ERRORS, BadInput, BadRequest, Problem, ProviderError
from everstep.ports import HistoryQuery, LaunchRequest, OfferQuery, VolumeSpec
from everstep.providers.local import rpc
from everstep.providers.local.box import Box, find
from everstep.providers.local.config import BoxConfig, read_config
from everstep.providers.local.machines import ProcessMachines
from everstep.providers.local.proxy import BLACKHOLE, RESET, Gateways
from everstep.providers.local.state import InstanceRecord
from everstep.providers.local.supply import SupplyBook

#: Methods of the port: those that can be made to fail.
PORT_METHODS = ("offers", "launch", "resources", "terminate", "ensure_volume", "delete_volume", "notices", "history")


class _Host(Protocol):
    """The daemon, as its API sees it."""

    home: Path
    config: BoxConfig
    box: Box
    book: SupplyBook
    machines: ProcessMachines
    gateways: Gateways
    metadata_url: str
    workstation_known: asyncio.Event

    def now(self) -> float: ...
    def poke(self) -> None: ...
    def leave(self) -> None: ...
    def spawn(self, work: Coroutine[Any, Any, Any]) -> Any: ...
    def discard_volume(self, volume: str) -> None: ...
    async def stop_everything(self) -> None: ...


@dataclass(slots=True)
class ApiFault:
    """The next ``times`` calls are answered after ``delay_s``, with ``error`` if set; ``late``: they took effect."""

    error: str = ""
    delay_s: float = 0.0
    late: bool = False
    times: int = 1


class Api:
    """What callers can ask of a daemon. Parameters and results are JSON-ready."""

    def __init__(self, daemon: _Host) -> None:
        self.daemon = daemon
        self.box = daemon.box
        self.faults: dict[str, list[ApiFault]] = {}
        self._leaving = False

    def method(self, name: str) -> Callable[..., Any]:
        """The handler of a method; BadRequest if there is none."""
        handler = getattr(self, f"_do_{name}", None)
        if handler is None:
            raise BadRequest(f"the box knows no method {name!r}")
        return handler  # type: ignore[no-any-return]

    async def run(self, name: str, handler: Callable[..., Any], params: Mapping[str, Any]) -> Any:
        """Calls a handler, with the faults that were ordered for it."""
        fault = self._take_fault(name)
        if fault.delay_s:
            await asyncio.sleep(fault.delay_s)
        error = None
        if fault.error:
            error = PROVIDER_ERRORS[fault.error](f"{name} fails, as was ordered")
        if error is not None and not fault.late:
            raise error
        result = await handler(**params)
        self.daemon.poke()
        if error is not None:
            raise error
        return result

    def after_answer(self) -> None:
        """The answer has been sent: now the daemon may go, if that was asked."""
        if self._leaving:
            self.daemon.leave()

    def _take_fault(self, name: str) -> ApiFault:
        waiting = self.faults.get(name)
        if not waiting:
            return ApiFault()
        waiting[0].times -= 1
        return waiting[0] if waiting[0].times > 0 else waiting.pop(0)

    # --- the port ----------------------------------------------------------------------------------------------------

    async def _do_offers(self, query: dict[str, Any]) -> Any:
        await self.daemon.workstation_known.wait()
        return to_dict(self.box.offers(from_dict(OfferQuery, query), self.daemon.now()))

    async def _do_launch(self, requests: list[dict[str, Any]], all_or_nothing: bool) -> Any:
        await self.daemon.workstation_known.wait()
        if not self.daemon.machines.agent_argv:
            raise BadRequest("the box does not know the agent's command: give agent_argv")
        wanted = [from_dict(LaunchRequest, r) for r in requests]
        answers = self.box.launch(wanted, all_or_nothing=all_or_nothing, now=self.daemon.now())
        return [{"error": rpc.encode_error(a)} if isinstance(a, ProviderError) else {"ok": to_dict(a)} for a in answers]

    async def _do_resources(self, deployment: str) -> Any:
        return to_dict(self.box.resources(deployment, self.daemon.now()))

    async def _do_terminate(self, instances: list[str]) -> None:
        self.box.terminate(instances, self.daemon.now())

    async def _do_ensure_volume(self, spec: dict[str, Any]) -> str:
        return self.box.ensure_volume(from_dict(VolumeSpec, spec), self.daemon.now())

    async def _do_delete_volume(self, volume: str) -> None:
        if self.box.delete_volume(volume, self.daemon.now()):
            self.daemon.discard_volume(volume)

    async def _do_notices(self, deployment: str) -> Any:
        return to_dict(self.box.notices(deployment))

    async def _do_history(self, query: dict[str, Any]) -> Any:
        wanted = from_dict(HistoryQuery, query)
        return to_dict(self.daemon.book.history(wanted.pools, wanted.since, self.daemon.now()))

    async def _do_meter(self, deployment: str) -> Any:
        return self.box.meter(deployment, self.daemon.now())

    # --- the box itself ----------------------------------------------------------------------------------------------

    async def _do_hello(self, config: str | None, agent_argv: list[str]) -> dict[str, Any]:
        """A client introduces itself: its configuration must be the one that plays; its agent is used from now on.

        A box without machines makes way for another configuration: ``leaving`` tells the client to start it anew.
        """
        facts = self.box.state.facts
        if config is not None:
            self._leaving = self._makes_way(config)
        if agent_argv and agent_argv != facts.agent_argv:
            self.box.state.save(replace(facts, agent_argv=agent_argv))
            self.daemon.machines.agent_argv = agent_argv
        return {"pid": os.getpid(), "leaving": self._leaving}

    async def _do_leave(self) -> None:
        self._leaving = True

    def _makes_way(self, config: str) -> bool:
        """Whether another configuration, or the same file with another content, is to take over."""
        playing, held = self.box.state.facts.config_path, len(self.box.state.living)
        if not held:
            return read_config(Path(config)).digest != self.daemon.config.digest or config != playing
        if config != playing:
            text = f"the box has {held} machine{'' if held == 1 else 's'} of {playing or 'the default configuration'}"
            raise BadInput(Problem(config, "", text, f"end them first, or use another folder than {self.daemon.home}"))
        return False

    async def _do_status(self) -> dict[str, Any]:
        machines, now = self.daemon.machines, self.daemon.now()
        instances = []
        for r in self.box.state.instances.values():
            told = machines.status(r.id) if r.alive else {}
            row = {name: getattr(r, name) for name in _SHOWN}
            row |= {"alive": r.alive, "agent_state": told.get("state", ""), "agent_pid": told.get("agent", 0)}
            row |= {"root": str(machines.folder(r.id) / "root"), "console": str(machines.console(r.id))}
            instances.append(row)
        return {
            "pid": os.getpid(),
            "config": self.box.state.facts.config_path,
            "metadata_url": self.daemon.metadata_url,
            "now": now,
            "market_s": self.daemon.book.market_s(now),
            "instances": instances,
        }

    async def _do_stop(self) -> None:
        await self.daemon.stop_everything()
        self._leaving = True

    # --- faults ------------------------------------------------------------------------------------------------------

    async def _do_preempt(self, instance: str, notice: bool, notice_s: float | None) -> None:
        record, now = self._live(instance), self.daemon.now()
        wait_s = (self.box.book.config.notice_s if notice_s is None else notice_s) if notice else 0.0
        self.box.warn(record, NoticeKind.TERMINATE, now, now + wait_s)

    async def _do_warn(self, instance: str, kind: str, in_s: float | None) -> None:
        now = self.daemon.now()
        self.box.warn(self._live(instance), NoticeKind(kind), now, None if in_s is None else now + in_s)

    async def _do_kill(self, instance: str, detect_s: float, silent: bool) -> None:
        record, now = self._live(instance), self.daemon.now()
        record = replace(record, dead_at=now, reveal_at=now + detect_s)
        self.box.state.save(record)
        if silent:
            self.daemon.gateways.partition(instance, BLACKHOLE)
            await asyncio.to_thread(self.daemon.machines.freeze, record)
        else:
            await asyncio.to_thread(self.daemon.machines.destroy, record)

    async def _do_pause(self, instance: str, seconds: float) -> None:
        record = self._live(instance)
        await asyncio.to_thread(self.daemon.machines.freeze, record)

        async def resume() -> None:
            await asyncio.sleep(seconds)
            now = self.box.state.instances[instance]
            if now.alive and now.dead_at is None:
                await asyncio.to_thread(self.daemon.machines.thaw, record)

        self.daemon.spawn(resume())

    async def _do_partition(self, instance: str, mode: str) -> None:
        if mode not in (BLACKHOLE, RESET, ""):
            raise BadRequest(f"a partition is {BLACKHOLE} or {RESET}, not {mode!r}")
        self.box.state.save(replace(self._live(instance), partition=mode))
        self.daemon.gateways.partition(instance, mode)

    async def _do_slow_boot(self, boot_s: float, zone: str, times: int) -> None:
        self.box.slow_boots += [(zone, boot_s)] * times

    async def _do_api_fault(self, method: str, error: str, delay_s: float, late: bool, times: int) -> None:
        if method not in PORT_METHODS:
            raise BadRequest(f"there is no call {method!r}; known: {', '.join(PORT_METHODS)}")
        if error and error not in PROVIDER_ERRORS:
            raise BadRequest(f"there is no error {error!r}; known: {', '.join(PROVIDER_ERRORS)}")
        self.faults.setdefault(method, []).append(
            ApiFault(error or ("unreachable" if late else ""), delay_s, late, times)
        )

    def _live(self, instance: str) -> InstanceRecord:
        return find(self.box.state.instances, instance)


_SHOWN = (
    "id", "token", "deployment", "job", "zone", "machine_type", "market", "price_usd_per_h", "address", "pid",
    "started_at", "boot_s", "notice", "deadline", "partition", "volume", "ended_at", "end",
)  # fmt: skip
