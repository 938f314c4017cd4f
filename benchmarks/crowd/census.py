"""A count of what a running server holds, for the benchmark's own eyes: nothing of it is in the server.

The provider that the benchmark plugs in is loaded into the server's process; with ``EVERSTEP_BENCH_CENSUS`` in the
environment it writes a line of JSON to that file whenever the process gets SIGUSR2: objects and bytes by type, what
the allocator holds, with ``EVERSTEP_BENCH_TRACE`` the lines of code whose memory grew most since the first call, and
with ``EVERSTEP_BENCH_TRIM`` how much of it is holes.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import sys
import time
import tracemalloc
from collections import Counter
from types import FrameType
from typing import Any

import psutil

_TYPES = 60
_LINES = 60
_FRAMES = 1


def install() -> None:
    """Listens for the signal if the environment asks for it."""
    path = os.environ.get("EVERSTEP_BENCH_CENSUS")
    if not path:
        return
    census = _Census(path)
    if os.environ.get("EVERSTEP_BENCH_TRACE"):
        tracemalloc.start(_FRAMES)
    signal.signal(signal.SIGUSR2, census.take)


class _Census:
    def __init__(self, path: str) -> None:
        self._path = path
        self._first: tracemalloc.Snapshot | None = None

    def take(self, number: int, frame: FrameType | None) -> None:
        """Writes one line."""
        found: dict[str, Any] = {"at": time.time(), "rss_mib": psutil.Process().memory_info().rss / 2**20}
        found["frozen"] = gc.get_freeze_count()
        gc.unfreeze()
        before = _counts()
        # What only the collector frees, and would be found after half an hour only.
        found["rings"] = gc.collect()
        after = _counts()
        found["types"] = {k: [n, after[1][k]] for k, n in after[0].most_common(_TYPES)}
        found["in_rings"] = {k: n - after[0][k] for k, n in before[0].most_common() if n - after[0][k] > 1}
        found["by_bytes"] = after[1].most_common(_TYPES)
        found["blocks"] = sys.getallocatedblocks()
        found["malloc"] = _malloc()
        if tracemalloc.is_tracing():
            found["growth"] = self._growth()
        if os.environ.get("EVERSTEP_BENCH_TRIM"):
            # How much of it is holes: memory that glibc could give back.
            ctypes.CDLL(None).malloc_trim(0)
            found["trimmed_rss_mib"] = psutil.Process().memory_info().rss / 2**20
        gc.freeze()
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps(found) + "\n")

    def _growth(self) -> list[str]:
        now = tracemalloc.take_snapshot()
        if self._first is None:
            self._first = now
            return [str(line) for line in now.statistics("lineno")[:_LINES]]
        return [str(line) for line in now.compare_to(self._first, "lineno")[:_LINES]]


def _counts() -> tuple[Counter[str], Counter[str]]:
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for thing in gc.get_objects():
        name = f"{type(thing).__module__}.{type(thing).__qualname__}"
        counts[name] += 1
        sizes[name] += sys.getsizeof(thing)
    return counts, sizes


class _Info(ctypes.Structure):
    _names = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    _fields_ = tuple((name, ctypes.c_size_t) for name in _names)


def _malloc() -> dict[str, float]:
    """MiB of glibc's heap: mapped, in use, free; empty with another libc."""
    try:
        mallinfo2 = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError):
        return {}
    mallinfo2.restype = _Info
    info = mallinfo2()
    return {
        "arena": info.arena / 2**20, "mapped": info.hblkhd / 2**20,
        "used": info.uordblks / 2**20, "free": info.fordblks / 2**20,
    }  # fmt: skip
