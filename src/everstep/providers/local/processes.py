"""Finding and ending every process of an instance, whatever those processes do to get away.

Two ways lead to a process: the tree below the instance's init, which is a subreaper, so that orphans of a double fork
stay in it; and a mark in the environment, inherited by everything an instance starts, which finds what is left when
init itself died. A process is always named by pid *and* start time, and signalled through a pidfd, so that a reused
pid is never hit.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass

from everstep.model.errors import EverstepError


class StillAlive(EverstepError):
    """Processes could not be ended in time; the text names them."""


@dataclass(frozen=True, slots=True)
class ProcessKey:
    """One process for all time: its pid and its start, in clock ticks since boot."""

    pid: int
    start: int


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """A line of the process table; a zombie has ended and only waits to be reaped."""

    key: ProcessKey
    parent: int
    zombie: bool


def lookup(pid: int) -> ProcessInfo | None:
    """The process with that pid now, None if there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            line = file.read()
    except OSError:
        return None
    # The name is in brackets and may contain anything; what follows the last bracket is fixed.
    fields = line[line.rindex(b")") + 2 :].split()
    return ProcessInfo(ProcessKey(pid, int(fields[19])), int(fields[1]), fields[0] in (b"Z", b"X"))


def table() -> dict[int, ProcessInfo]:
    """Every process of the machine, by pid."""
    found = (lookup(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {info.key.pid: info for info in found if info is not None}


def alive(key: ProcessKey) -> bool:
    """Whether exactly that process still runs (a zombie does not)."""
    info = lookup(key.pid)
    return info is not None and info.key == key and not info.zombie


def marked(needle: str, *, within: Iterable[ProcessInfo] | None = None) -> set[ProcessKey]:
    """Processes whose environment at exec contained the text ``needle`` (``NAME=value``)."""
    wanted = needle.encode() + b"\0"
    keys = set()
    for info in table().values() if within is None else within:
        if info.zombie:
            continue
        with contextlib.suppress(OSError), open(f"/proc/{info.key.pid}/environ", "rb") as file:
            environ = b"\0" + file.read()
            if b"\0" + wanted in environ:
                keys.add(info.key)
    return keys


def members(init: ProcessKey | None, needle: str) -> set[ProcessKey]:
    """Live processes of an instance without its init: the tree below init, and whatever carries the mark."""
    everything = table()
    children: dict[int, list[ProcessInfo]] = {}
    for info in everything.values():
        children.setdefault(info.parent, []).append(info)
    found: dict[int, ProcessInfo] = {}
    if init is not None and init.pid in everything and everything[init.pid].key == init:
        todo = [init.pid]
        while todo:
            for child in children.get(todo.pop(), ()):
                if child.key.pid not in found:
                    found[child.key.pid] = child
                    todo.append(child.key.pid)
    keys = {info.key for info in found.values() if not info.zombie}
    keys |= marked(needle, within=(i for i in everything.values() if i.key.pid not in found))
    return keys - {init} - {k for k in keys if k.pid == os.getpid()}


def send(key: ProcessKey, signum: signal.Signals) -> None:
    """Signals exactly that process; one that is gone is no error."""
    try:
        handle = os.pidfd_open(key.pid)
    except OSError:
        return
    try:
        info = lookup(key.pid)
        if info is not None and info.key == key:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, signum)
    finally:
        os.close(handle)


def freeze(init: ProcessKey | None, needle: str) -> set[ProcessKey]:
    """Stops every process of an instance, init first; returns those below init.

    Sweeps until a scan finds nobody new, because a process may fork between the scan and the signal.
    """
    if init is not None:
        send(init, signal.SIGSTOP)
    frozen: set[ProcessKey] = set()
    while new := members(init, needle) - frozen:
        for key in new:
            send(key, signal.SIGSTOP)
        frozen |= new
    return frozen


def thaw(init: ProcessKey | None, needle: str) -> None:
    """Lets every process of an instance go on."""
    for key in members(init, needle):
        send(key, signal.SIGCONT)
    if init is not None:
        send(init, signal.SIGCONT)


def destroy(init: ProcessKey | None, needle: str, *, timeout_s: float = 20.0) -> None:
    """Kills every process of an instance and makes sure of it: two scans in a row find nobody, then init goes.

    Raises:
        StillAlive: something survives SIGKILL for ``timeout_s`` seconds (stuck in the kernel).
    """
    deadline = time.monotonic() + timeout_s
    clean_scans = 0
    while clean_scans < 2:
        left = freeze(init, needle)
        clean_scans = 0 if left else clean_scans + 1
        for key in left:
            send(key, signal.SIGKILL)
        _wait_gone(left, deadline)
    if init is not None:
        send(init, signal.SIGKILL)
        _wait_gone({init}, deadline)


def _wait_gone(keys: set[ProcessKey], deadline: float) -> None:
    pause_s = 0.001
    while left := {key for key in keys if alive(key)}:
        if time.monotonic() > deadline:
            raise StillAlive(f"processes survive SIGKILL: {', '.join(str(k.pid) for k in sorted(left, key=str))}")
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, 0.05)
