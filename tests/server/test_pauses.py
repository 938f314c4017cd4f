from __future__ import annotations

import asyncio
import contextlib
import gc

from everstep.server import pauses


async def test_what_lives_long_is_set_aside_and_given_back_at_the_end() -> None:
    before = gc.get_threshold()
    work = asyncio.create_task(pauses.keep_pauses_short())
    await asyncio.sleep(0)
    assert gc.get_freeze_count() > 0
    assert gc.get_threshold() != before
    work.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await work
    assert gc.get_freeze_count() == 0
    assert gc.get_threshold() == before
