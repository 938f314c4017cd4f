"""The job's place in a bucket whose keys the server has: objects go by URLs that it signs, one for each, for minutes.

The agent of this machine is asked for them, on a socket (``PATH_OBJECTS`` of the handshake); bytes go straight to the
bucket. Whatever no such URL can do goes the first way: lists, deletions, and what must be created only once.

A signed URL is for one whole object. A file larger than a part is many of them, ``KEY.part-00000`` and so on, so that
what broke off goes on where it was, whatever the bucket is and however large its objects may be.
"""

from __future__ import annotations

import functools
import http.client
import json
import os
import re
import socket
import time
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from everstep.model import handshake
from everstep.train.answers import Answer, Line, refused
from everstep.train.stores import Absent, Refusal, Unavailable, settle

_PART = 64 << 20
_RANGE = 16 << 20
_PIECE = 1 << 20
_SIGNED_AHEAD = 32
_DELETED_AT_ONCE = 200
_KNOWN_URLS = 1024
_DESK_TIMEOUT_S = 90.0
_NUMBERED = re.compile(r"\.part-\d{5,}")
_NOT_GOOD = frozenset({400, 401, 403})
"""How stores turn a URL away: run out, or signed with keys that have."""


class SignedStore:
    """Objects of the job's mirror. One request at a time.

    Args:
        url: where it is, for people.
        desk: the agent's socket.
    """

    def __init__(self, url: str, desk: Path) -> None:
        self._url = url.rstrip("/")
        self._desk = _Desk(desk)
        self._lines: dict[str, Line] = {}
        self._urls: dict[tuple[str, str], tuple[str, float]] = {}
        self._sent: dict[str, set[str]] = {}

    @property
    def where(self) -> str:
        """The URL of the mirror."""
        return self._url

    def list(self, prefix: str) -> dict[str, int]:
        """Sizes of the objects whose keys begin so; of a large file, its parts."""
        told = self._desk.ask_for("list", {"prefix": prefix}).get("objects")
        if not isinstance(told, dict):
            raise Unavailable("the answer lists no objects")
        return {str(key): int(size) for key, size in told.items()}

    def get(self, key: str) -> bytes:
        """A small object."""
        return self._move("GET", key, headers={}).body

    def put(self, key: str, content: bytes) -> None:
        """Store a small object."""
        self._move("PUT", key, lambda: [content], headers=_of_size(len(content)))

    def create(self, key: str, content: bytes) -> None:
        """Store a small object unless there is another. The server does it: no URL can be signed for that alone."""
        if not self._desk.ask_for(f"create?key={urllib.parse.quote(key, safe='')}", content).get("created"):
            settle(self, key, content)

    def delete(self, *keys: str) -> None:
        """Delete what is there of these. The server does it."""
        for start in range(0, len(keys), _DELETED_AT_ONCE):
            self._desk.ask_for("delete", {"keys": keys[start : start + _DELETED_AT_ONCE]})

    def close(self) -> None:
        """Let go of the connections."""
        for line in (self._desk, *self._lines.values()):
            line.hang_up()

    def upload(self, key: str, file: IO[bytes], size: int) -> None:
        """Store a file; parts that an earlier try sent are not sent again."""
        sent = self._sent.setdefault(key, set())
        parts = _parts(key, size)
        for number, (name, start, length) in enumerate(parts):
            if name in sent:
                continue
            if not self._known("PUT", name):
                self._sign("PUT", [ahead for ahead, _, _ in parts[number : number + _SIGNED_AHEAD]])
            self._move("PUT", name, functools.partial(_pieces, file, start, length), headers=_of_size(length))
            sent.add(name)
        del self._sent[key]

    def download(self, key: str, file: IO[bytes], size: int) -> None:
        """Fetch into a file, behind what it holds already."""
        at = os.fstat(file.fileno()).st_size
        start = 0
        for name, length in self._stored(key, size):
            while at < start + length:
                first = at - start
                last = min(first + _RANGE, length) - 1
                body = self._move("GET", name, headers={"range": f"bytes={first}-{last}"}).body
                if len(body) != last - first + 1:
                    raise Unavailable(f"{name}: got {len(body)} bytes where {last - first + 1} were asked for")
                os.pwrite(file.fileno(), body, at)
                at += len(body)
            start += length

    def _stored(self, key: str, size: int) -> Sequence[tuple[str, int]]:
        """The objects that hold a file, in order, with their sizes; they are asked for, as parts may grow some day."""
        there = self.list(key)
        if key in there:
            found = [(key, there[key])]
        else:
            found = sorted((n, s) for n, s in there.items() if _NUMBERED.fullmatch(n.removeprefix(key)))
        if not found:
            raise Absent(f"{key} is not in {self.where}")
        if sum(length for _, length in found) != size:
            raise Refusal(f"{key} in {self.where} has {sum(length for _, length in found)} bytes, not {size}")
        return found

    # --- URLs -------------------------------------------------------------------------------------------------------

    def _move(
        self,
        method: str,
        key: str,
        body: Callable[[], Iterable[bytes]] | None = None,
        *,
        headers: Mapping[str, str],
    ) -> Answer:
        """One request to the bucket. A URL that it does not take any more is replaced by a new one, once.

        Raises:
            Unavailable, Absent, Refusal: by what the bucket or the server says.
        """

        def go(url: str) -> Answer:
            parts = urllib.parse.urlsplit(url)
            line = self._lines.setdefault(parts.netloc, Line.to(url))
            return line.ask(method, f"{parts.path}?{parts.query}", headers=headers, body=body() if body else None)

        url = self._known(method, key)
        try:
            answer = go(url) if url else None
            if answer is None or answer.status in _NOT_GOOD:
                answer = go(self._sign(method, [key])[0])
        except Unavailable:
            # Who turns a large body away may not stay to say why.
            self._urls.pop((method, key), None)
            raise
        if answer.status < 300:
            return answer
        raise refused(answer, method, key)

    def _known(self, method: str, key: str) -> str:
        """A URL that was signed before and is good for a while; empty if there is none."""
        url, until = self._urls.get((method, key), ("", 0.0))
        return url if time.monotonic() < until else ""

    def _sign(self, method: str, keys: Sequence[str]) -> Sequence[str]:
        asked_at = time.monotonic()
        told = self._desk.ask_for("sign", {"method": method, "keys": list(keys)})
        urls, life_s = told.get("urls"), told.get("life_s")
        if not isinstance(urls, list) or len(urls) != len(keys) or not isinstance(life_s, int | float):
            raise Unavailable("the answer has no signed URLs")
        if len(self._urls) > _KNOWN_URLS:
            self._urls.clear()
        # A request that begins in time is carried out, however long it takes.
        self._urls |= {(method, key): (str(url), asked_at + 0.8 * life_s) for key, url in zip(keys, urls, strict=True)}
        return [str(url) for url in urls]


class _Desk(Line):
    """The agent's socket, on which the server is asked."""

    def __init__(self, path: Path) -> None:
        super().__init__("http", "everstep")
        self._path = path

    def connect(self) -> http.client.HTTPConnection:
        """A new connection."""
        return _ToSocket(self._path)

    def ask_for(self, what: str, asked: Mapping[str, Any] | bytes) -> dict[str, Any]:
        """What the server answers. Raises `Unavailable` or `Refusal`, with its words."""
        body = asked if isinstance(asked, bytes) else json.dumps(asked).encode()
        answer = self.ask("POST", handshake.PATH_OBJECTS + what, headers={}, body=body)
        try:
            told = json.loads(answer.body)
        except ValueError:
            told = None
        if not isinstance(told, dict):
            raise Unavailable(f"the server answers no JSON (HTTP {answer.status})")
        if answer.status >= 300:
            text = str(told.get("error", f"HTTP {answer.status}"))
            raise Unavailable(text) if answer.status >= 500 else Refusal(text)
        return told


class _ToSocket(http.client.HTTPConnection):
    """To a UNIX socket, whose path may be longer than what a socket's address can hold."""

    def __init__(self, path: Path) -> None:
        super().__init__("everstep", timeout=_DESK_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        """As the base class does, when it is needed."""
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            line.settimeout(_DESK_TIMEOUT_S)
            line.connect(f"/proc/self/fd/{folder}/{self._path.name}")
        except OSError:
            line.close()
            raise
        finally:
            os.close(folder)
        self.sock = line


def _parts(key: str, size: int) -> list[tuple[str, int, int]]:
    """The objects that a file becomes: key, beginning in the file and size in bytes."""
    if size <= _PART:
        return [(key, 0, size)]
    starts = range(0, size, _PART)
    return [(f"{key}.part-{number:05d}", start, min(_PART, size - start)) for number, start in enumerate(starts)]


def _of_size(length: int) -> dict[str, str]:
    return {"content-type": "application/octet-stream", "content-length": str(length)}


def _pieces(file: IO[bytes], start: int, length: int) -> Iterator[bytes]:
    """A stretch of a file; each piece has the time of one answer, not the whole."""
    for at in range(start, start + length, _PIECE):
        yield os.pread(file.fileno(), min(_PIECE, start + length - at), at)
