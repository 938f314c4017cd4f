"""Fault points: named places where a test may kill the process with SIGKILL, to prove that any instant is a safe one.

``EVERSTEP_FAULT_POINT=NAME[:N]`` kills at the N-th pass (default 1). ``EVERSTEP_FAULT_ONCE=FILE`` makes it happen
once over restarts: the file is created before the kill, and nothing happens when it is there.
"""

from __future__ import annotations

import os
import signal

POINTS = (
    "append.before",
    "append.after",
    "launch.before",
    "launch.after",
    "terminate.before",
    "terminate.after",
    "ensure_volume.before",
    "ensure_volume.after",
    "delete_volume.before",
    "delete_volume.after",
    "orders.before",
    "orders.after",
    "join.after",
    "report.before_ack",
    "sweep.before",
    "sweep.after",
    "snapshot.before",
    "snapshot.after",
    "submit.after",
)
"""Every fault point of the controller, one on each side of every effect."""

_passes: dict[str, int] = {}


def reach(point: str) -> None:
    """Marks a fault point; kills this process here if the environment says so.

    Raises:
        ValueError: the point is not in ``POINTS`` (a fault point that no test knows tests nothing).
    """
    if point not in POINTS:
        raise ValueError(f"unknown fault point {point}")
    wanted = os.environ.get("EVERSTEP_FAULT_POINT")
    if not wanted:
        return
    name, _, nth = wanted.partition(":")
    if name != point:
        return
    _passes[point] = _passes.get(point, 0) + 1
    if _passes[point] != int(nth or 1):
        return
    once = os.environ.get("EVERSTEP_FAULT_ONCE")
    if once:
        try:
            os.close(os.open(once, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            return
    os.kill(os.getpid(), signal.SIGKILL)
