"""The one door by which everything comes to the kernel."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from everstep.control.inbox import Inbox


@pytest.mark.parametrize("turns", range(5))
async def test_a_cancellation_that_comes_with_an_event_is_not_lost(turns: int) -> None:
    inbox = Inbox()
    taken: list[object] = []

    async def take() -> None:
        while True:
            taken.extend(await inbox.take(3600.0))

    task = asyncio.create_task(take())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    inbox.market_moved()
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    done, _ = await asyncio.wait([task], timeout=60.0)  # takes no time, but a busy machine may
    try:
        assert done, f"it goes on, with {len(taken)} taken"
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
