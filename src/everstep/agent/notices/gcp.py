"""The metadata of Compute Engine: long polls that answer when a value changes."""

from __future__ import annotations

from typing import Callable
from urllib.parse import urlencode

from everstep.agent.clock import Clock
from everstep.agent.notices.kinds import MAINTENANCE, TERMINATE, MetadataDown, Notice, Watch, ask

PREEMPTED_PATH = "/computeMetadata/v1/instance/preempted"
MAINTENANCE_PATH = "/computeMetadata/v1/instance/maintenance-event"
_WAIT_S = 60
_PREEMPTION_S = 30.0  # from the signal to the forced stop
_MAINTENANCE_S = 60.0  # a host event that terminates gives at least this


def watches(url: str, clock: Clock) -> list[Watch]:
    """Preemption and host maintenance; the base URL is ``http://metadata.google.internal`` there."""
    url = url or "http://metadata.google.internal"

    def preempted(value: str) -> Notice | None:
        return Notice(TERMINATE, clock.utc() + _PREEMPTION_S) if value.upper() == "TRUE" else None

    def maintenance(value: str) -> Notice | None:
        # MIGRATE_ON_HOST_MAINTENANCE moves the machine alive: nothing to do.
        return Notice(MAINTENANCE, clock.utc() + _MAINTENANCE_S) if value.upper().startswith("TERMINATE") else None

    return [_ValueWatch(url, PREEMPTED_PATH, preempted), _ValueWatch(url, MAINTENANCE_PATH, maintenance)]


class _ValueWatch(Watch):
    interval_s = 0.0  # the service waits, not we

    def __init__(self, url: str, path: str, meaning: Callable[[str], Notice | None]) -> None:
        self._url = url
        self._path = path
        self._meaning = meaning
        self._etag = "0"  # nothing seen: the first answer comes at once
        self._announced: Notice | None = None
        self._last = ""

    def poll(self) -> list[Notice]:
        query = {"wait_for_change": "true", "last_etag": self._etag, "timeout_sec": str(_WAIT_S)}
        before = self._last
        found = self._ask(query, timeout_s=_WAIT_S + 5.0)
        self.interval_s = 0.0 if self._last != before else 0.5  # a service that does not wait must not be flooded
        return found

    def look(self) -> list[Notice]:
        return self._ask({}, timeout_s=1.0)

    def _ask(self, query: dict[str, str], *, timeout_s: float) -> list[Notice]:
        path = f"{self._path}?{urlencode(query)}" if query else self._path
        status, body, answered = ask(self._url, path, headers={"Metadata-Flavor": "Google"}, timeout_s=timeout_s)
        if status != 200 or answered.get("metadata-flavor") != "Google":
            raise MetadataDown(f"{self._url}{self._path}: HTTP {status}")
        self._etag = answered.get("etag", "0")
        value = body.strip()
        if value != self._last:
            self._last = value
            self._announced = self._meaning(value)  # fixes the deadline once per change
        return [] if self._announced is None else [self._announced]
