"""HTTP to the server: keep-alive, certificate pinning, and errors that say what to do.

A :class:`Session` belongs to one thread and keeps one connection. :class:`Contact` is shared: it knows when the server
last spoke to us in an orderly way, which is what the lease is about.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import shutil
import ssl
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO
from urllib.parse import urlencode, urlsplit

from everstep.agent.pin import PinnedConnection, WrongCertificate

_MAX_ANSWER = 64 << 20


class LinkDown(Exception):
    """The server cannot be reached, is failing (5xx) or talks nonsense: try again later."""

    def __init__(self, text: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s


class Refused(Exception):
    """The server understood and said no (4xx)."""

    def __init__(self, status: int, error: str) -> None:
        super().__init__(f"HTTP {status}: {error}")
        self.status = status
        self.error = error

    @property
    def fenced(self) -> bool:
        """A newer attempt has replaced what we run."""
        return self.status in (409, 410)

    @property
    def unknown(self) -> bool:
        """The server does not know our credential (any more)."""
        return self.status == 401


class PinMismatch(LinkDown):
    """Somebody else's certificate: not our server."""


class Contact:
    """When the server last answered us properly."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = time.monotonic()

    def touch(self) -> None:
        """The server just answered."""
        with self._lock:
            self._last = time.monotonic()

    def age_s(self) -> float:
        """Seconds since then."""
        with self._lock:
            return time.monotonic() - self._last


class Backoff:
    """Growing pauses, each between half and all of its nominal length: a thousand agents must not call at once."""

    def __init__(self, first_s: float = 0.1, longest_s: float = 3.0) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._next_s = first_s
        self._random = random.Random()

    def reset(self) -> None:
        """It worked: begin small again."""
        self._next_s = self._first_s

    def next_s(self, error: BaseException | None = None) -> float:
        """The pause before the next try; a server's own Retry-After counts as the least."""
        pause = self._next_s * self._random.uniform(0.5, 1.0)
        self._next_s = min(self._longest_s, self._next_s * 2)
        asked = error.retry_after_s if isinstance(error, LinkDown) and error.retry_after_s is not None else 0.0
        return max(pause, min(asked, 60.0))


@dataclass(frozen=True)
class Answer:
    """A 2xx answer."""

    status: int
    body: bytes

    def json(self) -> dict[str, Any]:
        """The JSON object in the body; raises :class:`LinkDown` if it is anything else."""
        try:
            value = json.loads(self.body)
        except ValueError:
            raise LinkDown("the server's answer is not JSON") from None
        if not isinstance(value, dict):
            raise LinkDown("the server's answer is not a JSON object")
        return value


class Session:
    """One keep-alive connection to the server. Not thread-safe, except :meth:`close`."""

    def __init__(self, server: str, *, fingerprint: str, credential: str, contact: Contact | None = None) -> None:
        self._url = urlsplit(server)
        self._fingerprint = fingerprint
        self._credential = credential
        self._contact = contact
        self._connection: http.client.HTTPConnection | None = None

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: bytes | Any | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 10.0,
        sink: BinaryIO | None = None,
    ) -> Answer:
        """One exchange. ``body`` may be bytes or a file object (then give Content-Length in ``headers``).

        With ``sink`` the body of a 2xx answer, of any size, is written there and is empty in the answer.

        Raises:
            LinkDown: no proper answer.
            Refused: a 4xx answer.
        """
        target = self._url.path.rstrip("/") + path + ("?" + urlencode(query) if query else "")
        all_headers = {"Authorization": f"Bearer {self._credential}", **(headers or {})}
        reused = self._connection is not None

        def exchange() -> Answer:
            return self._exchange(method, target, body=body, headers=all_headers, timeout_s=timeout_s, sink=sink)

        try:
            answer = exchange()
        except (http.client.HTTPException, OSError, ValueError) as error:
            self.close()
            # The server may close an idle connection just when we use it: once, on a fresh one, if nothing can be
            # doubled.
            stale = isinstance(error, (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError))
            if not (reused and stale and (body is None or isinstance(body, bytes))):
                raise LinkDown(f"{type(error).__name__}: {error}") from None
            try:
                answer = exchange()
            except (http.client.HTTPException, OSError, ValueError) as again:
                self.close()
                raise LinkDown(f"{type(again).__name__}: {again}") from None
        if self._contact is not None:
            self._contact.touch()
        return answer

    def post_json(self, path: str, value: Any, *, timeout_s: float = 10.0) -> dict[str, Any]:
        """POST a JSON value and return the JSON object of the answer. Raises as :meth:`request`."""
        body = json.dumps(value).encode()
        headers = {"Content-Type": "application/json"}
        return self.request("POST", path, body=body, headers=headers, timeout_s=timeout_s).json()

    def close(self) -> None:
        """Drop the connection; the next request opens a new one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.close()

    def _exchange(
        self,
        method: str,
        target: str,
        *,
        body: Any,
        headers: Mapping[str, str],
        timeout_s: float,
        sink: BinaryIO | None,
    ) -> Answer:
        connection = self._connection
        if connection is None:
            connection = self._connect(timeout_s)
            self._connection = connection
        if connection.sock is not None:
            connection.sock.settimeout(timeout_s)
        connection.request(method, target, body=body, headers=dict(headers))
        response = connection.getresponse()
        if sink is not None and 200 <= response.status < 300:
            shutil.copyfileobj(response, sink)
            data = b""
        else:
            data = response.read(_MAX_ANSWER)
        if response.will_close:
            self.close()
        if 200 <= response.status < 300:
            return Answer(response.status, data)
        text = _error_text(data)
        if response.status in (408, 425, 429) or not 400 <= response.status < 500:
            raise LinkDown(f"HTTP {response.status}: {text}", retry_after_s=_seconds(response.getheader("Retry-After")))
        raise Refused(response.status, text)

    def _connect(self, timeout_s: float) -> http.client.HTTPConnection:
        host, port = self._url.hostname or "", self._url.port
        if self._url.scheme == "http":
            plain = http.client.HTTPConnection(host, port, timeout=timeout_s)
            plain.connect()
            return plain
        if not self._fingerprint:
            secure = http.client.HTTPSConnection(host, port, timeout=timeout_s, context=ssl.create_default_context())
            secure.connect()
            return secure
        pinned = PinnedConnection(host, port, fingerprint=self._fingerprint, timeout_s=timeout_s)
        try:
            pinned.connect()  # nothing of ours was sent yet
        except WrongCertificate as error:
            raise PinMismatch(str(error)) from None
        return pinned


def _error_text(data: bytes) -> str:
    try:
        value = json.loads(data)
        return (
            str(value["error"]) if isinstance(value, dict) and "error" in value else data[:200].decode(errors="replace")
        )
    except ValueError:
        return data[:200].decode(errors="replace")


def _seconds(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None
