"""What an object store says over HTTP: one connection that is kept, and what its answers mean."""

from __future__ import annotations

import http.client
import urllib.parse
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from everstep.train.stores import Absent, Refusal, Taken, Unavailable

_TIMEOUT_S = 15.0
_AGAIN = frozenset({408, 409, 429, 500, 502, 503, 504})


@dataclass(frozen=True)
class Answer:
    """Of one request; names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def xml(self) -> ET.Element:
        """The document, without name spaces: stores differ in them."""
        try:
            root = ET.fromstring(self.body)
        except ET.ParseError as error:
            raise Unavailable(f"the answer is no XML: {error}") from error
        for element in root.iter():
            element.tag = element.tag.rpartition("}")[2]
        return root


class Line:
    """The way to one host. One request at a time.

    Args:
        scheme, netloc: ``http`` or ``https``, and ``HOST[:PORT]``.
    """

    def __init__(self, scheme: str, netloc: str) -> None:
        self._scheme = scheme
        self._netloc = netloc
        self._connection: http.client.HTTPConnection | None = None

    @staticmethod
    def to(url: str) -> Line:
        """The way to the host of a URL."""
        parts = urllib.parse.urlsplit(url)
        return Line(parts.scheme, parts.netloc)

    def ask(
        self, method: str, target: str, *, headers: Mapping[str, str], body: bytes | Iterable[bytes] | None = None
    ) -> Answer:
        """One exchange, whatever its status. With pieces as ``body``, ``headers`` say its length.

        Raises:
            Unavailable: there was no answer.
        """
        try:
            if self._connection is None:
                self._connection = self.connect()
            self._connection.request(method, target, body=body, headers=dict(headers))
            response = self._connection.getresponse()
            answer = Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        except (OSError, http.client.HTTPException) as error:
            self.hang_up()
            raise Unavailable(f"{self._netloc}: {type(error).__name__}: {error}") from error
        if answer.status >= 300:
            # It may not have read all that was sent.
            self.hang_up()
        return answer

    def connect(self) -> http.client.HTTPConnection:
        """A new connection."""
        kind = http.client.HTTPSConnection if self._scheme == "https" else http.client.HTTPConnection
        return kind(self._netloc, timeout=_TIMEOUT_S)

    def hang_up(self) -> None:
        """The next request goes over a new connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def refused(answer: Answer, method: str, key: str) -> Exception:
    """What to raise for an answer that is none of success; ``key`` is empty for a question about the whole bucket."""
    said = ""
    if answer.body.lstrip().startswith(b"<"):
        try:
            root = answer.xml()
            said = " ".join(text for text in (text_of(root, "Code"), text_of(root, "Message")) if text)
        except Unavailable:
            said = ""
    text = f"{method} {key or '(bucket)'}: HTTP {answer.status} {said}".rstrip()
    if answer.status in _AGAIN or "RequestTimeTooSkewed" in said:
        return Unavailable(text)
    if answer.status == 404 and "NoSuchBucket" not in said and key:
        return Absent(text)
    return Taken(text) if answer.status == 412 else Refusal(text)


def text_of(element: ET.Element, name: str) -> str:
    """The text of a child, empty if there is none."""
    return element.findtext(name) or ""
