"""What is put into the controller's inbox, and how those who wait for it are told."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from everstep.model.errors import EverstepError
from everstep.model.events import Event
from everstep.model.ids import JobId


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


def give_up(items: Sequence[object]) -> None:
    """Nobody will look at them any more; those who wait for them must know."""
    for item in items:
        if isinstance(item, Item) and not item.done.done():
            item.done.cancel()
