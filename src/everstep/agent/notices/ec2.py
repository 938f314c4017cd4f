"""The metadata of EC2 (with IMDSv2 tokens), and of the local cloud, which has the same paths without tokens."""

from __future__ import annotations

import json
from typing import Any

from everstep.agent.clock import Clock
from everstep.agent.notices.kinds import (
    MAINTENANCE,
    MAX_LIFE,
    REBALANCE,
    TERMINATE,
    MetadataDown,
    Notice,
    Watch,
    ask,
    utc_of,
)

ACTION_PATH = "/latest/meta-data/spot/instance-action"
MAINTENANCE_PATH = "/latest/meta-data/events/maintenance/scheduled"
REBALANCE_PATH = "/latest/meta-data/events/recommendations/rebalance"
TOKEN_PATH = "/latest/api/token"
_TOKEN_TTL_S = 21600


def local_watches(url: str, clock: Clock) -> list[Watch]:
    """The local cloud."""
    return [_Ec2Watch(url, tokens=False)]


def aws_watches(url: str, clock: Clock) -> list[Watch]:
    """EC2; the base URL is ``http://169.254.169.254`` there."""
    return [_Ec2Watch(url or "http://169.254.169.254", tokens=True)]


class _Ec2Watch(Watch):
    """404 means nothing is announced. The local cloud marks the end of a life by ``"kind": "max_life"``."""

    def __init__(self, url: str, *, tokens: bool) -> None:
        self._url = url
        self._tokens = tokens
        self._token: str | None = None

    def poll(self) -> list[Notice]:
        found = []
        action = self._get(ACTION_PATH, dict)
        if action is not None:
            kind = MAX_LIFE if action.get("kind") == MAX_LIFE else TERMINATE
            found.append(Notice(kind, utc_of(action.get("time"))))
        for event in self._get(MAINTENANCE_PATH, list) or []:
            if isinstance(event, dict) and event.get("State") == "active":
                found.append(Notice(MAINTENANCE, utc_of(event.get("NotBefore"))))
        if self._get(REBALANCE_PATH, dict) is not None:
            found.append(Notice(REBALANCE, None))
        return found

    def _get(self, path: str, kind: type[Any]) -> Any:
        """The JSON value at ``path``, None for 404."""
        status, body, _ = ask(self._url, path, headers=self._headers())
        if status == 401 and self._tokens:
            self._token = None  # expired
            status, body, _ = ask(self._url, path, headers=self._headers())
        if status == 404:
            return None
        if status != 200:
            raise MetadataDown(f"{self._url}{path}: HTTP {status}")
        try:
            value = json.loads(body)
        except ValueError:
            raise MetadataDown(f"{self._url}{path}: not JSON") from None
        if not isinstance(value, kind):
            raise MetadataDown(f"{self._url}{path}: not a JSON {kind.__name__}")
        return value

    def _headers(self) -> dict[str, str]:
        if not self._tokens:
            return {}
        if self._token is None:
            headers = {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_TTL_S)}
            status, body, _ = ask(self._url, TOKEN_PATH, method="PUT", headers=headers)
            if status != 200:
                raise MetadataDown(f"{self._url}{TOKEN_PATH}: HTTP {status}")
            self._token = body.strip()
        return {"X-aws-ec2-metadata-token": self._token}
