"""Short pauses of Python's garbage collector, for a process that holds a million objects and answers at once.

States of jobs are trees: they go when the last reference goes, without the collector. It would look through all of them
again and again all the same, a tenth of a second each time, and meanwhile nobody is answered. So what has survived its
youth is set aside every second, and looked at only now and then.

What is freed goes back to the system: a server under steady load frees as much as it takes, in pieces of all sizes and
in several threads, and without a word the allocator keeps the holes for years.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
from collections.abc import Callable

_ASIDE_S = 1.0
_ALL_S = 1800.0
_TRIM_S = 30.0
_KEPT_FREE = 256 << 10
_YOUNG = 2_000
_NEVER = 1_000_000


async def keep_pauses_short() -> None:
    """Runs until it is cancelled; the collector is then as it was before."""
    before = gc.get_threshold()
    gc.set_threshold(_YOUNG, before[1], _NEVER)
    gc.collect()
    gc.freeze()
    passed_s = 0.0
    trim = _trimmer()
    trim_at_s = _TRIM_S
    try:
        while True:
            await asyncio.sleep(_ASIDE_S)
            passed_s += _ASIDE_S
            trim_at_s -= _ASIDE_S
            if trim is not None and trim_at_s <= 0:
                trim_at_s = _TRIM_S
                await asyncio.to_thread(trim, _KEPT_FREE)
            if passed_s >= _ALL_S:
                # Rings that were set aside before they broke are found here.
                passed_s = 0.0
                gc.unfreeze()
                gc.collect()
            else:
                # All that is young, the oldest of it included: else rings would be set aside, and looked at half an
                # hour later. It also empties the lists in which Python keeps small things for the next use.
                gc.collect()
            gc.freeze()
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)


def _trimmer() -> Callable[[int], object] | None:
    """glibc's ``malloc_trim``; None with another C library."""
    try:
        trim: Callable[[int], object] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return None
    return trim
