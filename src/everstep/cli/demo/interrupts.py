"""Signals that end the demo, and the moments in which they have to wait."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end what is inside as Ctrl-C does: by KeyboardInterrupt, so that everything is taken down."""
    with _handled(_interrupt):
        yield


@contextmanager
def deferred() -> Iterator[None]:
    """A signal that comes inside takes effect at the end, by KeyboardInterrupt.

    Between the start of a process and the note that it is ours, and while processes are being ended, an interrupt would
    leave one behind.
    """
    seen: list[int] = []
    with _handled(lambda number, frame: seen.append(number)):
        yield
    if seen:
        raise KeyboardInterrupt


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


@contextmanager
def _handled(handler: signal._HANDLER) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # signals reach the main thread alone
        return
    before = {number: signal.signal(number, handler) for number in _ENDING}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)
