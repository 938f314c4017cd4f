"""Where market data is: a file here, ``file://`` or ``https://``. What was fetched is kept with its date."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from dataclasses import asdict, dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

import httpx

from everstep.market.faults import Malformed, unreadable
from everstep.market.freshness import date_of_file

FRESH_S = 6 * 3600.0
"""A copy younger than this is not asked for again: public catalogs change about every 7 hours."""
LARGEST_BYTES = 256 * 2**20
TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Found:
    """Market data on this machine.

    Attributes:
        path: the file to read.
        source: what the user named, for the ledger.
        as_of: UTC seconds as of which its prices are, unless they carry their own times: when it was published if
            the server says so, else when it was fetched; of a file, as ``date_of_file`` says.
        note: what the user should know, for example that a copy had to do; may be empty.
    """

    path: Path
    source: str
    as_of: float
    note: str = ""


@dataclass(frozen=True, slots=True)
class _Kept:
    """What is written beside a copy."""

    url: str
    as_of: float
    fetched_at: float
    etag: str
    last_modified: str


def find(where: str, *, cache: Path, now: float, client: httpx.Client | None = None) -> Found:
    """The data that ``where`` names.

    Args:
        where: a path, ``file://PATH`` or ``https://...``.
        cache: folder for what is fetched; made when needed.
        now: UTC seconds.
        client: what fetches; None = one of our own.

    Raises:
        Malformed: there is no such file, the address is none that we fetch, or nothing could be fetched and there is
            no copy of an earlier time.
    """
    try:
        parts = urlsplit(where if "://" in where else "")
    except ValueError as error:
        raise Malformed(where, "", f"is no address: {str(error).lower()}", fix="check the address") from None
    if parts.scheme == "https":
        return _fetched(where, cache, now, client)
    if parts.scheme not in ("", "file"):
        raise Malformed(where, "", f"{parts.scheme}:// is not fetched", fix="name a file, file:// or https://")
    try:
        path = Path(unquote(parts.path) if parts.scheme else where).expanduser()
    except RuntimeError:
        raise Malformed(where, "", "cannot be read: there is no such user", fix="check the path") from None
    try:
        if stat.S_ISDIR(path.stat().st_mode):
            raise Malformed(path, "", "is a folder", fix="name a file in it")
        return Found(path, where, date_of_file(path))
    except OSError as error:
        raise unreadable(path, error) from None


def _fetched(url: str, cache: Path, now: float, client: httpx.Client | None) -> Found:
    # The end of the name tells the format: it is kept.
    name = PurePosixPath(urlsplit(url).path).name[-80:] or "index"
    path = cache / f"{hashlib.sha256(url.encode()).hexdigest()[:16]}-{name}"
    source = _without_password(url)
    kept = _kept(path, source)
    if kept is not None and 0 <= now - kept.fetched_at < FRESH_S:
        return Found(path, source, kept.as_of)
    try:
        if client is not None:
            return _ask(client, url, path, kept, now)
        with httpx.Client(timeout=TIMEOUT_S, follow_redirects=True) as own:
            return _ask(own, url, path, kept, now)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        said = " ".join(str(error).split()) or type(error).__name__
        if kept is None:
            raise Malformed(source, "", f"cannot be fetched: {said}", fix="check the address") from None
        return Found(path, source, kept.as_of, f"{source}: cannot be fetched ({said}): an earlier copy is used")


def _without_password(url: str) -> str:
    """The address as it may be told: the ledger and messages name it."""
    user, at, _ = urlsplit(url).netloc.rpartition("@")
    return url.replace(f"{user}@", f"{user.partition(':')[0]}:***@", 1) if at and ":" in user else url


def _ask(client: httpx.Client, url: str, path: Path, kept: _Kept | None, now: float) -> Found:
    source = _without_password(url)
    headers = {}
    if kept is not None and kept.etag:
        headers["If-None-Match"] = kept.etag
    if kept is not None and kept.last_modified:
        headers["If-Modified-Since"] = kept.last_modified
    with client.stream("GET", url, headers=headers) as answer:
        if answer.status_code == 304 and kept is not None:
            as_of = kept.as_of if kept.last_modified else now
            _keep(path, None, _Kept(source, as_of, now, kept.etag, kept.last_modified))
            return Found(path, source, as_of)
        if answer.status_code != 200:
            raise httpx.HTTPError(f"HTTP {answer.status_code} {answer.reason_phrase}".strip())
        body = bytearray()
        for part in answer.iter_bytes():
            body += part
            if len(body) > LARGEST_BYTES:
                raise httpx.HTTPError(f"larger than {LARGEST_BYTES // 2**20} MiB")
        modified = answer.headers.get("last-modified", "")
        as_of = min(_instant(modified, now), now)
        _keep(path, bytes(body), _Kept(source, as_of, now, answer.headers.get("etag", ""), modified))
        return Found(path, source, as_of)


def _instant(stamp: str, otherwise: float) -> float:
    try:
        return parsedate_to_datetime(stamp).timestamp()
    except (TypeError, ValueError):
        return otherwise


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.about.json")


def _kept(path: Path, url: str) -> _Kept | None:
    """What is known of the copy; None if there is none that can be trusted."""
    try:
        about = json.loads(_beside(path).read_text())
        times = float(about["as_of"]), float(about["fetched_at"])
        kept = _Kept(str(about["url"]), *times, str(about["etag"]), str(about["last_modified"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return kept if kept.url == url and path.is_file() else None


def _keep(path: Path, body: bytes | None, kept: _Kept) -> None:
    """The copy first, then what is known of it, each put in place at once: a crash leaves no half of either."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for target, content in ((path, body), (_beside(path), json.dumps(asdict(kept)).encode())):
        if content is None:
            continue
        part = target.with_name(f"{target.name}.{os.getpid()}.part")
        part.write_bytes(content)
        part.replace(target)
