"""Commands run beside the ranks on request (``everstep exec``), each once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from everstep.agent import atomic, environment
from everstep.agent.context import Context, shell
from everstep.agent.orders import Orders
from everstep.agent.supervisor import Command, Keeper
from everstep.model import handshake as hs

_STATE = "execs.json"
_REMEMBERED = 1000


class Execs:
    """Starts what is ordered and was not run before; kills what is ordered no more."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._running: dict[str, Keeper] = {}
        done = atomic.read_json(context.settings.state / _STATE).get("done", [])
        self._order = [str(name) for name in done] if isinstance(done, list) else []
        self._known: set[str] = set(self._order)

    def follow(self, orders: Orders) -> None:
        """Bring the running commands in line with the orders."""
        wanted: Sequence[tuple[str, str]] = orders.execs
        names = {name for name, _ in wanted}
        for name, keeper in list(self._running.items()):
            if name not in names:
                keeper.kill()
        for name, text in wanted:
            if name not in self._known:
                self._start(name, text, orders)

    def kill(self) -> None:
        """End all of them."""
        for keeper in self._running.values():
            keeper.kill()

    def _start(self, name: str, text: str, orders: Orders) -> None:
        self._known.add(name)
        self._order = [*self._order, name][-_REMEMBERED:]
        self._context.keep(_STATE, {"done": self._order})
        context, label, attempt = self._context, f"exec-{name}", orders.attempt or 0
        context.settings.workdir.mkdir(parents=True, exist_ok=True)
        env = environment.base(context.node, environment.inherited(), orders)
        command = Command(label, shell(text), env, context.settings.workdir, context.log_path(attempt, label))
        context.supervisor.stand_down()  # it may change what standbys have imported
        keeper = context.supervisor.take()
        self._running[name] = keeper
        ended: dict[str, int] = {}

        def on_event(event: dict[str, Any]) -> None:
            if event["event"] == "exited":
                ended["rc"] = int(event["rc"])
            elif event["event"] == "gone":
                self._running.pop(name, None)
                context.shipper.finish(attempt, label)
                context.outbox.put(hs.MSG_EXEC_ENDED, id=name, rc=ended.get("rc", -9))

        keeper.start(
            [command], lambda event: context.mailbox.post(lambda: on_event(event)), secrets=orders.spec.secrets
        )
