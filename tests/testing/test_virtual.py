"""The loop of virtual time: exact, ordered, and never waiting."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.testing.virtual import NothingHappensError, VirtualClock, run_virtual


def test_an_hour_takes_no_time() -> None:
    async def main(clock: VirtualClock) -> float:
        began = clock.now()
        await clock.sleep(3600.25)
        return clock.now() - began

    assert run_virtual(main) == 3600.25


@given(st.lists(st.integers(0, 5)))
def test_timers_fire_in_order_of_time_and_then_of_planning(delays: list[int]) -> None:
    async def main(clock: VirtualClock) -> list[tuple[int, int]]:
        seen: list[tuple[int, int]] = []
        loop = asyncio.get_running_loop()
        for n, delay in enumerate(delays):
            loop.call_later(delay, lambda n=n, d=delay: seen.append((d, n)))
        await asyncio.sleep(6)
        return seen

    assert run_virtual(main) == sorted((d, n) for n, d in enumerate(delays))


def test_everything_that_follows_from_one_timer_is_done_before_the_next_of_the_same_instant() -> None:
    async def main(clock: VirtualClock) -> list[str]:
        seen: list[str] = []

        async def chain(name: str) -> None:
            await clock.sleep(1.0)
            for n in range(3):
                seen.append(f"{name}{n}")
                await asyncio.sleep(0)

        await asyncio.gather(chain("a"), chain("b"))
        return seen

    assert run_virtual(main) == ["a0", "a1", "a2", "b0", "b1", "b2"]


def test_the_named_task_comes_last_at_its_instant() -> None:
    async def main(clock: VirtualClock) -> list[str]:
        seen: list[str] = []

        async def sleeper(name: str) -> None:
            await clock.sleep(1.0)
            seen.append(name)

        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(sleeper(name), name=name) for name in ("loop", "other")]
        await asyncio.gather(*tasks)
        return seen

    assert run_virtual(main, last="loop") == ["other", "loop"]


def test_timers_that_were_cancelled_take_no_time() -> None:
    async def main(clock: VirtualClock) -> float:
        began = clock.now()
        asyncio.get_running_loop().call_later(50.0, lambda: None).cancel()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 2.0)
        return clock.now() - began

    assert run_virtual(main) == 2.0


def test_threads_are_replaced_by_doing_it_at_once() -> None:
    async def main(clock: VirtualClock) -> tuple[int, float]:
        began = clock.now()
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(lambda: 1 // 0)
        return await asyncio.to_thread(lambda: 7), clock.now() - began

    assert run_virtual(main) == (7, 0.0)


def test_waiting_for_nothing_is_an_error_instead_of_a_hang() -> None:
    async def main(clock: VirtualClock) -> None:
        await asyncio.Event().wait()

    with pytest.raises(NothingHappensError):
        run_virtual(main)
