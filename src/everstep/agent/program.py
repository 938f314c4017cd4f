"""The agent program: puts the parts together, runs them, and takes them down in order."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import signal
import sys
import threading
import time
from typing import IO

from everstep.agent import joining, notices, shimming
from everstep.agent.clock import Clock
from everstep.agent.conductor import Conductor
from everstep.agent.context import Context
from everstep.agent.environment import Node
from everstep.agent.link import Contact, Refused, Session
from everstep.agent.logs import LogShipper
from everstep.agent.mailbox import Mailbox
from everstep.agent.notices import Notice, NoticeWatcher
from everstep.agent.objects import ObjectDesk
from everstep.agent.orders import OrdersPoller
from everstep.agent.outbox import Outbox
from everstep.agent.probe import ProbeListener
from everstep.agent.reporter import Reporter
from everstep.agent.settings import Settings, SettingsError
from everstep.agent.supervisor import Supervisor
from everstep.model import handshake as hs

log = logging.getLogger(__name__)

EXIT_UNUSABLE = 2
EXIT_UNKNOWN = 3
EXIT_SECOND = 4
_TICK_S = 0.25
_ADVANCE_S = 2.0  # a step that failed (no port, no process) is tried again
_UNKNOWN_S = 2.0
_LOCK_WAIT_S = 10.0
_DRAIN_SHUTDOWN_S = 5.0
_DRAIN_RELEASE_S = 30.0
_MARGIN_S = 2.0  # what is kept of the time before a deadline for the last words


class Agent:
    """A running agent; :meth:`run` returns the exit code."""

    def __init__(self, settings: Settings, supervisor: Supervisor, clock: Clock, stopping: threading.Event) -> None:
        self._settings = settings
        self._supervisor = supervisor
        self._clock = clock
        self._stopping = stopping
        self._mailbox = Mailbox()
        self._contact = Contact()
        self._exit_code = 0
        self._leaving = False
        self._unknown_since: float | None = None
        self._notices: list[Notice] = []

    def run(self) -> int:
        """Join, serve until released, shut down or unknown to the server."""
        known = joining.recall(self._settings)
        listener = ProbeListener(self._settings.instance, known.probe_port if known else 0)
        node = Node(
            instance=self._settings.instance,
            address=joining.own_address(self._settings),
            gpus=joining.count_gpus(),
            workdir=self._settings.workdir,
            checkpoints=self._settings.checkpoints,
            mark=self._supervisor.mark,
            shim=shimming.install(self._settings.state / "shim"),
            objects=self._settings.objects,
        )
        if known is None:
            known = self._join(node, listener)
        self._contact.touch()
        self._build(known, node, listener)
        self._lease_s = known.lease_s
        try:
            self._objects.start()
        except OSError as error:
            self._context.warn(f"no signed URLs can be asked for: {error}")
        self._poller.start(known.orders)
        self._reporter.start()
        self._context.shipper.resume(self._settings.logs)
        self._context.shipper.start()
        self._watcher.start()
        self._mailbox.every(known.heartbeat_s, self._heartbeat)
        self._mailbox.every(_TICK_S, self._tick)
        self._mailbox.every(_ADVANCE_S, self._conductor.advance)
        self._mailbox.run()
        listener.close()
        self._objects.close()
        self._supervisor.close(_DRAIN_SHUTDOWN_S)
        self._context.outbox.close()
        return self._exit_code

    def _join(self, node: Node, listener: ProbeListener) -> joining.Membership:
        # What an earlier instance left on this disk is told under its own name or not at all.
        for name in ("outbox.jsonl", "attempts.json", "execs.json"):
            (self._settings.state / name).unlink(missing_ok=True)
        shutil.rmtree(self._settings.logs, ignore_errors=True)
        description = joining.describe(
            self._settings,
            address=node.address,
            probe_port=listener.port,
            gpus=node.gpus,
            booted_at=self._clock.utc(),
        )
        return joining.join(self._settings, description, stopping=self._stopping.is_set)

    def _build(self, known: joining.Membership, node: Node, listener: ProbeListener) -> None:
        def new_session() -> Session:
            return Session(
                self._settings.server,
                fingerprint=self._settings.ca_sha256,
                credential=known.credential,
                contact=self._contact,
            )

        post = self._mailbox.post
        self._context = Context(
            settings=self._settings,
            node=node,
            clock=self._clock,
            mailbox=self._mailbox,
            outbox=Outbox(self._settings.state / "outbox.jsonl", self._clock),
            supervisor=self._supervisor,
            shipper=LogShipper(new_session()),
            new_session=new_session,
        )
        self._conductor = Conductor(self._context, probe_port=listener.port, on_released=self._released)
        self._objects = ObjectDesk(self._settings.objects, new_session)
        self._reporter = Reporter(new_session(), self._context.outbox, self._refused)
        self._poller = OrdersPoller(
            new_session(),
            on_orders=lambda orders: post(lambda: self._conductor.on_orders(orders)),
            on_refused=self._refused,
        )
        watches = notices.watches(self._settings.metadata, self._clock)
        self._watcher = NoticeWatcher(watches, lambda notice: post(lambda: self._notice(notice)))

    # ---- regular work ----------------------------------------------------------------------------------------------

    def _heartbeat(self) -> None:
        outbox = self._context.outbox
        if outbox.has_unacked(hs.MSG_HEARTBEAT):
            return  # one that could not be delivered is enough
        warnings, self._context.warnings[:] = list(self._context.warnings), []
        extra = {"warnings": warnings} if warnings else {}
        if outbox.dropped:
            extra["dropped"] = outbox.dropped  # type: ignore[assignment]
        outbox.put(hs.MSG_HEARTBEAT, attempt=self._conductor.attempt, ranks_alive=self._conductor.ranks_alive, **extra)

    def _tick(self) -> None:
        if self._stopping.is_set():
            self._shut_down()
        elif self._contact.age_s() > self._lease_s:
            self._conductor.on_lease_expired()

    def _notice(self, notice: Notice) -> None:
        self._notices.append(notice)
        self._conductor.on_notice(notice)

    def _refused(self, error: Refused) -> None:
        if error.unknown:
            self._mailbox.post(self._unknown)
        elif error.fenced:
            self._mailbox.post(self._conductor.on_fenced)

    # ---- ways to the end -------------------------------------------------------------------------------------------

    def _unknown(self) -> None:
        """The server does not know our credential: whatever we run is nobody's. Stop it and go."""
        now = time.monotonic()
        if self._unknown_since is None or self._contact.age_s() < now - self._unknown_since:
            self._unknown_since = now  # a server that is just starting may not know anybody yet: ask again
        elif not self._leaving and now - self._unknown_since >= _UNKNOWN_S:
            self._leaving = True
            log.error("the server does not know this instance any more; stopping")
            self._exit_code = EXIT_UNKNOWN
            # A server whose database was put back knows our launch, not our join: started anew, we join once more.
            joining.forget(self._settings)
            self._conductor.leave(self._mailbox.stop, save=False, grace_s=0.0)

    def _shut_down(self) -> None:
        """The machine is being shut down (SIGTERM to the agent)."""
        if self._leaving:
            return
        self._leaving = True
        log.warning("shutting down")

        def look() -> None:
            self._watcher.look_now()  # was it a preemption that we have not heard of yet?
            self._mailbox.post(stop_ranks)

        def stop_ranks() -> None:
            deadlines = [one.deadline for one in self._notices if one.final and one.deadline is not None]
            left = min(deadlines) - self._clock.utc() - _MARGIN_S if deadlines else None
            grace = None if left is None else max(0.5, left)
            self._conductor.leave(lambda: self._last_words(_DRAIN_SHUTDOWN_S), save=True, grace_s=grace)

        threading.Thread(target=look, name="last-look", daemon=True).start()

    def _released(self) -> None:
        if not self._leaving:
            self._leaving = True
            self._last_words(_DRAIN_RELEASE_S)

    def _last_words(self, drain_s: float) -> None:
        """Say how it ended, deliver what can be delivered in time, and stop."""
        preempted = any(one.final for one in self._notices)
        self._context.outbox.put(hs.MSG_SHUTDOWN, how="preempted" if preempted else "normal")

        def drain() -> None:
            end = time.monotonic() + drain_s
            self._reporter.drain(drain_s)
            self._context.shipper.drain(max(0.0, end - time.monotonic()))
            self._watcher.stop()
            self._poller.stop()
            self._reporter.stop()
            self._context.shipper.stop()
            self._mailbox.stop()

        threading.Thread(target=drain, name="drain", daemon=True).start()


def main() -> int:
    """Run the agent as told by the environment."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        settings = Settings.from_environment(os.environ)
        notices.watches(settings.metadata, Clock())
        settings.state.mkdir(parents=True, exist_ok=True)
    except (SettingsError, ValueError, OSError) as error:
        print(f"everstep agent: {error}", file=sys.stderr)
        return EXIT_UNUSABLE
    stopping = threading.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda *_: stopping.set())
    lock = _lock(settings)
    if lock is None:
        print(f"everstep agent: another agent runs on {settings.root}", file=sys.stderr)
        return EXIT_SECOND
    supervisor = Supervisor(settings.state / "keepers", str(settings.root.resolve()))
    killed = supervisor.sweep_previous()
    if killed:
        log.warning("killed %d processes of an earlier agent", killed)
    try:
        code = Agent(settings, supervisor, Clock(), stopping).run()
    except joining.JoinRefused as error:
        print(f"everstep agent: {error}", file=sys.stderr)
        code = 0 if stopping.is_set() else EXIT_UNUSABLE
    lock.close()
    return code


def _lock(settings: Settings) -> IO[str] | None:
    """One agent per root: an open, locked file. Waits for an agent that is just ending; None if it does not."""
    file = open(settings.state / "lock", "w")  # noqa: SIM115 - held until the process ends
    end = time.monotonic() + _LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        except OSError:
            if time.monotonic() > end:
                file.close()
                return None
            time.sleep(0.05)
