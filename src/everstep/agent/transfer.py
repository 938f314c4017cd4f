"""Files between this machine and a bucket, by URLs that the server signs: our credential stays with us.

A URL is for one object and good for minutes. What does not work is no error here: whoever moves a file asks for a new
URL, a few times, and goes through the server then.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import ssl
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Any, BinaryIO
from urllib.parse import urlsplit

from everstep.agent.link import LinkDown, Refused, Session
from everstep.model import handshake as hs

TRIES = 3
"""So often in a row the bucket may fail before the server itself is asked."""
_CONNECT_S = 10.0
_TIMEOUT_S = 60.0
_IDLE_S = 4.0  # stores hang up on whoever is silent for longer than that
_PIECE = 1 << 20
_SAID = 4096
_CODE = re.compile(rb"<Code>(\w{1,80})</Code>")


class Failed(Exception):
    """The bucket did not do it; the text says what it said. A new URL may help."""


@dataclass(frozen=True)
class Put:
    """A stretch of a file, in bytes, and the URL to which it goes."""

    url: str
    start: int
    bytes: int


def folder(session: Session, sha256: str) -> tuple[str, int] | None:
    """URL and size in bytes of an uploaded folder; None: not by URL.

    Raises:
        LinkDown, Refused: see :mod:`everstep.agent.link`.
    """
    told = _ask(session, "folder", {"sha256": sha256})
    if told is None:
        return None
    with _sense():
        return str(told["url"]), int(told["bytes"])


def missing(session: Session, path: str, size: int, sha256: str) -> list[Put] | None:
    """What of an output is to be stored; empty: it is all there, and kept; None: not by URL. Raises as `folder`."""
    told = _ask(session, "output", {"path": path, "bytes": size, "sha256": sha256})
    if told is None:
        return None
    with _sense():
        return [Put(str(put["url"]), int(put["start"]), int(put["bytes"])) for put in told["puts"]]


def _ask(session: Session, what: str, asked: Mapping[str, Any]) -> dict[str, Any] | None:
    try:
        told = session.post_json(hs.PATH_FILES + what, dict(asked), timeout_s=_TIMEOUT_S)
    except Refused as error:
        if error.status == 404:  # a server that is older than we are
            return None
        raise
    return told if told.get("by_url") is True else None


@contextlib.contextmanager
def _sense() -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, ValueError):
        raise LinkDown("the server's answer about files makes no sense") from None


class Bucket:
    """The way to whatever host the URLs name; its connections are kept. For one thread, in a ``with``.

    It is ``hopeless`` once nothing came through three times in a row: there may be no way from here to there at all.
    """

    def __init__(self) -> None:
        self._lines: dict[str, http.client.HTTPConnection] = {}
        self._failed = 0
        self._used = 0.0

    @property
    def hopeless(self) -> bool:
        """Whether the server itself is to be asked from now on."""
        return self._failed >= TRIES

    def __enter__(self) -> Bucket:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hang_up()

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
            raise self._failure(f"it has {response.length} bytes, not {size}")
        while size:
            piece = self._read(response, min(size, _PIECE))
            file.write(piece)
            size -= len(piece)
        self._read(response, _PIECE, at_end=True)
        self._failed = 0

    def store(self, url: str, file: IO[bytes], start: int, size: int) -> None:
        """Make a stretch of ``file`` an object. Raises Failed."""
        self._read(self._ask("PUT", url, _pieces(file, start, size), size), _PIECE, at_end=True)
        self._failed = 0

    def _ask(
        self, method: str, url: str, body: Iterator[bytes] | None = None, size: int = 0
    ) -> http.client.HTTPResponse:
        """The answer, whose body is yet to be read. Raises Failed unless it is one of success."""
        parts = urlsplit(url)
        headers = {} if body is None else {"Content-Length": str(size), "Content-Type": "application/octet-stream"}
        if time.monotonic() - self._used > _IDLE_S:
            self._hang_up()
        try:
            line = self._lines.get(parts.netloc)
            if line is None:
                line = self._lines[parts.netloc] = _line(parts.scheme, parts.netloc)
            line.request(method, f"{parts.path}?{parts.query}", body=body, headers=headers)
            response = line.getresponse()
            if response.status == 200:
                return response
            # Of its words no more than the code: the others may show who signed, and what.
            code = _CODE.search(response.read(_SAID))
            said = f"HTTP {response.status}" + (f" {code[1].decode()}" if code else "")
        except (OSError, http.client.HTTPException) as error:
            said = f"{type(error).__name__}: {error}"
        raise self._failure(said)

    def _read(self, response: http.client.HTTPResponse, size: int, *, at_end: bool = False) -> bytes:
        try:
            piece = response.read(size)
        except (OSError, http.client.HTTPException) as error:
            raise self._failure(f"{type(error).__name__}: {error}") from None
        if not piece and not at_end:
            raise self._failure("it ended early")
        self._used = time.monotonic()
        return piece

    def _failure(self, said: str) -> Failed:
        """What to raise. The next request goes over a new connection: of this one, something may be unread."""
        self._hang_up()
        self._failed += 1
        return Failed(said)

    def _hang_up(self) -> None:
        while self._lines:
            self._lines.popitem()[1].close()


def _line(scheme: str, netloc: str) -> http.client.HTTPConnection:
    """A new connection. Raises OSError."""
    if scheme == "http":
        line = http.client.HTTPConnection(netloc, timeout=_CONNECT_S)
    else:
        line = http.client.HTTPSConnection(netloc, timeout=_CONNECT_S, context=ssl.create_default_context())
    line.connect()
    line.sock.settimeout(_TIMEOUT_S)
    return line


def _pieces(file: IO[bytes], start: int, size: int) -> Iterator[bytes]:
    """A stretch of a file; each piece has the time of one answer, not the whole."""
    for at in range(start, start + size, _PIECE):
        length = min(_PIECE, start + size - at)
        piece = os.pread(file.fileno(), length, at)
        if len(piece) != length:
            raise OSError("the file became shorter")  # or the other side would wait for the rest
        yield piece
