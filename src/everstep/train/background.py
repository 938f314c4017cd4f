"""A thread for work that training does not wait for."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

_NICE = 5


class Background(ThreadPoolExecutor):
    """One thread, of lower priority than training where the system has that per thread (Linux).

    The interpreter's end waits for what was begun; a forked child has none of it.
    """

    def __init__(self, name: str) -> None:
        super().__init__(1, thread_name_prefix=f"everstep-{name}", initializer=_be_nice)


def in_background(name: str, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """Work in a thread that is there as long as the work: a script that waits for all threads must not wait for ever.

    Raises:
        RuntimeError: the interpreter ends.
    """
    thread = Background(name)
    try:
        return thread.submit(work, *arguments)
    finally:
        thread.shutdown(wait=False)


def done(value: Any) -> Future[Any]:
    """Work that is over, with this result."""
    future: Future[Any] = Future()
    future.set_result(value)
    return future


def _be_nice() -> None:
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
