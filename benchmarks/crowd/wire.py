"""HTTP/1.1 over one kept connection, one request at a time: only what the agents' side of the server answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

Answer = Callable[[int, bytes], None]
"""Called with status and body; status 0 = the connection broke, nobody knows whether the request was heard."""


class Channel(asyncio.Protocol):
    """One connection. ``request`` may be called again from inside the answer's callback."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._held = b""
        self._answer: Answer | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    @property
    def open(self) -> bool:
        """Whether requests can be sent."""
        return self._transport is not None

    @property
    def busy(self) -> bool:
        """Whether an answer is awaited."""
        return self._answer is not None

    def request(self, data: bytes, answer: Answer) -> None:
        """Sends a whole request."""
        assert self._transport is not None
        assert self._answer is None
        self._answer = answer
        self._transport.write(data)

    def abort(self) -> None:
        """Closes without a word, as a machine that is gone; the answer is never told."""
        self._answer = None
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    def data_received(self, data: bytes) -> None:
        data = self._held + data if self._held else data
        end = data.find(b"\r\n\r\n")
        if end < 0:
            self._held = data
            return
        size = _content_length(data[:end])
        if len(data) < end + 4 + size:
            self._held = data
            return
        self._held = b""
        answer, self._answer = self._answer, None
        if answer is not None:
            answer(int(data[9:12]), data[end + 4 : end + 4 + size])

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._held = b""
        answer, self._answer = self._answer, None
        if answer is not None:
            answer(0, b"")


def _content_length(head: bytes) -> int:
    lowered = head.lower()
    at = lowered.find(b"content-length:")
    if at < 0:
        return 0
    return int(lowered[at + 15 :].split(b"\r\n", 1)[0])


def head(method: str, path: str, credential: str) -> bytes:
    """The beginning of a request, to which ``Content-Length`` and the body are added."""
    return f"{method} {path} HTTP/1.1\r\nHost: s\r\nAuthorization: Bearer {credential}\r\n".encode()


def whole(beginning: bytes, body: bytes = b"") -> bytes:
    """A request with a JSON body."""
    return b"%sContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (beginning, len(body), body)
