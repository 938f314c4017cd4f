"""What a notice is, and how a metadata service is asked."""

from __future__ import annotations

import http.client
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

REBALANCE = "rebalance"
TERMINATE = "terminate"
MAINTENANCE = "maintenance"
MAX_LIFE = "max_life"


@dataclass(frozen=True)
class Notice:
    """``kind`` as in the handshake's MSG_NOTICE; ``deadline`` in UTC seconds, None if unknown."""

    kind: str
    deadline: float | None

    @property
    def final(self) -> bool:
        """Whether the machine will be taken (not merely may be)."""
        return self.kind in (TERMINATE, MAX_LIFE)


class MetadataDown(Exception):
    """The metadata service does not answer, or not in its own manner."""


class Watch:
    """One question to a metadata service."""

    interval_s = 1.0
    """Pause between two polls."""

    def poll(self) -> list[Notice]:
        """What is announced now; may wait for a change. Raises :class:`MetadataDown`."""
        raise NotImplementedError

    def look(self) -> list[Notice]:
        """What is announced now, without waiting. Raises :class:`MetadataDown`."""
        return self.poll()


def ask(
    url: str, path: str, *, method: str = "GET", headers: dict[str, str] | None = None, timeout_s: float = 1.0
) -> tuple[int, str, dict[str, str]]:
    """One request to a metadata service: (status, body, headers in lower case). Never goes through a proxy."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=timeout_s)
    try:
        connection.request(method, parts.path.rstrip("/") + path, headers=headers or {})
        response = connection.getresponse()
        body = response.read(1 << 20).decode(errors="replace")
        return response.status, body, {name.lower(): value for name, value in response.getheaders()}
    except (OSError, http.client.HTTPException) as error:
        raise MetadataDown(f"{url}{path}: {type(error).__name__}: {error}") from None
    finally:
        connection.close()


def utc_of(text: object) -> float | None:
    """UTC seconds of ``2030-01-31T12:00:00Z`` (ISO 8601) or ``31 Jan 2030 12:00:00 GMT``; None if it is neither."""
    if not isinstance(text, str):
        return None
    try:
        moment = datetime.fromisoformat(text.strip().replace("Z", "+00:00"))
    except ValueError:
        try:
            moment = parsedate_to_datetime(text)
        except (TypeError, ValueError, IndexError):
            return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()
