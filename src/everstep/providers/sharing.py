"""One answer for all who asked before the question went out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class Shared(Generic[K, T]):
    """A question that many may ask at once: one asks it, and those who came before he began have his answer.

    An answer to a question that went out earlier is given to nobody: what happened in between would not be in it.
    """

    def __init__(self, ask: Callable[[K], Awaitable[T]]) -> None:
        self._ask = ask
        self._turns: dict[K, _Turn[T]] = {}

    async def get(self, key: K) -> T:
        """The answer. An error is for the one who asked: others ask for themselves."""
        turn = self._turns.setdefault(key, _Turn())
        turn.asked += 1
        mine = turn.asked
        try:
            async with turn.lock:
                if turn.answered < mine:
                    upto = turn.asked
                    answer = await self._ask(key)
                    turn.answered, turn.answers = upto, [answer]
                return turn.answers[0]
        finally:
            turn.left += 1
            if turn.left == turn.asked:
                self._turns.pop(key, None)  # nobody waits: nothing is kept


class _Turn(Generic[T]):
    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.asked = 0
        self.answered = 0
        self.left = 0
        self.answers: list[T] = []
