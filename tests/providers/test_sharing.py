from __future__ import annotations

import asyncio

import pytest

from everstep.providers.sharing import Shared


class Desk:
    """Answers with the number of the question, once it is told to; keeps which keys were asked for."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.fail = False
        self.gate = asyncio.Event()

    async def ask(self, key: str) -> int:
        self.keys.append(key)
        number, fail = len(self.keys), self.fail
        await self.gate.wait()
        if fail:
            raise OSError("no")
        return number


async def pause() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_those_who_come_while_a_question_is_out_share_the_next_answer() -> None:
    async def main() -> None:
        desk = Desk()
        shared = Shared(desk.ask)
        first = asyncio.create_task(shared.get("d"))
        await pause()
        later = [asyncio.create_task(shared.get("d")) for _ in range(5)]
        await pause()
        desk.gate.set()
        assert await first == 1
        # Not the first one's: what they want to see may have happened after it was asked.
        assert await asyncio.gather(*later) == [2] * 5
        assert await shared.get("d") == 3

    asyncio.run(main())


def test_an_answer_is_for_its_key_alone() -> None:
    async def main() -> None:
        desk = Desk()
        desk.gate.set()
        shared = Shared(desk.ask)
        assert sorted(await asyncio.gather(shared.get("a"), shared.get("b"))) == [1, 2]
        assert sorted(desk.keys) == ["a", "b"]

    asyncio.run(main())


def test_an_error_is_told_to_the_one_who_asked_and_the_next_asks_anew() -> None:
    async def main() -> None:
        desk = Desk()
        desk.fail = True
        shared = Shared(desk.ask)
        first = asyncio.create_task(shared.get("d"))
        await pause()
        later = [asyncio.create_task(shared.get("d")) for _ in range(3)]
        await pause()
        desk.fail = False
        desk.gate.set()
        with pytest.raises(OSError, match="no"):
            await first
        assert await asyncio.gather(*later) == [2] * 3

    asyncio.run(main())


def test_one_who_gives_up_keeps_nobody_waiting() -> None:
    async def main() -> None:
        desk = Desk()
        shared = Shared(desk.ask)
        first, second, third = (asyncio.create_task(shared.get("d")) for _ in range(3))
        await pause()
        first.cancel()
        second.cancel()
        await pause()
        desk.gate.set()
        assert await third == 2
        assert first.cancelled()
        assert second.cancelled()

    asyncio.run(main())
