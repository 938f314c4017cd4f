"""S3 and what speaks its language, with the standard library alone: signed requests, uploads in parts that resume.

Credentials and region come from the environment, under the names that all S3 tools know: ``AWS_ACCESS_KEY_ID``,
``AWS_SECRET_ACCESS_KEY``, ``AWS_SESSION_TOKEN``, ``AWS_REGION``, ``AWS_ENDPOINT_URL_S3`` or ``AWS_ENDPOINT_URL``.
Profiles and the roles of machines are not looked up.

The signature is "AWS Signature Version 4" (AWS General Reference, "Signing AWS API requests").
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import os
import time
import urllib.parse
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO

from everstep.train.stores import Absent, Refusal, Unavailable

_PART = 16 << 20
_MOST_PARTS = 10_000
_TIMEOUT_S = 15.0
_AGAIN = frozenset({408, 409, 429, 500, 502, 503, 504})


@dataclass(frozen=True)
class Credentials:
    """Who signs, for which region."""

    key: str
    secret: str
    token: str
    region: str


@dataclass(frozen=True)
class _Answer:
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


class S3Store:
    """Objects below a prefix of a bucket. One request at a time, one connection kept.

    Args:
        bucket, prefix: where.
        endpoint: ``https://HOST[:PORT]`` of a store that is not Amazon's; empty for Amazon's.
        credentials: who signs.
    """

    def __init__(self, bucket: str, prefix: str, endpoint: str, credentials: Credentials) -> None:
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._credentials = credentials
        self._bucket = bucket
        amazon = f"https://s3.{credentials.region}.amazonaws.com"
        if not endpoint and "." not in bucket:
            amazon = f"https://{bucket}.s3.{credentials.region}.amazonaws.com"
        self._url = urllib.parse.urlsplit(endpoint or amazon)
        self._root = "" if not endpoint and "." not in bucket else f"/{bucket}"
        self._connection: http.client.HTTPConnection | None = None

    @staticmethod
    def open(place: str, env: Mapping[str, str]) -> S3Store:
        """The store at ``BUCKET/PREFIX`` with what the environment says.

        Raises:
            ValueError: there are no credentials, or there is no bucket.
        """
        bucket, _, prefix = place.partition("/")
        key, secret = env.get("AWS_ACCESS_KEY_ID", ""), env.get("AWS_SECRET_ACCESS_KEY", "")
        if not bucket or not key or not secret:
            raise ValueError(
                f"a mirror in s3://{place} needs a bucket, and AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY "
                "in the environment"
            )
        region = env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION") or "us-east-1"
        endpoint = env.get("AWS_ENDPOINT_URL_S3") or env.get("AWS_ENDPOINT_URL") or ""
        return S3Store(bucket, prefix, endpoint, Credentials(key, secret, env.get("AWS_SESSION_TOKEN", ""), region))

    @property
    def where(self) -> str:
        """The URL."""
        return f"s3://{self._bucket}/{self._prefix}".rstrip("/")

    # --- objects ----------------------------------------------------------------------------------------------------

    def list(self, prefix: str) -> dict[str, int]:
        """Sizes of the objects whose keys begin so."""
        found: dict[str, int] = {}
        more = {"list-type": "2", "prefix": self._prefix + prefix}
        while True:
            root = self._ask("GET", "", query=more).xml()
            for entry in root.findall("Contents"):
                found[_text(entry, "Key")[len(self._prefix) :]] = int(_text(entry, "Size"))
            token = _text(root, "NextContinuationToken")
            if not token:
                return found
            more["continuation-token"] = token

    def get(self, key: str) -> bytes:
        """A small object."""
        return self._ask("GET", self._prefix + key).body

    def put(self, key: str, content: bytes) -> None:
        """Store a small object."""
        self._ask("PUT", self._prefix + key, body=content)

    def delete(self, key: str) -> None:
        """Delete, if it is there."""
        self._ask("DELETE", self._prefix + key)

    def upload(self, key: str, file: IO[bytes], size: int) -> None:
        """Store a file: small ones at once, others in parts; parts that an earlier try sent are not sent again."""
        full = self._prefix + key
        if size <= _PART:
            self._ask("PUT", full, body=os.pread(file.fileno(), size, 0))
            return
        part_size = max(_PART, -(-size // _MOST_PARTS))
        upload = self._open_upload(full)
        there = self._parts(full, upload)
        tags = []
        for number, start in enumerate(range(0, size, part_size), start=1):
            part = os.pread(file.fileno(), part_size, start)
            tag = f'"{hashlib.md5(part, usedforsecurity=False).hexdigest()}"' if number in there else ""
            if not tag or there[number] != tag:
                answer = self._ask("PUT", full, query={"partNumber": str(number), "uploadId": upload}, body=part)
                tag = answer.headers.get("etag", "")
            tags.append(tag)
        listed = "".join(
            f"<Part><PartNumber>{number}</PartNumber><ETag>{tag}</ETag></Part>" for number, tag in enumerate(tags, 1)
        )
        body = f"<CompleteMultipartUpload>{listed}</CompleteMultipartUpload>".encode()
        answer = self._ask("POST", full, query={"uploadId": upload}, body=body)
        if answer.xml().tag == "Error":
            # The one request that can say 200 and fail.
            raise Unavailable(f"completing {key}: {_text(answer.xml(), 'Message')}")

    def download(self, key: str, file: IO[bytes], size: int) -> None:
        """Fetch into a file, behind what it holds already."""
        at = os.fstat(file.fileno()).st_size
        while at < size:
            last = min(at + _PART, size) - 1
            body = self._ask("GET", self._prefix + key, headers={"range": f"bytes={at}-{last}"}).body
            if len(body) != last - at + 1:
                raise Unavailable(f"{key}: got {len(body)} bytes where {last - at + 1} were asked for")
            os.pwrite(file.fileno(), body, at)
            at += len(body)

    def _open_upload(self, full: str) -> str:
        """The newest upload of this key that was begun, or a new one."""
        begun = self._ask("GET", "", query={"uploads": "", "prefix": full}).xml().findall("Upload")
        mine = [(_text(one, "Initiated"), _text(one, "UploadId")) for one in begun if _text(one, "Key") == full]
        if mine:
            return max(mine)[1]
        return _text(self._ask("POST", full, query={"uploads": ""}).xml(), "UploadId")

    def _parts(self, full: str, upload: str) -> dict[int, str]:
        """Tags of the parts that are there."""
        found: dict[int, str] = {}
        more = {"uploadId": upload}
        while True:
            root = self._ask("GET", full, query=more).xml()
            found |= {int(_text(part, "PartNumber")): _text(part, "ETag") for part in root.findall("Part")}
            if _text(root, "IsTruncated") != "true":
                return found
            more["part-number-marker"] = _text(root, "NextPartNumberMarker")

    # --- requests ---------------------------------------------------------------------------------------------------

    def _ask(
        self,
        method: str,
        key: str,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> _Answer:
        """One signed request.

        Raises:
            Unavailable, Absent, Refusal: by what the store says.
        """
        path = urllib.parse.quote(f"{self._root}/{key}", safe="/-_.~")
        pairs = sorted((query or {}).items())
        asked = "&".join(f"{_quote(name)}={_quote(value)}" for name, value in pairs)
        signed = self._sign(method, path, asked, {**(headers or {})}, body)
        try:
            connection = self._connect()
            connection.request(method, f"{path}?{asked}" if asked else path, body=body, headers=signed)
            response = connection.getresponse()
            answer = _Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        except (OSError, http.client.HTTPException) as error:
            self._connection = None
            raise Unavailable(f"{self._url.netloc}: {type(error).__name__}: {error}") from error
        if answer.status < 300:
            return answer
        self._connection = None
        raise _error(answer, method, key)

    def _connect(self) -> http.client.HTTPConnection:
        if self._connection is None:
            kind = http.client.HTTPSConnection if self._url.scheme == "https" else http.client.HTTPConnection
            self._connection = kind(self._url.netloc, timeout=_TIMEOUT_S)
        return self._connection

    def _sign(self, method: str, path: str, query: str, headers: dict[str, str], body: bytes) -> dict[str, str]:
        who = self._credentials
        now = time.gmtime()
        day, stamp = time.strftime("%Y%m%d", now), time.strftime("%Y%m%dT%H%M%SZ", now)
        # TLS keeps the body whole; hashing it again would take processor time from training.
        content = "UNSIGNED-PAYLOAD" if self._url.scheme == "https" else hashlib.sha256(body).hexdigest()
        headers |= {"host": self._url.netloc, "x-amz-content-sha256": content, "x-amz-date": stamp}
        if who.token:
            headers["x-amz-security-token"] = who.token
        if body:
            headers["content-type"] = "application/octet-stream"
        names = ";".join(sorted(headers))
        lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
        request = "\n".join([method, path, query, lines, names, content])
        scope = f"{day}/{who.region}/s3/aws4_request"
        to_sign = "\n".join(["AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256(request.encode()).hexdigest()])
        key = f"AWS4{who.secret}".encode()
        for part in (day, who.region, "s3", "aws4_request"):
            key = hmac.digest(key, part.encode(), "sha256")
        signature = hmac.digest(key, to_sign.encode(), "sha256").hex()
        headers["authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={who.key}/{scope}, SignedHeaders={names}, Signature={signature}"
        )
        return headers


def _error(answer: _Answer, method: str, key: str) -> Exception:
    said = ""
    if answer.body.lstrip().startswith(b"<"):
        try:
            root = answer.xml()
            said = " ".join(text for text in (_text(root, "Code"), _text(root, "Message")) if text)
        except Unavailable:
            said = ""
    text = f"{method} {key or '(bucket)'}: HTTP {answer.status} {said}".rstrip()
    if answer.status in _AGAIN or "RequestTimeTooSkewed" in said:
        return Unavailable(text)
    if answer.status == 404 and "NoSuchBucket" not in said and key:
        return Absent(text)
    return Refusal(text)


def _text(element: ET.Element, name: str) -> str:
    return element.findtext(name) or ""


def _quote(text: str) -> str:
    return urllib.parse.quote(text, safe="-_.~")
