"""A socket on which the ranks of this machine ask the server for signed URLs: our credential stays with us.

What comes is passed on as it is, and so is the answer: ``PATH_OBJECTS`` of the handshake. The socket lies in a folder
that only its owner may enter.
"""

from __future__ import annotations

import contextlib
import json
import os
import socketserver
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, Callable

from everstep.agent.link import LinkDown, Refused, Session
from everstep.model import handshake as hs

_MOST_BYTES = 1 << 20
_TIMEOUT_S = 60.0
_ASKED = ("sign", "list", "delete", "create")


class ObjectDesk:
    """Answers on ``path`` from `start` to `close`, each connection in a thread of its own.

    Args:
        path: of the socket. What is there is replaced: it was an earlier agent's.
        new_session: to the server; one for each connection.
    """

    def __init__(self, path: Path, new_session: Callable[[], Session]) -> None:
        self._path = path
        self._new_session = new_session
        self._server: _Server | None = None

    def start(self) -> None:
        """Begin to answer. Raises OSError."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path.parent.chmod(0o700)
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        self._server = _Server(self._path, self._new_session)
        threading.Thread(target=self._server.serve_forever, name="objects", daemon=True).start()

    def close(self) -> None:
        """Answer nobody any more."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            with contextlib.suppress(OSError):
                self._path.unlink()
            self._server = None


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    block_on_close = False  # a rank may hold its connection for as long as it lives

    def __init__(self, path: Path, new_session: Callable[[], Session]) -> None:
        self.new_session = new_session
        # By the folder's descriptor: the path may be longer than what a socket's address can hold.
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            super().__init__(f"/proc/self/fd/{folder}/{path.name}", _Handler)
        finally:
            os.close(folder)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A rank that went away in the middle is nothing to tell of."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def setup(self) -> None:
        super().setup()
        self._session = self.server.new_session()

    def finish(self) -> None:
        self._session.close()
        super().finish()

    def do_POST(self) -> None:
        """Pass one question on."""
        path, _, query = self.path.partition("?")
        what = path[len(hs.PATH_OBJECTS) :]
        length = self.headers.get("Content-Length", "")
        if not path.startswith(hs.PATH_OBJECTS) or what not in _ASKED:
            self._answer(404, _error("no such question"))
        elif not length.isdigit() or int(length) > _MOST_BYTES:
            self.close_connection = True
            self._answer(413, _error("the question is too long"))
        else:
            self._answer(*self._passed_on(path + ("?" + query if query else ""), self.rfile.read(int(length))))

    def _passed_on(self, target: str, body: bytes) -> tuple[int, bytes]:
        try:
            answer = self._session.request("POST", target, body=body, timeout_s=_TIMEOUT_S)
        except Refused as error:
            return error.status, _error(error.error)
        except LinkDown as error:
            return 503, _error(str(error))
        return answer.status, answer.body

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Questions are not logged."""


def _error(text: str) -> bytes:
    return json.dumps({"error": text}).encode()
