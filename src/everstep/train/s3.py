"""S3 and what speaks its language, with the standard library alone: signed requests, uploads in parts that resume.

Credentials and region come from the environment, under the names that all S3 tools know: ``AWS_ACCESS_KEY_ID``,
``AWS_SECRET_ACCESS_KEY``, ``AWS_SESSION_TOKEN``, ``AWS_REGION``, ``AWS_ENDPOINT_URL_S3`` or ``AWS_ENDPOINT_URL``.
Profiles and the roles of machines are not looked up.

The signature is "AWS Signature Version 4" (AWS General Reference, "Signing AWS API requests").
"""

from __future__ import annotations

import hashlib
import hmac
import os
import time
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO

from everstep.train.answers import Answer, Line, refused, text_of
from everstep.train.stores import Taken, Unavailable, settle

_PART = 16 << 20
_MOST_PARTS = 10_000


@dataclass(frozen=True)
class Credentials:
    """Who signs, for which region."""

    key: str
    secret: str
    token: str
    region: str


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
        self._line = Line(self._url.scheme, self._url.netloc)

    @staticmethod
    def open(place: str, env: Mapping[str, str]) -> S3Store:
        """The store at ``BUCKET/PREFIX`` with what the environment says.

        Raises:
            ValueError: there are no credentials, or there is no bucket.
        """
        bucket, _, prefix = place.partition("/")
        if not bucket or not S3Store.has_keys(env):
            raise ValueError(
                f"a mirror in s3://{place} needs a bucket, and AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY "
                "in the environment, or a server that has the bucket's keys and signs URLs for the job"
            )
        key, secret = env["AWS_ACCESS_KEY_ID"], env["AWS_SECRET_ACCESS_KEY"]
        region = env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION") or "us-east-1"
        endpoint = env.get("AWS_ENDPOINT_URL_S3") or env.get("AWS_ENDPOINT_URL") or ""
        return S3Store(bucket, prefix, endpoint, Credentials(key, secret, env.get("AWS_SESSION_TOKEN", ""), region))

    @staticmethod
    def has_keys(env: Mapping[str, str]) -> bool:
        """Whether the environment says who signs."""
        return bool(env.get("AWS_ACCESS_KEY_ID") and env.get("AWS_SECRET_ACCESS_KEY"))

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
                found[text_of(entry, "Key")[len(self._prefix) :]] = int(text_of(entry, "Size"))
            token = text_of(root, "NextContinuationToken")
            if not token:
                return found
            more["continuation-token"] = token

    def get(self, key: str) -> bytes:
        """A small object."""
        return self._ask("GET", self._prefix + key).body

    def put(self, key: str, content: bytes) -> None:
        """Store a small object."""
        self._ask("PUT", self._prefix + key, body=content)

    def create(self, key: str, content: bytes) -> None:
        """Store a small object unless there is another: a conditional write."""
        try:
            self._ask("PUT", self._prefix + key, headers={"if-none-match": "*"}, body=content)
        except Taken:
            settle(self, key, content)

    def delete(self, *keys: str) -> None:
        """Delete what is there of these."""
        for key in keys:
            self._ask("DELETE", self._prefix + key)

    def close(self) -> None:
        """Let go of the connection."""
        self._line.hang_up()

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
            raise Unavailable(f"completing {key}: {text_of(answer.xml(), 'Message')}")

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
        mine = [(text_of(one, "Initiated"), text_of(one, "UploadId")) for one in begun if text_of(one, "Key") == full]
        if mine:
            return max(mine)[1]
        return text_of(self._ask("POST", full, query={"uploads": ""}).xml(), "UploadId")

    def _parts(self, full: str, upload: str) -> dict[int, str]:
        """Tags of the parts that are there."""
        found: dict[int, str] = {}
        more = {"uploadId": upload}
        while True:
            root = self._ask("GET", full, query=more).xml()
            found |= {int(text_of(part, "PartNumber")): text_of(part, "ETag") for part in root.findall("Part")}
            if text_of(root, "IsTruncated") != "true":
                return found
            more["part-number-marker"] = text_of(root, "NextPartNumberMarker")

    # --- requests ---------------------------------------------------------------------------------------------------

    def _ask(
        self,
        method: str,
        key: str,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> Answer:
        """One signed request.

        Raises:
            Unavailable, Absent, Taken, Refusal: by what the store says.
        """
        path = urllib.parse.quote(f"{self._root}/{key}", safe="/-_.~")
        pairs = sorted((query or {}).items())
        asked = "&".join(f"{_quote(name)}={_quote(value)}" for name, value in pairs)
        signed = self._sign(method, path, asked, {**(headers or {})}, body)
        answer = self._line.ask(method, f"{path}?{asked}" if asked else path, headers=signed, body=body)
        if answer.status < 300:
            return answer
        raise refused(answer, method, key)

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


def _quote(text: str) -> str:
    return urllib.parse.quote(text, safe="-_.~")
