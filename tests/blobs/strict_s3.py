"""An S3 that believes nobody: moto behind a check of every signature and of the life of every signed URL.

As a program it reads key and secret from its standard input (tests look for secrets on command lines), prints its port
and serves that one key until it is killed. One request at a time: moto's own check for "if absent" is not atomic across
threads.
"""

from __future__ import annotations

import calendar
import hashlib
import hmac
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

KEY, SECRET = "AKIAOFTHESERVER", "planted/SECRET+of/the/server/0123456789"
_CONTROL = "/-/"


@dataclass(frozen=True)
class StrictS3:
    """One that runs at ``url``, with ``key`` and ``secret`` the only credentials it knows."""

    url: str
    key: str
    secret: str

    def make_bucket(self, name: str) -> str:
        """Its name."""
        self._ask("PUT", f"/{name}")
        return name

    def later(self, seconds: float) -> None:
        """From now on its clock is so much ahead, for the life of URLs."""
        self._ask("PUT", f"{_CONTROL}later", str(seconds).encode())

    def expire(self) -> None:
        """Every URL that was used so far is refused once, as if it had run out."""
        self._ask("PUT", f"{_CONTROL}expire")

    def seen(self) -> list[tuple[str, str, str]]:
        """Requests that were carried out: method, path, and ``url`` or ``header`` by where the signature was."""
        return [(method, path, how) for method, path, how in json.loads(self._ask("GET", f"{_CONTROL}seen"))]

    def _ask(self, method: str, path: str, body: bytes | None = None) -> bytes:
        with urllib.request.urlopen(urllib.request.Request(self.url + path, data=body, method=method)) as response:
            found: bytes = response.read()
            return found


@contextmanager
def serving(key: str = KEY, secret: str = SECRET) -> Iterator[StrictS3]:
    """One in a process of its own."""
    with subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            print(key, secret, file=process.stdin, flush=True)
            port = process.stdout.readline().strip()
            assert port, "the S3 server did not start"
            yield StrictS3(f"http://127.0.0.1:{port}", key, secret)
        finally:
            process.kill()


class Checked:
    """WSGI: only what the key's owner signed reaches ``inner``. Buckets may be made by anybody."""

    def __init__(self, inner: Any, key: str, secret: str) -> None:
        self._inner = inner
        self._key, self._secret = key, secret
        self._ahead_s = 0.0
        self._seen: list[tuple[str, str, str]] = []
        self._used: set[str] = set()
        self._run_out: set[str] = set()

    def __call__(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        method, (path, _, query) = environ["REQUEST_METHOD"], environ["RAW_URI"].partition("?")
        if path == f"{_CONTROL}later":
            self._ahead_s += float(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
            return _answer(start, "200 OK", b"")
        if path == f"{_CONTROL}expire":
            self._run_out |= self._used
            return _answer(start, "200 OK", b"")
        if path == f"{_CONTROL}seen":
            return _answer(start, "200 OK", json.dumps(self._seen).encode())
        how = "url" if "X-Amz-Signature=" in query else "header"
        fault = "" if method == "PUT" and path.count("/") == 1 else self._fault(environ, method, path, query)
        if fault:
            text = f"<Error><Code>{fault.split(':')[0]}</Code><Message>{fault}</Message></Error>"
            return _answer(start, "403 Forbidden", text.encode())
        self._seen.append((method, path, how))
        self._used.add(environ["RAW_URI"])
        found: Iterable[bytes] = self._inner(environ, start)
        return found

    def _fault(self, environ: dict[str, Any], method: str, path: str, query: str) -> str:
        given = dict(parse_qsl(query, keep_blank_values=True))
        if "X-Amz-Signature" in given:
            told = {name: given[f"X-Amz-{name}"] for name in ("Credential", "SignedHeaders", "Signature")}
            date, payload = given["X-Amz-Date"], "UNSIGNED-PAYLOAD"
            query = "&".join(part for part in query.split("&") if not part.startswith("X-Amz-Signature="))
            made = calendar.timegm(time.strptime(date, "%Y%m%dT%H%M%SZ"))
            late = time.time() + self._ahead_s > made + int(given["X-Amz-Expires"])
            if late or environ["RAW_URI"] in self._run_out:
                self._run_out.discard(environ["RAW_URI"])
                return "AccessDenied: Request has expired"
        else:
            words = environ.get("HTTP_AUTHORIZATION", "").removeprefix("AWS4-HMAC-SHA256").replace(",", " ").split()
            told = dict(word.split("=", 1) for word in words)
            if len(told) != 3:
                return "AccessDenied: not signed"
            date, payload = environ["HTTP_X_AMZ_DATE"], environ["HTTP_X_AMZ_CONTENT_SHA256"]
        who, day, region, service, _ = told["Credential"].split("/")
        if who != self._key:
            return "InvalidAccessKeyId: nobody has this key"
        names = told["SignedHeaders"].split(";")
        headers = "".join(f"{name}:{_header(environ, name)}\n" for name in names)
        # A name without a value is signed as "name=".
        pairs = sorted(part if "=" in part else f"{part}=" for part in query.split("&") if part)
        request = "\n".join([method, path, "&".join(pairs), headers, ";".join(names), payload])
        scope = f"{day}/{region}/{service}/aws4_request"
        to_sign = "\n".join(["AWS4-HMAC-SHA256", date, scope, hashlib.sha256(request.encode()).hexdigest()])
        key = f"AWS4{self._secret}".encode()
        for part in (day, region, service, "aws4_request"):
            key = hmac.digest(key, part.encode(), "sha256")
        if hmac.digest(key, to_sign.encode(), "sha256").hex() != told["Signature"]:
            return "SignatureDoesNotMatch: somebody else signed this, or something else was signed"
        return ""


def _header(environ: dict[str, Any], name: str) -> str:
    key = name.upper().replace("-", "_")
    value: str = environ.get(f"HTTP_{key}") or environ.get(key, "")
    return " ".join(value.split())


def _answer(start: Any, status: str, body: bytes) -> Iterable[bytes]:
    start(status, [("Content-Length", str(len(body))), ("Content-Type", "application/xml")])
    return [body]


def main() -> None:
    """Serve."""
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    app = Checked(DomainDispatcherApplication(create_backend_app), *sys.stdin.readline().split())
    server = make_server("127.0.0.1", 0, app, threaded=False)
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
