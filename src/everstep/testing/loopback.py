"""HTTP on loopback for fakes: served in a thread, every answer that of one function."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True, slots=True)
class Asked:
    """A request. ``target`` is path and query; names of ``headers`` are in lower case."""

    verb: str
    target: str
    headers: Mapping[str, str]
    body: bytes


Reply = tuple[int, bytes, Mapping[str, str]]
"""Status, body and headers; the length of the body is told anyway."""


class Loopback:
    """A server on a port of 127.0.0.1. It accepts connections from now on, and answers once it is started.

    Attributes:
        url: of its root.
    """

    def __init__(
        self, name: str, answer: Callable[[Asked], Reply | None], *, verbs: Sequence[str] = ("GET",), port: int = 0
    ) -> None:
        """Makes a server.

        Args:
            name: of the thread.
            answer: called in a thread for each connection; None breaks it.
            verbs: others are answered with 501.
            port: 0 = a free one.
        """
        serve = {f"do_{verb}": _serve for verb in verbs}
        handler = type("Handler", (_Handler,), {"answer": staticmethod(answer), **serve})
        self._http = _Http(("127.0.0.1", port), handler)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), name=name, daemon=True)

    def start(self) -> None:
        """Answers."""
        self._thread.start()

    def stop(self) -> None:
        """Answers no more, and frees the port."""
        if self._thread.is_alive():
            self._http.shutdown()
            self._thread.join()
        self._http.server_close()


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Callers that are killed while they wait for an answer are no news."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # clients keep connections
    wbufsize = -1  # head and body go out together: the second of two writes would wait for the caller's acknowledgement
    answer: Callable[[Asked], Reply | None]

    def log_message(self, format: str, *args: Any) -> None:
        pass


def _serve(handler: _Handler) -> None:
    length = handler.headers.get("Content-Length", "0")
    body = handler.rfile.read(int(length)) if length.isdigit() else b""
    headers = {name.lower(): value for name, value in handler.headers.items()}
    reply = handler.answer(Asked(handler.command, handler.path, headers, body))
    if reply is None:
        handler.close_connection = True
        handler.connection.shutdown(socket.SHUT_RDWR)
        return
    status, data, said = reply
    handler.send_response(status)
    for name, value in {**said, "Content-Length": str(len(data))}.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(data)
