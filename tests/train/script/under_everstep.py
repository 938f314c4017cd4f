"""Runs a script as ``python -m everstep.train.run`` does; with STOP_AT=N the process gets SIGNAL at its N-th step.

Saves that were begun before are through by then. With FAULT_AT=N it is killed at the N-th change of a name or sync of
a file, wherever that is. SLOW_UNTIL=N: nothing that is written in the background gets to the disk before the N-th
step; after a minute the disk fails. CLOCK_AT=N sets the clock back by a day at the N-th step. MODULES_IN stands for
PYTHONPATH, which the process that these are forked from has read already.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

from everstep.train.run import main


def at_step(number: int, act: Callable[[], None]) -> None:
    """Act at a step of this process; the steps before the relaunch do not count."""
    done = 0

    def stepped(*_: Any) -> None:
        nonlocal done
        done += 1
        if done == number:
            act()

    register_optimizer_step_post_hook(stepped)


def stop() -> None:
    for thread in threading.enumerate():
        if thread.name.startswith("everstep-save"):
            thread.join()
    os.kill(os.getpid(), getattr(signal, os.environ.get("SIGNAL", "SIGKILL")))


def set_back() -> None:
    for name, back in (("time", 86400), ("time_ns", 86400 * 10**9)):
        now: Callable[[], Any] = getattr(time, name)
        setattr(time, name, lambda now=now, back=back: now() - back)


def fail_at(number: int) -> None:
    """Kill this process at that change of the file system."""
    calls = itertools.count(1)

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            if next(calls) == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **more)

        return call

    for name in ("fsync", "replace", "link", "unlink"):
        setattr(os, name, counted(getattr(os, name)))


def slow_until(number: int) -> None:
    there, sync = threading.Event(), os.fsync

    def slow(file: int) -> None:
        if threading.current_thread() is not threading.main_thread() and not there.wait(60):
            raise OSError("the step did not come")
        sync(file)

    os.fsync = slow
    at_step(number, there.set)


if "SLOW_UNTIL" in os.environ:
    slow_until(int(os.environ["SLOW_UNTIL"]))
if "STOP_AT" in os.environ:
    at_step(int(os.environ["STOP_AT"]), stop)
if "CLOCK_AT" in os.environ:
    at_step(int(os.environ["CLOCK_AT"]), set_back)
if "FAULT_AT" in os.environ:
    fail_at(int(os.environ["FAULT_AT"]))
if "MODULES_IN" in os.environ:
    sys.path.insert(1, os.environ["MODULES_IN"])
main(sys.argv[1:])
