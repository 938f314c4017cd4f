"""When a call of a vendor is repeated, and after what pause."""

from __future__ import annotations

from random import Random

import pytest

from everstep.model.errors import Throttled, Unreachable
from everstep.providers.repeats import repeated


async def pauses(errors: list[Exception], *, reads: bool = True, attempts: int = 6) -> list[object]:
    """The pauses until an answer came."""
    slept: list[object] = []
    left = iter(errors)

    async def call() -> str:
        for error in left:
            raise error
        return "answer"

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    assert await repeated(call, reads=reads, attempts=attempts, rng=Random(3), sleep=sleep) == "answer"
    return slept


async def test_a_vendor_may_ask_for_a_pause_but_not_for_any() -> None:
    told = [Throttled("slower", retry_after_s=wanted) for wanted in (7.0, 999_999.0)]
    assert await pauses(list(told)) == [7.0, 60.0]


async def test_pauses_of_our_own_are_within_their_bounds() -> None:
    slept = await pauses([Throttled("slower")] * 5)
    assert len(slept) == 5
    for attempt, pause in enumerate(slept):
        assert isinstance(pause, float)
        assert 0.0 <= pause <= 0.5 * 2**attempt


async def test_what_stays_throttled_is_told() -> None:
    with pytest.raises(Throttled):
        await pauses([Throttled("slower")] * 6)


@pytest.mark.parametrize(("reads", "times", "repeats"), [(True, 1, True), (True, 2, False), (False, 1, False)])
async def test_only_a_read_without_an_answer_is_made_again_and_once(reads: bool, times: int, repeats: bool) -> None:
    errors: list[Exception] = [Unreachable("no answer")] * times
    if repeats:
        assert len(await pauses(errors, reads=reads)) == 1
    else:
        with pytest.raises(Unreachable):
            await pauses(errors, reads=reads)
