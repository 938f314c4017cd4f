"""Connections that hold little while they wait: most of the server's are agents that wait for orders or for news.

The protocol is uvicorn's. What it keeps for each connection is made when it is needed instead of beforehand (a
``deque`` or an ``asyncio.Event`` takes most of a KiB, and there were three), a request's things go with its answer
instead of with the next request, and all quiet connections share one timer. Small requests of an application that has
a counter for them (``server.counter``) are answered there, without a task.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from everstep.server.counter import CLOSING, Counter, Direct, Reply, heading

WHEN_GONE = "everstep.when_gone"
"""ASGI extension: ``when_gone(act)`` calls ``act`` once the peer is gone; ``when_gone(None)`` takes it back."""

Act = Callable[[], object]


class Connection(HttpToolsProtocol):
    """One connection of an agent or a user.

    Attributes:
        quiet_since: monotonic seconds at which its last answer was sent; None while something is under way.
    """

    # With more in it uvicorn's own ``__dict__`` would outgrow what objects of a class share.
    __slots__ = ("_act", "_counter", "_shown", "quiet_since")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """As uvicorn's."""
        super().__init__(*args, **kwargs)
        self.quiet_since: float | None = None
        self._act: Act | None = None
        self._counter: Counter | None = getattr(self.app, "counter", None)
        self._shown: tuple[bytes, object] | None = None
        self.pipeline = _Queue()  # type: ignore[assignment]
        self.cycle = _OVER  # type: ignore[assignment]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See ``asyncio.Protocol``."""
        super().connection_made(transport)  # type: ignore[arg-type]
        self.flow = _Flow(transport)
        self.server = None if self.server is None else (sys.intern(self.server[0]), self.server[1])
        self.client = None if self.client is None else (sys.intern(self.client[0]), self.client[1])

    def connection_lost(self, exc: Exception | None) -> None:
        """See ``asyncio.Protocol``."""
        super().connection_lost(exc)
        # What was asked knows this connection by ``when_gone``: a ring, which only the collector would find.
        self.pipeline.clear()
        self._let_go()
        act, self._act = self._act, None
        if act is not None:
            act()

    def when_gone(self, act: Act | None) -> None:
        """Calls ``act`` once the peer is gone, at once if it is; None: nobody wants to know any more."""
        if act is not None and self.transport.is_closing():
            act()
        else:
            self._act = act

    def on_message_begin(self) -> None:
        """A request begins; its scope is made once it is clear that it needs one."""
        self.url = b""
        self.expect_100_continue = False
        self.headers = []
        self.quiet_since = None

    def on_headers_complete(self) -> None:
        """A request is there but for its body."""
        if self.transport.is_closing():
            self.cycle = _OVER  # type: ignore[assignment]  # sent behind one that closed the connection
            return
        if self._goes_to_counter():
            self.cycle = Direct(keep_alive=self.parser.should_keep_alive())  # type: ignore[assignment]
            return
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.headers, self.expect_100_continue = url, headers, expects
        self.scope["headers"] = headers
        self.scope["extensions"] = {WHEN_GONE: self.when_gone}  # type: ignore[dict-item]
        super().on_headers_complete()
        # The request's task has not run yet: nobody waits for the one that is replaced.
        self.cycle.message_event = _Signal()  # type: ignore[assignment]

    def on_message_complete(self) -> None:
        """A request is there with its body: only its scope holds its headers from now on."""
        cycle: object = self.cycle
        if isinstance(cycle, Direct):
            self._ask_counter(cycle)
            return
        super().on_message_complete()
        self.headers = []
        self.url = b""

    def _goes_to_counter(self) -> bool:
        """Whether the request is answered without a task of its own: the usual small ones, one at a time."""
        counter = self._counter
        if counter is None or self.url != counter.url or self.parser.get_method() != b"POST":
            return False
        length = next((value for name, value in self.headers if name == b"content-length"), None)
        return (
            length is not None
            and int(length) <= counter.most_bytes
            and self.parser.get_http_version() == "1.1"
            and not self.parser.should_upgrade()
            and not self.expect_100_continue
            and self.cycle.response_complete
            # Who does not read answers is not read from: uvicorn's own way does that.
            and not self.flow.write_paused
        )

    def _ask_counter(self, direct: Direct) -> None:
        assert self._counter is not None
        given = next((value for name, value in self.headers if name == b"authorization"), b"")
        self.headers = []
        self.url = b""
        shown = self._shown
        try:
            # Whoever was believed on this connection is believed again for showing the very same.
            if shown is None or shown[0] != given:
                shown = self._shown = (given, self._counter.who(given))
            answered = self._counter.begin(shown[1], direct.body)
        except Exception as error:
            answered = self._counter.refusal(error)
        if isinstance(answered, tuple):
            self._answer(direct, answered)
            return
        task = self.loop.create_task(self._answer_later(direct, answered))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _answer_later(self, direct: Direct, answered: Awaitable[Reply]) -> None:
        assert self._counter is not None
        try:
            reply = await answered
        except Exception as error:
            reply = self._counter.refusal(error)
        self._answer(direct, reply)

    def _answer(self, direct: Direct, reply: Reply) -> None:
        """Head and body in one write: each costs a system call."""
        status, body = reply
        direct.response_complete = True
        if not self.transport.is_closing():
            keep = direct.keep_alive and status not in CLOSING
            head = heading(status, len(body), self.server_state.default_headers, keep_alive=keep)
            self.transport.write(head + body)
            if not keep:
                self.transport.close()
        self.on_response_complete()

    def on_response_complete(self) -> None:
        """An answer was sent: nothing of the request is held any longer."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            self._start_asgi_task(cycle, app)
            return
        self.quiet_since = time.monotonic()
        self._let_go()

    def _let_go(self) -> None:
        self.cycle = _OVER  # type: ignore[assignment]
        self.scope = None  # type: ignore[assignment]
        self.headers = []
        self.url = b""

    def _unset_keepalive_if_required(self) -> None:
        """Something came, or the connection ends."""
        self.quiet_since = None

    def close_if_quiet(self, since: float) -> None:
        """Closes it if nothing has been under way since that monotonic second."""
        if self.quiet_since is not None and self.quiet_since <= since and not self.transport.is_closing():
            self.transport.close()


class _Queue(list[Any]):
    """Requests that came before the answer to the one before them: nearly always none."""

    __slots__ = ()

    def appendleft(self, item: object) -> None:
        self.insert(0, item)


class _Signal:
    """As much of ``asyncio.Event`` as a request needs, made for one that nobody waits for."""

    __slots__ = ("_set", "_waiting")

    def __init__(self, *, is_set: bool = False) -> None:
        self._set = is_set
        self._waiting: list[asyncio.Future[None]] | None = None

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        waiting, self._waiting = self._waiting, None
        for future in waiting or ():
            if not future.done():
                future.set_result(None)

    def clear(self) -> None:
        self._set = False

    async def wait(self) -> bool:
        if self._set:
            return True
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting = [*(self._waiting or ()), future]
        try:
            await future
        finally:
            # One that was given up; those that were woken are out already.
            if self._waiting and future in self._waiting:
                self._waiting.remove(future)
        return True


class _Flow(FlowControl):
    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self.read_paused = False
        self.write_paused = False
        self._is_writable_event = _Signal(is_set=True)  # type: ignore[assignment]


class _Over:
    """A request that was answered, for a connection that has no other."""

    response_complete = True
    disconnected = False
    keep_alive = True
    message_event = _Signal()


_OVER = _Over()
