"""The desk that agents come to: join, report, ask for orders. They dial out; we keep the newest orders until they
ask."""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from everstep.control.faults import reach
from everstep.control.messages import finite, to_event
from everstep.control.telemetry import Telemetry
from everstep.model import handshake as h
from everstep.model.errors import BadInput, Conflict, EverstepError, HandshakeMismatch, NotAuthorized, Problem
from everstep.model.events import AttemptsSkipped, Event, InstanceBarred, InstanceJoined, ProgressSeen
from everstep.model.ids import InstanceId, JobId, LaunchToken
from everstep.model.job import InstancePhase, InstanceState, JobState
from everstep.ports import Clock

_WHY = 500
"""So much of why a machine was not let in goes into the journal, characters."""


class NotYet(EverstepError):
    """The machine's launch has not been answered yet: the agent asks again in a moment (HTTP 503)."""


class Inbox(Protocol):
    """What the desk needs of the controller."""

    def find(self, job: JobId, token: LaunchToken) -> tuple[JobState, InstanceState] | None:
        """The machine of a launch."""
        ...

    def job_of(self, instance: InstanceId) -> JobId | None:
        """The job a machine is for."""
        ...

    def state(self, job: JobId) -> JobState | None:
        """The job as it is now, ended ones included."""
        ...

    def newest_attempt(self, job: JobId) -> int:
        """The highest number of an attempt that is known to have been given out."""
        ...

    def put(self, job: JobId, event: Event) -> Awaitable[None]:
        """Hands an event over; what is returned can be awaited until it is durable."""
        ...


@dataclass(frozen=True, slots=True)
class _Standing:
    """Orders in force. As text they take a fifth of the memory, and there is one for every machine."""

    version: int
    text: bytes


_NONE = _Standing(0, b"")
_WARNING_CHARS = 500
_SIGNS_OF_LIFE = (h.MSG_HEARTBEAT, h.MSG_PROGRESS)


def _ring(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def _believed(machine: InstanceState, proof: Mapping[str, str]) -> None:
    """Every machine is who it says."""


class AgentDesk:
    """The ``AgentLink`` of the live loop.

    Args:
        key: secret of the deployment; join tokens and credentials are derived from it, so that none is ever stored.
        inbox: where events go.
        clock: for long polls and versions of orders.
        lease_s, heartbeat_s: told to the agents.
        identify: called with what a machine shows of itself when it joins; raises NotAuthorized.
    """

    def __init__(
        self,
        *,
        key: bytes,
        inbox: Inbox,
        clock: Clock,
        telemetry: Telemetry,
        lease_s: float,
        heartbeat_s: float,
        identify: Callable[[InstanceState, Mapping[str, str]], Awaitable[None]] = _believed,
    ) -> None:
        """See the class."""
        self._key = key
        self._inbox = inbox
        self._clock = clock
        self._telemetry = telemetry
        self._lease_s = lease_s
        self._heartbeat_s = heartbeat_s
        self._identify = identify
        self._orders: dict[InstanceId, _Standing] = {}
        self._waiting: dict[InstanceId, tuple[asyncio.Future[None], ...]] = {}
        self._version = 0
        self._acked: dict[InstanceId, int] = {}
        self._joins: dict[InstanceId, int] = {}
        self.on_failure: Callable[[InstanceId], None] = lambda instance: None
        self.on_orders: Callable[[InstanceId, Mapping[str, Any]], None] = lambda instance, document: None

    # --- Secrets ----------------------------------------------------------------------------------------------------

    def _mac(self, *parts: str) -> str:
        text = "\x1f".join(parts).encode(errors="surrogatepass")
        return hmac.digest(self._key, text, "sha256").hex()[:40]

    def _is_mac(self, mac: str, *parts: str) -> bool:
        return hmac.compare_digest(mac.encode(errors="surrogatepass"), self._mac(*parts).encode())

    def join_token(self, job: JobId, token: LaunchToken) -> str:
        """The one-time token of a launch, for its user data."""
        return f"{job}.{token}.{self._mac('join', job, token)}"

    def _credential(self, job: JobId, instance: InstanceId) -> str:
        return f"{job}.{instance}.{self._mac('credential', job, instance)}"

    def bearer(self, credential: str) -> tuple[JobId, InstanceId]:
        """Job and machine that a credential was given out for; raises NotAuthorized."""
        job, _, rest = credential.partition(".")
        instance, _, mac = rest.rpartition(".")
        if not self._is_mac(mac, "credential", job, instance):
            raise NotAuthorized("unknown credential")
        return JobId(job), InstanceId(instance)

    # --- Join -------------------------------------------------------------------------------------------------------

    async def join(self, token: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Lets a machine in.

        Raises:
            NotAuthorized: a wrong token, a machine that is not (or no longer) part of its job, or one that cannot
                prove who it is where its provider says it can.
            HandshakeMismatch: the agent speaks no version that we do.
            NotYet: the launch has not been answered yet.
            Conflict: the token was used by another machine.
        """
        job, _, rest = token.partition(".")
        launch, _, mac = rest.rpartition(".")
        if not self._is_mac(mac, "join", job, launch):
            raise NotAuthorized("unknown join token")
        self._check_versions(body)
        found = self._inbox.find(JobId(job), LaunchToken(launch))
        if found is None:
            raise NotAuthorized(f"job {job} knows no such launch")
        _, machine = found
        if machine.instance is None:
            if not machine.alive:
                raise NotAuthorized("this launch was given up")
            raise NotYet("the launch has not been answered yet")
        if str(body.get(h.JOIN_INSTANCE)) != machine.instance:
            raise Conflict("this token belongs to another machine")
        if not machine.alive:
            raise NotAuthorized("this machine has been given up")
        try:
            await self._identify(machine, _proof(body))
        except NotAuthorized as error:
            if machine.phase is InstancePhase.BOOTING and machine.barred_at is None:
                await self._inbox.put(JobId(job), InstanceBarred(machine.instance, str(error)[:_WHY]))
            raise
        event = self._joined(machine.instance, body)
        self._telemetry.word(machine.instance, self._clock.now())
        await self._inbox.put(JobId(job), event)
        reach("join.after")
        if self._inbox.job_of(machine.instance) is None:
            raise NotAuthorized("this machine has been given up")  # while we waited for the journal
        # An agent that was started anew counts its messages from 1 again.
        self._acked[machine.instance] = 0
        self._joins[machine.instance] = self._joins.get(machine.instance, 0) + 1
        return {
            "credential": self._credential(JobId(job), machine.instance),
            "handshake": h.HANDSHAKE_VERSION,
            "lease_s": self._lease_s,
            "heartbeat_s": self._heartbeat_s,
            "orders": self._document(machine.instance),
        }

    @staticmethod
    def _check_versions(body: Mapping[str, Any]) -> None:
        try:
            oldest, newest = (int(v) for v in body[h.JOIN_HANDSHAKE])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise BadInput(Problem("join", h.JOIN_HANDSHAKE, "expected [oldest, newest]")) from error
        if newest < h.OLDEST_HANDSHAKE_VERSION or oldest > h.HANDSHAKE_VERSION:
            raise HandshakeMismatch(
                f"the agent speaks handshake {oldest} to {newest}, this server "
                f"{h.OLDEST_HANDSHAKE_VERSION} to {h.HANDSHAKE_VERSION}"
            )

    @staticmethod
    def _joined(instance: InstanceId, body: Mapping[str, Any]) -> InstanceJoined:
        try:
            return InstanceJoined(
                instance=instance,
                address=str(body[h.JOIN_ADDRESS]),
                probe_port=int(body[h.JOIN_PROBE_PORT]),
                gpus=int(body.get(h.JOIN_GPUS) or 0),
                agent=str(body.get(h.JOIN_AGENT) or "")[:100],
                booted_at=finite(body.get(h.JOIN_BOOTED_AT) or 0.0),
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise BadInput(Problem("join", "", f"malformed: {error!r}")) from error

    # --- Reports ----------------------------------------------------------------------------------------------------

    async def report(
        self, instance: InstanceId, messages: Sequence[Mapping[str, Any]], *, given_for: JobId | None = None
    ) -> dict[str, int]:
        """Takes messages in; answers once what is journalled of them is durable.

        Args:
            instance: who tells.
            messages: of the handshake.
            given_for: the job of its credential. Facts of a machine that has ended, or that has another job by now, are
                taken in for that job.

        Raises:
            BadInput: a message that nobody understands; those before it were taken in.
            NotAuthorized: the machine is not part of a job any more, and told no fact.
        """
        job = self._inbox.job_of(instance)
        if job is None or given_for not in (None, job):
            return await self._last_words(given_for, instance, messages)
        now = self._clock.now()
        self._telemetry.word(instance, now)
        durable: list[Awaitable[None]] = []
        acked, joins = self._acked.get(instance, 0), self._joins.get(instance, 0)
        for message in messages:
            seq = _seq(message)
            if seq and seq <= acked:
                continue
            durable.extend(self._take(job, instance, message, now))
            acked = max(acked, seq)
        for future in durable:
            await future
        if durable:
            reach("report.before_ack")
        # The machine may have gone, or its agent may have been started anew, while we waited for the journal.
        if joins == self._joins.get(instance, 0) and self._inbox.job_of(instance) is not None:
            self._acked[instance] = max(acked, self._acked.get(instance, 0))
        return {"ack": acked, "orders_version": self._orders.get(instance, _NONE).version}

    async def _last_words(
        self, job: JobId | None, instance: InstanceId, messages: Sequence[Mapping[str, Any]]
    ) -> dict[str, int]:
        """What was on the way when its machine ended: facts are always accepted, bill and cause depend on them.

        Signs of life alone are refused: an agent that outlived its machine's place has to hear that it is not wanted.
        """
        state = None if job is None else self._inbox.state(job)
        machine = None if state is None else state.by_instance(instance)
        known = machine is not None and not machine.alive and machine.joined_at is not None
        seqs = [_seq(message) for message in messages]
        facts = [message for message in messages if message.get("kind") not in _SIGNS_OF_LIFE]
        if job is None or not known or not facts:
            raise NotAuthorized(f"machine {instance} is not part of a job any more")
        durable: list[Awaitable[None]] = []
        for message in facts:
            if message.get("kind") == h.MSG_EXEC_ENDED:
                _check_rc(message)
            elif (event := to_event(instance, message)) is not None:
                durable.append(self._inbox.put(job, event))
        for future in durable:
            await future
        return {"ack": max(seqs), "orders_version": _NONE.version}

    def _take(self, job: JobId, instance: InstanceId, message: Mapping[str, Any], now: float) -> list[Awaitable[None]]:
        kind = message.get("kind")
        if kind == h.MSG_HEARTBEAT:
            return self._heartbeat(job, instance, message)
        if kind == h.MSG_PROGRESS:
            return self._progress(job, instance, message, now)
        if kind == h.MSG_EXEC_ENDED:
            _check_rc(message)  # the book of commands is the server's
            return []
        event = to_event(instance, message)
        if event is None:
            return []
        if kind == h.MSG_ENDED and message.get("outcome") == h.OUTCOME_FAILED:
            self.on_failure(instance)
        return [self._inbox.put(job, event)]

    def _heartbeat(self, job: JobId, instance: InstanceId, message: Mapping[str, Any]) -> list[Awaitable[None]]:
        try:
            attempt = None if message.get("attempt") is None else int(message["attempt"])
            ranks_alive = int(message.get("ranks_alive") or 0)
            warnings = [str(text)[:_WARNING_CHARS] for text in message.get("warnings") or ()]
        except (TypeError, ValueError, OverflowError) as error:
            raise BadInput(Problem("report", "heartbeat", f"malformed message: {error!r}")) from error
        self._telemetry.alive(instance, attempt=attempt, ranks_alive=ranks_alive, warnings=warnings)
        if attempt is not None and attempt > self._inbox.newest_attempt(job):
            # Only a journal that was put back to an earlier hour can know less than an agent.
            text = f"machine {instance} runs attempt {attempt}, which this journal knows nothing of"
            return [self._inbox.put(job, AttemptsSkipped(attempt, text, running=True))]
        return []

    def _progress(
        self, job: JobId, instance: InstanceId, message: Mapping[str, Any], now: float
    ) -> list[Awaitable[None]]:
        try:
            attempt, step = int(message["attempt"]), int(message["step"])
            total = None if message.get("total") is None else int(message["total"])
            metrics = {str(k): float(v) for k, v in (message.get("metrics") or {}).items()}
            first = None if message.get("first_step_at") is None else finite(message["first_step_at"])
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise BadInput(Problem("report", "progress", f"malformed message: {error!r}")) from error
        if not self._telemetry.progress(instance, now, attempt=attempt, step=step, total=total, metrics=metrics):
            return []
        return [self._inbox.put(job, ProgressSeen(instance, attempt, step, total, first if first is not None else now))]

    # --- Orders -----------------------------------------------------------------------------------------------------

    def send(self, instance: InstanceId, orders: Mapping[str, Any]) -> None:
        """Replaces the orders of a machine and wakes its long poll."""
        # Versions grow over restarts of the server, too: they begin at the clock's milliseconds.
        self._version = max(self._version + 1, int(self._clock.now() * 1000))
        document = {**orders, h.ORDERS_VERSION: self._version}
        self._orders[instance] = _Standing(self._version, json.dumps(document, separators=(",", ":")).encode())
        for future in self._waiting.pop(instance, ()):
            _ring(future)
        self.on_orders(instance, document)

    def _document(self, instance: InstanceId) -> dict[str, Any] | None:
        standing = self._orders.get(instance)
        return None if standing is None else json.loads(standing.text)

    async def orders(self, instance: InstanceId, *, seen: int, wait_s: float) -> dict[str, Any] | None:
        """The orders as soon as they differ from version ``seen``; None after ``wait_s`` seconds.

        Raises:
            NotAuthorized: the machine is not part of a job any more.
        """
        if self._inbox.job_of(instance) is None:
            raise NotAuthorized(f"machine {instance} is not part of a job any more")
        self._telemetry.word(instance, self._clock.now())
        standing = self._orders.get(instance)
        if standing is not None and standing.version != seen:
            return self._document(instance)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._waiting[instance] = (*self._waiting.get(instance, ()), future)
        timer = loop.call_later(max(min(wait_s, 60.0), 0.0), _ring, future)
        try:
            await future
        finally:
            timer.cancel()
            self._leave(instance, future)
        return self._document(instance) if self._orders.get(instance, _NONE) != (standing or _NONE) else None

    def _leave(self, instance: InstanceId, future: asyncio.Future[None]) -> None:
        rest = tuple(other for other in self._waiting.get(instance, ()) if other is not future)
        if rest:
            self._waiting[instance] = rest
        else:
            self._waiting.pop(instance, None)

    def forget(self, instance: InstanceId) -> None:
        """The machine is gone."""
        self._orders.pop(instance, None)
        self._acked.pop(instance, None)
        self._joins.pop(instance, None)
        for future in self._waiting.pop(instance, ()):
            _ring(future)


def _proof(body: Mapping[str, Any]) -> Mapping[str, str]:
    found = body.get(h.JOIN_IDENTITY) or {}
    if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
        raise BadInput(Problem("join", h.JOIN_IDENTITY, "expected a mapping of names to texts"))
    return found


def _seq(message: Mapping[str, Any]) -> int:
    try:
        return int(message.get("seq") or 0)
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise BadInput(Problem("report", "seq", f"malformed message: {error!r}")) from error


def _check_rc(message: Mapping[str, Any]) -> None:
    try:
        int(message.get("rc") or 0)
    except (TypeError, ValueError, OverflowError) as error:
        raise BadInput(Problem("report", h.MSG_EXEC_ENDED, f"malformed message: {error!r}")) from error
