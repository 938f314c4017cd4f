"""Files between this machine and a bucket, by URLs that the server signs: our credential stays with us.

A URL is for one object and good for minutes. What does not work is no error here: whoever moves a file asks for a new
URL, a few times, and goes through the server then.
"""

from __future__ import annotations

import http.client
import os
import ssl
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import IO, Any, BinaryIO
from urllib.parse import urlsplit

from everstep.agent.link import Refused, Session
from everstep.model import handshake as hs

TRIES = 3
"""So often in a row the bucket may fail before the server itself is asked."""
_TIMEOUT_S = 60.0
_PIECE = 1 << 20


class Failed(Exception):
    """The bucket did not do it; the text says what it said. A new URL may help."""


def ask(session: Session, what: str, asked: Mapping[str, Any]) -> dict[str, Any] | None:
    """What the server says to ``PATH_FILES``; None: not by URL.

    Raises:
        LinkDown, Refused: see :mod:`everstep.agent.link`.
    """
    try:
        told = session.post_json(hs.PATH_FILES + what, dict(asked), timeout_s=_TIMEOUT_S)
    except Refused as error:
        if error.status == 404:  # a server that is older than we are
            return None
        raise
    return told if told.get("by_url") is True else None


class Bucket:
    """The way to whatever host the URLs name; its connections are kept. For one thread, in a ``with``."""

    def __init__(self) -> None:
        self._lines: dict[str, http.client.HTTPConnection] = {}

    def __enter__(self) -> Bucket:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for line in self._lines.values():
            line.close()

    def fetch(self, url: str, file: BinaryIO, size: int) -> None:
        """Write an object of ``size`` bytes into ``file``, from its beginning.

        Raises:
            Failed: it is not there in full, whatever the reason.
            OSError: ``file`` cannot be written.
        """
        file.seek(0)
        file.truncate()
        response = self._ask("GET", url)
        if response.length is not None and response.length != size:
            self._hang_up(url)
            raise Failed(f"it has {response.length} bytes, not {size}")
        while size:
            piece = self._read(url, response, min(size, _PIECE))
            file.write(piece)
            size -= len(piece)
        self._read(url, response, _PIECE, at_end=True)

    def store(self, url: str, file: IO[bytes], start: int, size: int) -> None:
        """Make a stretch of ``file`` an object. Raises Failed."""
        self._read(url, self._ask("PUT", url, _pieces(file, start, size), size), _PIECE, at_end=True)

    def _ask(
        self, method: str, url: str, body: Iterator[bytes] | None = None, size: int = 0
    ) -> http.client.HTTPResponse:
        """The answer, whose body is yet to be read. Raises Failed unless it is one of success."""
        parts = urlsplit(url)
        line = self._lines.get(parts.netloc)
        if line is None:
            line = self._lines[parts.netloc] = _line(parts.scheme, parts.netloc)
        headers = {} if body is None else {"Content-Length": str(size), "Content-Type": "application/octet-stream"}
        try:
            line.request(method, f"{parts.path}?{parts.query}", body=body, headers=headers)
            response = line.getresponse()
            if response.status == 200:
                return response
            said = f"HTTP {response.status} {response.read(300).decode(errors='replace')}"
        except (OSError, http.client.HTTPException) as error:
            said = f"{type(error).__name__}: {error}"
        self._hang_up(url)
        raise Failed(said)

    def _read(self, url: str, response: http.client.HTTPResponse, size: int, *, at_end: bool = False) -> bytes:
        try:
            piece = response.read(size)
        except (OSError, http.client.HTTPException) as error:
            self._hang_up(url)
            raise Failed(f"{type(error).__name__}: {error}") from None
        if not piece and not at_end:
            self._hang_up(url)
            raise Failed("it ended early")
        return piece

    def _hang_up(self, url: str) -> None:
        """The next request goes over a new connection: of this one, something may be unread."""
        self._lines.pop(urlsplit(url).netloc).close()


def _line(scheme: str, netloc: str) -> http.client.HTTPConnection:
    if scheme == "http":
        return http.client.HTTPConnection(netloc, timeout=_TIMEOUT_S)
    return http.client.HTTPSConnection(netloc, timeout=_TIMEOUT_S, context=ssl.create_default_context())


def _pieces(file: IO[bytes], start: int, size: int) -> Iterator[bytes]:
    """A stretch of a file; each piece has the time of one answer, not the whole. A file that became shorter fails."""
    for at in range(start, start + size, _PIECE):
        yield os.pread(file.fileno(), min(_PIECE, start + size - at), at)
