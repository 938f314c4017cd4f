"""HTTP to the server: pinning, errors by meaning, connections that the server closed."""

from __future__ import annotations

import hashlib
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from everstep.agent.link import Contact, LinkDown, PinMismatch, Refused, Session


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    seen: list[str]
    answers: list[tuple[int, bytes, bool]]

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        type(self).seen.append(self.headers["Authorization"])
        status, body, silently_close = self.answers.pop(0)
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if status == 429:
            self.send_header("Retry-After", "7")
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = silently_close


class Tls(HTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # a client that hung up after seeing the certificate


@pytest.fixture
def http() -> Iterator[tuple[str, type[Handler]]]:
    handler = type("OneHandler", (Handler,), {"seen": [], "answers": []})
    server = HTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", handler
    server.shutdown()
    server.server_close()


def test_errors_by_meaning(http: tuple[str, type[Handler]]) -> None:
    url, handler = http
    contact = Contact()
    session = Session(url, fingerprint="", credential="c", contact=contact)
    handler.answers += [
        (200, b'{"a": 1}', False),
        (200, b"rubbish", False),
        (500, b"oops", False),
        (429, b"", False),
        (409, b'{"error": "fenced"}', False),
        (401, b"no", False),
    ]
    assert session.request("GET", "/").json() == {"a": 1}
    with pytest.raises(LinkDown, match="not JSON"):
        session.request("GET", "/").json()
    with pytest.raises(LinkDown, match="HTTP 500: oops"):
        session.request("GET", "/")
    with pytest.raises(LinkDown) as busy:
        session.request("GET", "/")
    assert busy.value.retry_after_s == 7.0
    with pytest.raises(Refused) as fenced:
        session.request("GET", "/")
    assert (fenced.value.fenced, fenced.value.error) == (True, "fenced")
    with pytest.raises(Refused) as unknown:
        session.request("GET", "/")
    assert unknown.value.unknown
    session.close()
    assert set(handler.seen) == {"Bearer c"}


def test_connection_closed_by_the_server_is_opened_anew(http: tuple[str, type[Handler]]) -> None:
    url, handler = http
    session = Session(url, fingerprint="", credential="c")
    handler.answers += [(200, b"{}", True), (200, b'{"second": 1}', True)]
    assert session.request("GET", "/").json() == {}
    assert session.request("GET", "/").json() == {"second": 1}
    session.close()


def test_nobody_there() -> None:
    with pytest.raises(LinkDown, match="ConnectionRefusedError"):
        Session("http://127.0.0.1:1", fingerprint="", credential="c").request("GET", "/")


def test_only_the_pinned_certificate_gets_the_credential(tmp_path: Path) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs the openssl command to make a certificate")
    pem, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=x", "-keyout", key, "-out", pem],
        check=True,
        capture_output=True,
    )
    handler = type("OneHandler", (Handler,), {"seen": [], "answers": [(200, b"{}", True)]})
    server = Tls(("127.0.0.1", 0), handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        url = f"https://127.0.0.1:{server.server_address[1]}"
        with pytest.raises(PinMismatch):
            Session(url, fingerprint="0" * 64, credential="c").request("GET", "/")
        with pytest.raises(LinkDown, match="certificate"):
            Session(url, fingerprint="", credential="c").request("GET", "/")
        assert handler.seen == [], "nothing was sent to a server that is not ours"
        digest = hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem.read_text())).hexdigest()
        session = Session(url, fingerprint=digest, credential="c")
        assert session.request("GET", "/").json() == {}
        session.close()
    finally:
        server.shutdown()
        server.server_close()
