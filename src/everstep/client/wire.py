"""HTTP to the server with the standard library: a command must not pay for loading more before it can ask its
question.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Any
from urllib.parse import urlencode, urlsplit

from everstep.agent.pin import PinnedConnection, WrongCertificate
from everstep.client.home import NoServer
from everstep.model.errors import BadInput, Conflict, EverstepError, NotAuthorized, NotFound, Problem

_PIECE = 1 << 20
_IDEMPOTENT = ("GET", "HEAD")
_LOOK_S = 2.0
_NOT_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE")


class ServerTrouble(EverstepError):
    """The server failed, or said something that we do not understand."""


class Unavailable(ServerTrouble):
    """The server cannot do that now (disk full, a cloud is away, stopping); the same request may work later."""


class LostAnswer(NoServer):
    """The connection broke after it was there: whether the server heard the request is not known."""


class NotOurServer(NoServer):
    """Somebody else answers there: to wait does not help. Nothing was sent to it."""


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One Server-Sent Event."""

    id: str
    event: str
    data: Any


Body = bytes | IO[bytes] | None


class Wire:
    """Requests to one server.

    Threads may share it: plain requests take turns on one connection, each stream has its own.
    """

    def __init__(
        self,
        url: str,
        token: str,
        *,
        timeout_s: float = 60.0,
        certificate: str = "",
        fingerprint: str = "",
        hint: Callable[[], str] = lambda: "",
    ) -> None:
        """Connects on first use.

        Args:
            url: base URL of the server.
            token: bearer token.
            timeout_s: how long to wait for an answer to begin, or to go on.
            certificate: file with the certificate to trust for ``https``; empty = the system's authorities.
            fingerprint: SHA-256 of the one certificate to trust for ``https``; then nothing else about it counts.
            hint: asked when nobody listens at ``url``; what to tell the user beside that.
        """
        self.url = url.rstrip("/")
        self._split = urlsplit(self.url)
        if self._split.scheme not in ("http", "https") or not self._split.hostname:
            raise BadInput(Problem("", "url", f"'{url}' is not the URL of a server", "write http://HOST:PORT"))
        self._headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
        self._timeout_s = timeout_s
        self._certificate = certificate
        self._fingerprint = fingerprint
        self._hint = hint
        self._connection: http.client.HTTPConnection | None = None
        self._lock = threading.Lock()

    def close(self) -> None:
        """Drops the connection; the next request opens a new one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def ask(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        value: Any = None,
        body: Body = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """One exchange.

        Args:
            method, path: what to ask; the path starts with ``/``.
            query: parameters; those that are None are left out.
            value: JSON to send.
            body: raw bytes or an open file to send instead.
            headers: further ones.

        Returns:
            The JSON of the answer, None for an empty one.

        Raises:
            NoServer: nobody answers; ``LostAnswer`` if the request may have been heard all the same.
            NotFound, Conflict, NotAuthorized, BadInput, Unavailable, ServerTrouble: the server said no.
        """
        sent = {**self._headers, **(headers or {})}
        if value is not None:
            body = json.dumps(value).encode()
            sent["Content-Type"] = "application/json"
        elif body is not None:
            sent["Content-Type"] = "application/octet-stream"
        with self._lock:
            status, data = self._exchange(method, _target(self._split.path, path, query), body, sent)
        if status >= 400:
            raise _refusal(status, data)
        return _json(data) if data else None

    def _exchange(self, method: str, target: str, body: Body, headers: dict[str, str]) -> tuple[int, bytes]:
        reused = self._connection is not None
        while True:
            reached = self._connection is not None
            try:
                if self._connection is None:
                    self._connection = self._connect()
                    self._connection.connect()
                    reached = True
                response = _answer(self._connection, method, target, body, headers)
                data = response.read()
            except (OSError, http.client.HTTPException) as error:
                self.close()
                # A server may close an idle connection just as we use it. Once, and only what cannot be done twice by
                # that.
                if reused and method in _IDEMPOTENT:
                    reused = False
                    continue
                raise self._failure(error, LostAnswer if reached else NoServer) from None
            if response.will_close:
                self.close()
            return response.status, data

    def download(self, path: str, *, query: Mapping[str, Any] | None = None) -> Iterator[bytes]:
        """The body of an answer, piece by piece. Raises as ``ask``."""
        connection, response = self._open(path, query, {})
        try:
            while piece := response.read(_PIECE):
                yield piece
            if response.length:  # to end early is no error for `read`
                raise http.client.IncompleteRead(b"", response.length)
        except (OSError, http.client.HTTPException) as error:
            raise NoServer(f"the server at {self.url} broke off ({_words(error)})") from None
        finally:
            connection.close()

    def stream(self, path: str, *, query: Mapping[str, Any] | None = None, last_id: str = "") -> Iterator[StreamEvent]:
        """Server-Sent Events until the server ends the stream.

        Args:
            path, query: what to ask.
            last_id: id of the last event seen; the server goes on behind it.

        Raises:
            NoServer: the connection broke; go on with ``last_id``. Others as ``ask``.
        """
        headers = {"Accept": "text/event-stream"}
        if last_id:
            headers["Last-Event-ID"] = last_id
        connection, response = self._open(path, query, headers)
        try:
            yield from _events(response)
        except (OSError, http.client.HTTPException) as error:
            raise NoServer(f"the server at {self.url} broke off ({_words(error)})") from None
        finally:
            connection.close()

    def _open(
        self, path: str, query: Mapping[str, Any] | None, headers: Mapping[str, str]
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        connection = None
        try:
            connection = self._connect()
            connection.request("GET", _target(self._split.path, path, query), headers={**self._headers, **headers})
            response = connection.getresponse()
            if response.status < 400:
                return connection, response
            data = response.read()
        except (OSError, http.client.HTTPException) as error:
            if connection is not None:
                connection.close()
            raise self._failure(error, NoServer) from None
        connection.close()
        raise _refusal(response.status, data)

    def _failure(self, error: Exception, kind: type[NoServer]) -> NoServer:
        return (NotOurServer if isinstance(error, WrongCertificate) else kind)(self._silent(error))

    def _silent(self, error: Exception) -> str:
        if isinstance(error, ssl.SSLCertVerificationError):
            return f"the server at {self.url} shows a certificate that is not trusted ({error.verify_message})"
        if isinstance(error, WrongCertificate):
            words = "it is not our server, or it was set up anew; nothing was sent to it"
            return f"who answers at {self.url} shows another certificate than the pinned one: {words}"
        if isinstance(error, ssl.SSLError) and error.reason in _NOT_TLS:
            return f"who answers at {self.url} does not speak TLS: is that the right port?"
        if isinstance(error, http.client.BadStatusLine | ConnectionResetError) and self._speaks_tls():
            return (
                f"the server at {self.url} speaks TLS and answers nobody in the clear: its address begins with https://"
            )
        hint = self._hint() if isinstance(error, ConnectionRefusedError) else ""
        return f"the server at {self.url} does not answer ({_words(error)})" + (f"; {hint}" if hint else "")

    def _speaks_tls(self) -> bool:
        """Asked when something at an ``http`` address hung up on us; it is told nothing."""
        if self._split.scheme != "http":
            return False
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        place = (self._split.hostname or "", self._split.port or 80)
        try:
            with socket.create_connection(place, _LOOK_S) as raw, context.wrap_socket(raw):
                return True
        except OSError:
            return False

    def _connect(self) -> http.client.HTTPConnection:
        host, port = self._split.hostname or "", self._split.port
        if self._split.scheme == "http":
            return http.client.HTTPConnection(host, port, timeout=self._timeout_s)
        if self._fingerprint:
            return PinnedConnection(host, port, fingerprint=self._fingerprint, timeout_s=self._timeout_s)
        try:
            context = ssl.create_default_context(cafile=self._certificate or None)
        except OSError as error:
            words = f"the certificate of the server at {self.url} cannot be read: {self._certificate}"
            raise NoServer(f"{words} ({_words(error)})") from None
        return http.client.HTTPSConnection(host, port, timeout=self._timeout_s, context=context)


def _answer(
    connection: http.client.HTTPConnection, method: str, target: str, body: Body, headers: dict[str, str]
) -> http.client.HTTPResponse:
    try:
        connection.request(method, target, body=body, headers=headers)
    except (BrokenPipeError, ConnectionResetError):
        # The server had enough of a long body and said why before it hung up.
        with contextlib.suppress(OSError, http.client.HTTPException):
            return connection.getresponse()
        raise
    return connection.getresponse()


def _target(base: str, path: str, query: Mapping[str, Any] | None) -> str:
    given = {key: _plain(value) for key, value in (query or {}).items() if value is not None}
    return base.rstrip("/") + path + ("?" + urlencode(given) if given else "")


def _plain(value: Any) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        raise ServerTrouble("the server's answer is not JSON: is that an everstep server?") from None


def _refusal(status: int, data: bytes) -> EverstepError:
    try:
        error = json.loads(data)["error"]
        kind, message = str(error["kind"]), str(error["message"])
        problems = [Problem(p["where"], p["key"], p["message"], p.get("fix", "")) for p in error.get("problems", ())]
    except (ValueError, KeyError, TypeError):
        text = data[:200].decode(errors="replace").strip()
        return ServerTrouble(
            f"the server answered HTTP {status}: {text}" if text else f"the server answered HTTP {status}"
        )
    if kind == "bad_input":
        return BadInput(*(problems or [Problem("", "", message)]))
    types: dict[str, type[EverstepError]] = {
        "not_found": NotFound,
        "conflict": Conflict,
        "not_authorized": NotAuthorized,
        "unavailable": Unavailable,
    }
    return types.get(kind, ServerTrouble)(message)


def _events(response: http.client.HTTPResponse) -> Iterator[StreamEvent]:
    fields: dict[str, str] = {}
    while raw := response.readline():
        line = raw.decode("utf-8", "replace").rstrip("\r\n")
        if line:
            name, _, value = line.partition(":")
            if name:
                fields[name] = value.removeprefix(" ")
        elif fields:
            if "data" in fields:
                yield StreamEvent(fields.get("id", ""), fields.get("event", "message"), _json(fields["data"].encode()))
            fields = {}
