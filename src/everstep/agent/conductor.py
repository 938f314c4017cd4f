"""Compares what the orders want with what runs here, and acts on the difference. All of it in the main thread.

Orders are levels, not commands: a repeated document changes nothing, and the fence is the attempt: a document of an
attempt older than one already seen is ignored, one of a newer attempt ends whatever the older one still runs here.
"""

from __future__ import annotations

import logging
import threading
from typing import Callable

from everstep.agent import atomic, environment, outputs, probe
from everstep.agent.attempt import Attempt, lost_with_agent, not_started
from everstep.agent.context import Context
from everstep.agent.execs import Execs
from everstep.agent.notices import Notice, kinds
from everstep.agent.orders import Orders, Stop
from everstep.agent.portholder import HeldPort
from everstep.agent.prepare import Preparation, digest_of
from everstep.agent.reserve import Reserve
from everstep.model import handshake as hs

log = logging.getLogger(__name__)

_STATE = "attempts.json"
_RESERVE_S = 5.0  # after the start of an attempt: ranks that are just starting need the processor themselves


class Conductor:
    """State of this node: what is prepared, what runs, what comes next.

    Args:
        probe_port: reported with ``ready`` (an agent that was restarted may have another one than at join).
        on_released: called when the orders are ``release`` and everything asked for is done.
    """

    def __init__(self, context: Context, *, probe_port: int, on_released: Callable[[], None]) -> None:
        self._context = context
        self._probe_port = probe_port
        self._on_released = on_released
        self._orders: Orders | None = None
        self._preparation: Preparation | None = None
        self._attempt: Attempt | None = None
        self._ports: list[HeldPort] = []  # of the attempt that runs, and of the next one
        self._ready_told: tuple[str, int] | None = None
        self._checked: set[int] = set()
        self._execs = Execs(context)
        self._reserve = Reserve(context)
        self._lease_lost: int | None = None
        self._leaving: Callable[[], None] | None = None
        self._releasing = False
        self._deadline: float | None = None
        state = atomic.read_json(context.settings.state / _STATE)
        self._highest = int(state.get("highest") or 0)
        self._started = int(state.get("started") or 0)
        running = state.get("running")
        if isinstance(running, int):
            context.outbox.put(hs.MSG_ENDED, **lost_with_agent(running))
            self._remember(running=None)

    # ---- what others ask -------------------------------------------------------------------------------------------

    @property
    def attempt(self) -> int | None:
        """The attempt whose ranks run here."""
        return None if self._attempt is None else self._attempt.number

    @property
    def ranks_alive(self) -> int:
        """How many processes of it run."""
        return 0 if self._attempt is None else self._attempt.ranks_alive

    # ---- what happens to it ----------------------------------------------------------------------------------------

    def on_orders(self, orders: Orders) -> None:
        """The server's orders, new or repeated."""
        if orders.attempt is not None and orders.attempt < self._highest:
            log.warning("orders for attempt %d ignored: attempt %d was seen already", orders.attempt, self._highest)
            return
        if self._leaving is not None or self._releasing:
            return
        if orders.attempt is not None and orders.attempt > self._highest:
            self._highest = orders.attempt
            self._remember(running=self.attempt)
        self._orders = orders
        if self._attempt is not None:
            self._steer(self._attempt, orders)
        self._execs.follow(orders)
        self.advance()

    def on_notice(self, notice: Notice) -> None:
        """The machine will or may be taken: tell the server, and have the ranks save without waiting for its word."""
        log.warning("notice: %s, deadline %s", notice.kind, notice.deadline)
        self._context.outbox.put(hs.MSG_NOTICE, notice=notice.kind, deadline=notice.deadline)
        if notice.kind != kinds.REBALANCE:
            self._deadline = notice.deadline
        if self._attempt is not None:
            # A mere recommendation is no reason to make a script save and exit: that is the server's to decide.
            self._attempt.save_by(notice.deadline, tell_script=notice.kind != kinds.REBALANCE)

    def on_fenced(self) -> None:
        """The server says that a newer attempt replaced ours."""
        if self._attempt is not None:
            self._attempt.kill("fenced by the server")

    def on_lease_expired(self) -> None:
        """No word from the server for a whole lease: another attempt may run elsewhere by now. Save and stop."""
        if self._attempt is not None and self._lease_lost != self._attempt.number:
            self._lease_lost = self._attempt.number
            self._attempt.stop(Stop(True, self._grace_s(), "no word from the server for a whole lease"))

    def leave(self, then: Callable[[], None], *, save: bool, grace_s: float | None = None) -> None:
        """Stop everything here and call ``then`` when nothing runs any more. Further orders are ignored."""
        if self._leaving is not None:
            return
        self._leaving = then
        if self._preparation is not None and not self._preparation.done:
            self._preparation.cancel()
        self._execs.kill()
        if self._attempt is None:
            then()
        else:
            self._attempt.stop(Stop(save, self._grace_s() if grace_s is None else grace_s, "the machine is leaving"))

    # ---- acting ----------------------------------------------------------------------------------------------------

    def _steer(self, attempt: Attempt, orders: Orders) -> None:
        """Orders came while ranks run."""
        same = orders.attempt in (None, attempt.number)
        if orders.stop is not None:
            attempt.stop(orders.stop)
        elif not same or orders.phase in (hs.PHASE_HOLD, hs.PHASE_RELEASE):
            attempt.kill(f"orders: {orders.phase}, attempt {orders.attempt}")
        elif orders.phase == hs.PHASE_RUN:  # an older phase of the same attempt is behind us
            if orders.save is not None:
                attempt.save(orders.save)
            attempt.hazard(orders.hazard_per_h)

    def advance(self) -> None:
        """Do the next thing that the orders want and that is not done; harmless at any time."""
        orders = self._orders
        if orders is None or self._leaving is not None:
            return
        if orders.phase == hs.PHASE_RELEASE:
            self._release(orders)
            return
        if not self._prepared(orders):
            return
        self._tell_ready()
        number = orders.attempt
        if number is None or self._attempt is not None:
            return
        if orders.phase == hs.PHASE_CHECK and number not in self._checked:
            self._check(orders, number)
        elif orders.phase == hs.PHASE_RUN and number > self._started and orders.stop is None:
            self._start(orders, number)

    def _prepared(self, orders: Orders) -> bool:
        digest = digest_of(orders.spec)
        now = self._preparation
        if now is not None and now.digest == digest:
            now.follow(orders)
            if not now.done or now.error is None:
                return now.done
            if now.attempt == orders.attempt:
                return False  # failed and told; only another attempt or other contents are worth a new try
        if orders.phase == hs.PHASE_HOLD or self._attempt is not None:
            return False
        if now is not None and not now.done:
            now.cancel()
        self._reserve.disband()
        self._preparation = Preparation(self._context, orders, self._on_prepared)
        self._preparation.start()
        return self._preparation.done and self._preparation.error is None

    def _on_prepared(self, preparation: Preparation) -> None:
        if preparation is not self._preparation:
            return
        if preparation.error is not None:
            self._context.outbox.put(hs.MSG_SETUP_FAILED, rc=preparation.rc, tail=preparation.error)
            return
        # Posted, not called: start() may have finished at once, inside of advance().
        self._context.mailbox.post(self.advance)

    def _tell_ready(self) -> None:
        """Prepared, and the port of the next attempt is held: told again whenever one of the two is new."""
        preparation = self._preparation
        assert preparation is not None
        if not self._ports or (self._attempt is not None and len(self._ports) < 2):
            self._ports.append(HeldPort())
        told = (preparation.digest, self._ports[-1].port)
        if told == self._ready_told:
            return
        self._ready_told = told
        self._context.supervisor.warm()

        def tell() -> None:
            if self._ready_told != told:
                return  # something newer was told
            self._context.outbox.put(
                hs.MSG_READY,
                port=told[1],
                setup_s=preparation.ready(),
                prepared=preparation.digest,
                probe_port=self._probe_port,
            )

        if self._attempt is not None or self._orders is None:
            tell()
        else:
            # Nothing runs here yet. The ranks' imports are part of getting ready: where this machine takes another's
            # place, the old attempt trains on meanwhile.
            self._reserve.call_up(self._orders, tell)

    def _check(self, orders: Orders, number: int) -> None:
        self._checked.add(number)
        others = [peer for peer in orders.peers if peer.rank != orders.node_rank]

        def ask() -> None:
            failed = probe.unreachable(others)
            self._context.outbox.put(hs.MSG_CHECKED, attempt=number, unreachable=failed)

        threading.Thread(target=ask, name="check", daemon=True).start()

    def _start(self, orders: Orders, number: int) -> None:
        self._started = number
        self._remember(running=number)
        self._reserve.call_off()
        self._attempt = Attempt(self._context, orders, self._on_ended)
        try:
            self._attempt.start()
        except OSError as error:  # no process to be had: the server must hear of it, or it would wait for ever
            log.exception("cannot start attempt %d", number)
            self._context.outbox.put(hs.MSG_ENDED, **not_started(number, str(error)))
            self._on_ended(self._attempt)
            return
        if self._deadline is not None and self._deadline > self._context.clock.utc():
            self._attempt.save_by(self._deadline)  # this machine was told to go before it got to start
        self._tell_ready()  # with a new port, for the attempt after this one
        self._call_up_later(self._attempt)

    def _call_up_later(self, attempt: Attempt) -> None:
        """Standbys for the next attempt, once this one trains."""

        def look() -> None:
            if attempt.over or self._leaving is not None or self._orders is None:
                return
            if attempt.trains and self._orders.attempt == attempt.number:
                self._reserve.call_up(self._orders)
            else:
                self._call_up_later(attempt)

        self._context.mailbox.later(_RESERVE_S, look)

    def _on_ended(self, attempt: Attempt) -> None:
        if self._lease_lost == attempt.number:
            self._context.outbox.put(hs.MSG_LEASE_EXPIRED, attempt=attempt.number)
        self._attempt = None
        self._remember(running=None)
        if len(self._ports) > 1:
            self._ports.pop(0).release()
        if self._leaving is not None:
            self._leaving()
            return
        if self._orders is not None and self._orders.phase != hs.PHASE_RELEASE and not attempt.succeeded:
            # Lost so early that there are no standbys yet: they get ready while a machine is replaced.
            self._reserve.call_up(self._orders)
        self.advance()

    def _release(self, orders: Orders) -> None:
        if self._attempt is not None or self._releasing:
            return  # _steer stops it; its end brings us here again
        self._releasing = True
        if self._preparation is not None and not self._preparation.done:
            self._preparation.cancel()
        self._execs.kill()
        if not orders.spec.release_outputs:
            self._on_released()
            return
        node = self._context.node
        paths = [(outputs.output_name(text), environment.place(node, text)) for text in orders.spec.outputs]
        paths = paths or [("checkpoints", environment.checkpoint_dir(node, orders))]

        def store() -> None:
            stored = outputs.store(self._context.new_session, paths, stopping=lambda: self._leaving is not None)
            self._context.outbox.put(hs.MSG_OUTPUTS_STORED, files=stored.files, bytes=stored.bytes, error=stored.error)
            self._context.mailbox.post(self._on_released)

        threading.Thread(target=store, name="outputs", daemon=True).start()

    # ---- small things ----------------------------------------------------------------------------------------------

    def _grace_s(self) -> float:
        return 30.0 if self._orders is None else self._orders.spec.stop_grace_s

    def _remember(self, *, running: int | None) -> None:
        self._context.keep(_STATE, {"highest": self._highest, "started": self._started, "running": running})
