"""Notices of the machine's end, by metadata flavour: ``local``, ``aws``, ``gcp``, ``none``.

A flavour is a function from the service's base URL to its watches. A :class:`Watch` looks once (or long-polls); the
:class:`NoticeWatcher` runs each in a thread of its own and hands on every notice once.
"""

from __future__ import annotations

import logging
import threading
from typing import Callable

from everstep.agent.clock import Clock
from everstep.agent.notices import ec2, gcp
from everstep.agent.notices.kinds import MetadataDown, Notice, Watch

__all__ = ["FLAVOURS", "MetadataDown", "Notice", "NoticeWatcher", "Watch", "watches"]

log = logging.getLogger(__name__)

FLAVOURS: dict[str, Callable[[str, Clock], list[Watch]]] = {
    "local": ec2.local_watches,
    "aws": ec2.aws_watches,
    "gcp": gcp.watches,
}


def watches(metadata: str, clock: Clock) -> list[Watch]:
    """The watches for ``FLAVOUR=URL`` (or ``none``). Raises ValueError for a flavour nobody knows."""
    flavour, _, url = metadata.partition("=")
    if flavour in ("", "none"):
        return []
    if flavour not in FLAVOURS:
        raise ValueError(f"unknown metadata flavour {flavour!r}; known: none, {', '.join(sorted(FLAVOURS))}")
    return FLAVOURS[flavour](url.rstrip("/"), clock)


class NoticeWatcher:
    """Runs watches until stopped; ``on_notice`` gets each different notice once, in a watch's thread."""

    def __init__(self, all_watches: list[Watch], on_notice: Callable[[Notice], None]) -> None:
        self._watches = all_watches
        self._on_notice = on_notice
        self._lock = threading.Lock()
        self._seen: set[Notice] = set()
        self._stopping = threading.Event()

    def start(self) -> None:
        """Begin to watch."""
        for watch in self._watches:
            threading.Thread(target=self._run, args=(watch,), name="notices", daemon=True).start()

    def stop(self) -> None:
        """Watch no more."""
        self._stopping.set()

    def look_now(self) -> None:
        """Look once, in this thread, without waiting for changes (for the shutdown hook)."""
        for watch in self._watches:
            try:
                self._take(watch.look())
            except MetadataDown as error:
                log.debug("metadata: %s", error)

    def _run(self, watch: Watch) -> None:
        failing = False
        while not self._stopping.is_set():
            try:
                self._take(watch.poll())
                failing = False
                pause = watch.interval_s
            except MetadataDown as error:
                if not failing:
                    log.warning("no word from the metadata service: %s", error)
                failing, pause = True, 1.0
            except Exception:  # a strange answer must not end the watch: notices are worth most of all
                log.exception("watching notices failed")
                failing, pause = True, 1.0
            self._stopping.wait(pause)

    def _take(self, found: list[Notice]) -> None:
        for notice in found:
            with self._lock:
                new = notice not in self._seen
                self._seen.add(notice)
            if new:
                self._on_notice(notice)
