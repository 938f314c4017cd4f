"""The controller's inbox: what is put into it, in which portions it is taken out, how those who wait are told."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from everstep.model.errors import EverstepError
from everstep.model.events import Event
from everstep.model.ids import JobId

_MOST = 512
"""So much is written to the journal at once."""


@dataclass(slots=True)
class Item:
    """An event for a job.

    Attributes:
        done: set when the event is durable, or refused.
        asked: it is a user's request, which may be refused; facts are not.
    """

    job: JobId
    event: Event
    done: asyncio.Future[None]
    asked: bool = False


class Market:
    """The offers changed."""


class Inbox:
    """What happened and was not looked at yet. Anybody puts, one loop takes."""

    def __init__(self) -> None:
        """Empty."""
        self._queue: asyncio.Queue[Item | Market | None] = asyncio.Queue()
        self._in_hand: list[Item | Market | None] = []

    def put(self, job: JobId, event: Event, *, asked: bool = False) -> asyncio.Future[None]:
        """Takes an event in; the future is done when it is durable, or refused."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait(Item(job, event, done, asked))
        return done

    def market_moved(self) -> None:
        """Takes in that the offers changed."""
        self._queue.put_nowait(Market())

    def close(self) -> None:
        """Takes in that what is here by now is the last to be looked at."""
        self._queue.put_nowait(None)

    async def take(self, timeout_s: float) -> list[Item | Market | None]:
        """What is here, in order, or else the first that comes within ``timeout_s``; None stands for ``close``."""
        items: list[Item | Market | None] = []
        self._in_hand = items
        if timeout_s > 0 or not self._queue.empty():
            try:
                # Not `wait_for`, which before Python 3.12 loses a cancellation that comes together with an item.
                async with asyncio.timeout(timeout_s):
                    items.append(await self._queue.get())
            except TimeoutError:
                return items
        while len(items) < _MOST and not self._queue.empty():
            items.append(self._queue.get_nowait())
        return items

    def give_up(self) -> None:
        """Nobody will look at what is left, nor go on with what was taken last; those who wait for it must know."""
        while not self._queue.empty():
            self._in_hand.append(self._queue.get_nowait())
        for item in self._in_hand:
            if isinstance(item, Item) and not item.done.done():
                item.done.cancel()


def answer(taken: Sequence[Item], refused: Sequence[tuple[Item, EverstepError]]) -> None:
    """Tells those who wait. Facts that concern nobody any more are dropped in silence: only requests have somebody to
    tell."""
    for item in taken:
        if not item.done.done():
            item.done.set_result(None)
    for item, error in refused:
        if item.done.done():
            continue
        if item.asked:
            item.done.set_exception(error)
        else:
            item.done.set_result(None)
