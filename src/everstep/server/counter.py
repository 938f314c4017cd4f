"""A counter for small requests that come by the thousand: they are answered where they arrive.

An ASGI application costs each request a task, a scope, two messages out and two system calls for its answer, several
times what a heartbeat itself takes. An application that has an attribute ``counter`` gets the requests for its one URL
handed over whole, by our own connections; everything unusual about a request (a large body, one that comes in chunks,
HTTP/1.0, an ``Expect``, a request before the answer to the last one) sends it the usual way, to the same application.
"""

from __future__ import annotations

import types
from collections.abc import Coroutine, Generator, Sequence
from typing import Any, Protocol, TypeVar

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

Reply = tuple[int, bytes]
"""Status and a JSON body."""
T = TypeVar("T")

CLOSING = (401, 413)
"""Answers after which the connection is closed: bodies that were refused unread would have to be read to keep it."""


class Counter(Protocol):
    """What an application offers.

    Attributes:
        url: of the requests, all of them POST, as it stands in their first line.
        most_bytes: in the body of one.
    """

    url: bytes
    most_bytes: int

    def who(self, authorization: bytes) -> object:
        """Who asks, by the value of the header, always the same for the same value; raises for a stranger."""
        ...

    def begin(self, who: object, body: bytes) -> Reply | Coroutine[Any, Any, Reply]:
        """The answer, or what to await for it; may raise."""
        ...

    def refusal(self, error: Exception) -> Reply:
        """The answer to a request that raised."""
        ...


class Direct:
    """A request at the counter, in the place of uvicorn's cycle."""

    __slots__ = ("body", "disconnected", "keep_alive", "message_event", "more_body", "response_complete")

    def __init__(self, *, keep_alive: bool) -> None:
        self.body = b""
        self.disconnected = False
        self.keep_alive = keep_alive
        self.message_event = _NOBODY
        self.more_body = True
        self.response_complete = False


class _Nobody:
    """Nobody waits for the body: the request is handed over when it is whole."""

    def set(self) -> None:
        """Tells nobody."""


_NOBODY = _Nobody()


def begun(work: Coroutine[Any, Any, T]) -> T | Coroutine[Any, Any, T]:
    """Runs a coroutine up to where it has to wait: its result if it never has to, else what is left of it to await.

    What Python 3.12 calls an eager task. The coroutine must not ask for the current task before it first waits.
    """
    try:
        waits_for = work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    return _rest(work, waits_for)


async def _rest(work: Coroutine[Any, Any, T], waits_for: Any) -> T:
    result: T = await _go_on(work, waits_for)
    return result


@types.coroutine
def _go_on(work: Coroutine[Any, Any, T], waits_for: Any) -> Generator[Any, Any, T]:
    while True:
        told: BaseException | None = None
        try:
            yield waits_for
        except BaseException as error:
            told = error
        try:
            waits_for = work.send(None) if told is None else work.throw(told)
        except StopIteration as end:
            result: T = end.value
            return result


_Fields = Sequence[tuple[bytes, bytes]]
_ends: tuple[_Fields, bytes] = ((), b"")


def heading(status: int, size: int, fields: _Fields, *, keep_alive: bool) -> bytes:
    """Everything before the body. ``fields``: what every answer has, in a list that is replaced when it changes."""
    global _ends
    if _ends[0] is not fields:
        _ends = (fields, b"".join(b"%s: %s\r\n" % field for field in fields))
    close = b"" if keep_alive else b"connection: close\r\n"
    return b"%s%scontent-type: application/json\r\ncontent-length: %d\r\n%s\r\n" % (
        STATUS_LINE[status], _ends[1], size, close,
    )  # fmt: skip
