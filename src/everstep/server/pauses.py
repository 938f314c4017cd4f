"""Short pauses of Python's garbage collector, for a process that holds a million objects and answers at once.

States of jobs are trees: they go when the last reference goes, without the collector. It would look through all of them
again and again all the same, a tenth of a second each time, and meanwhile nobody is answered. So what has survived its
youth is set aside every second, and looked at only now and then.
"""

from __future__ import annotations

import asyncio
import gc

_ASIDE_S = 1.0
_ALL_S = 1800.0
_YOUNG = 2_000
_NEVER = 1_000_000


async def keep_pauses_short() -> None:
    """Runs until it is cancelled; the collector is then as it was before."""
    before = gc.get_threshold()
    gc.set_threshold(_YOUNG, before[1], _NEVER)
    gc.collect()
    gc.freeze()
    passed_s = 0.0
    try:
        while True:
            await asyncio.sleep(_ASIDE_S)
            passed_s += _ASIDE_S
            if passed_s >= _ALL_S:
                # Rings that were set aside before they broke are found here.
                passed_s = 0.0
                gc.unfreeze()
                gc.collect()
            else:
                gc.collect(1)
            gc.freeze()
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
