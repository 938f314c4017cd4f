"""Processes as ``/proc`` shows them: walk a tree, signal without hitting a reused pid, kill until nothing is left.

A process is named by (pid, start time), never by its pid alone. Where the kernel has pidfds the check and the signal
cannot be separated by a reuse of the pid.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Callable

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_SWEEP_PAUSE_S = 0.005


@dataclass(frozen=True)
class Proc:
    """One process at one moment.

    ``start`` is in clock ticks since boot; ``state`` is the letter of ``/proc/pid/stat``.
    """

    pid: int
    ppid: int
    start: int
    state: str


def read(pid: int) -> Proc | None:
    """The process with this pid now, or None."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    fields = text[text.rfind(b")") + 2 :].split()  # the name may hold blanks and parentheses
    return Proc(pid, int(fields[1]), int(fields[19]), fields[0].decode())


def table() -> dict[int, Proc]:
    """All processes by pid."""
    found = (read(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {proc.pid: proc for proc in found if proc is not None}


def descendants(root: int, procs: dict[int, Proc] | None = None) -> list[Proc]:
    """Everything below ``root``, parents before children, zombies included."""
    procs = table() if procs is None else procs
    children: dict[int, list[Proc]] = {}
    for proc in procs.values():
        children.setdefault(proc.ppid, []).append(proc)
    found: list[Proc] = []
    todo = [root]
    while todo:
        below = children.get(todo.pop(), [])
        found.extend(below)
        todo.extend(proc.pid for proc in below)
    return found


def send(proc: Proc, signum: int) -> bool:
    """Signal exactly this process; False if it is gone (whoever has its pid now is left alone)."""
    try:
        if not hasattr(os, "pidfd_open"):
            if _same(proc):
                os.kill(proc.pid, signum)
                return True
            return False
        fd = os.pidfd_open(proc.pid)
        try:
            if not _same(proc):
                return False
            signal.pidfd_send_signal(fd, signum)
            return True
        finally:
            os.close(fd)
    except OSError:
        return False


def kill_all(find: Callable[[], Iterable[Proc]], *, reap: Callable[[], None], timeout_s: float) -> list[Proc]:
    """Kill what ``find`` returns until it returns nothing alive.

    Each round first stops everything, and looks again until no new process shows up: a stopped process cannot fork, so
    a fork bomb or a respawning parent cannot outrun the sweep.

    Args:
        find: lists the processes to kill; called again and again.
        reap: collects dead children, so that they leave the list.
        timeout_s: give up after this long (processes in uninterruptible sleep cannot be killed).

    Returns:
        What was still there at the end; empty unless the time ran out.
    """
    end = time.monotonic() + timeout_s
    while True:
        stopped: set[tuple[int, int]] = set()
        alive = [proc for proc in find() if proc.state not in "ZX"]
        while any((proc.pid, proc.start) not in stopped for proc in alive):
            for proc in alive:
                if (proc.pid, proc.start) not in stopped:
                    send(proc, signal.SIGSTOP)
                    stopped.add((proc.pid, proc.start))
            alive = [proc for proc in find() if proc.state not in "ZX"]
        for proc in alive:
            send(proc, signal.SIGKILL)
        reap()
        left = list(find())
        if not left or time.monotonic() > end:
            return left
        time.sleep(_SWEEP_PAUSE_S)


def soft_targets(root: int, signum: int) -> list[Proc]:
    """Whom to send a polite signal in the tree of ``root`` (itself included).

    The topmost process on each branch that *handles* the signal: a shell that merely waits must not die of it before
    its child has saved, and children of a handler are that handler's business. Nobody handles it: empty list.
    """
    procs = table()
    children: dict[int, list[Proc]] = {}
    for proc in procs.values():
        children.setdefault(proc.ppid, []).append(proc)
    found: list[Proc] = []
    todo = [procs[root]] if root in procs else []
    while todo:
        proc = todo.pop()
        if handles(proc.pid, signum):
            found.append(proc)
        else:
            todo.extend(children.get(proc.pid, []))
    return found


def handles(pid: int, signum: int) -> bool:
    """Whether the process has a handler for the signal (neither default nor ignored)."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            for line in file:
                if line.startswith(b"SigCgt:"):
                    return bool(int(line.split()[1], 16) >> (signum - 1) & 1)
    except OSError:
        pass
    return False


def with_environment(entry: bytes) -> list[Proc]:
    """Other processes that we may look at and whose environment holds exactly ``entry`` (``b"NAME=value"``)."""
    found = []
    for proc in table().values():
        with contextlib.suppress(OSError), open(f"/proc/{proc.pid}/environ", "rb") as file:
            if proc.pid != os.getpid() and entry in file.read().split(b"\0"):
                found.append(proc)
    return found


def become_subreaper() -> bool:
    """Make orphans below this process its children instead of init's. False if the kernel refuses."""
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> bool:
    """Have the kernel SIGKILL this process when the *thread* that created it ends. Survives exec."""
    return _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: int) -> bool:
    try:
        return bool(_LIBC.prctl(option, value, 0, 0, 0) == 0)
    except AttributeError:
        return False


def _same(proc: Proc) -> bool:
    now = read(proc.pid)
    return now is not None and now.start == proc.start


_LIBC = ctypes.CDLL(None, use_errno=True)  # loaded before any fork: a forked child must not import or load
