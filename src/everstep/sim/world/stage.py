"""What the simulated world needs of the driver: time, and the desk that agents report to."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol

from everstep.model.ids import InstanceId


class Stage(Protocol):
    """Time and tasks (see ``sim.strand.Timeline``)."""

    def now(self) -> float:
        """UTC seconds."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Waits."""
        ...

    def after(self, delay_s: float, act: Callable[[], object]) -> Callable[[], None]:
        """Does something later; what is returned calls it off."""
        ...

    def spawn(self, work: Coroutine[Any, Any, None], name: str = "") -> object:
        """Starts a coroutine."""
        ...


class Desk(Protocol):
    """Where agents come to (see ``control.agents.AgentDesk``)."""

    on_orders: Callable[[InstanceId, Mapping[str, Any]], None]

    async def join(self, token: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Lets a machine in."""
        ...

    async def report(self, instance: InstanceId, messages: Sequence[Mapping[str, Any]]) -> dict[str, int]:
        """Takes messages in."""
        ...
