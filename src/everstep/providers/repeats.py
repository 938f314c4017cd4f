"""When a call of a vendor is repeated: the same for every vendor."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import TypeVar

from everstep.model.errors import Throttled, Unreachable

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 15.0
_LONGEST_TOLD_S = 60.0
"""A vendor may ask for a pause, not for any pause."""

T = TypeVar("T")


async def repeated(
    call: Callable[[], Awaitable[T]],
    *,
    reads: bool,
    attempts: int,
    rng: Random,
    sleep: Callable[[float], Awaitable[object]],
) -> T:
    """Makes a call until it has an answer.

    A throttled call is repeated with full jitter (https://aws.amazon.com/blogs/architecture/
    exponential-backoff-and-jitter/) up to ``attempts`` times; a read without an answer is repeated once. Then the typed
    error goes to the controller, which repeats with the same token.

    Args:
        reads: it changes nothing.
    """
    for attempt in range(attempts):
        pause_s = rng.uniform(0.0, min(_FIRST_PAUSE_S * 2**attempt, _LONGEST_PAUSE_S))
        try:
            return await call()
        except Throttled as error:
            if attempt == attempts - 1:
                raise
            await sleep(min(error.retry_after_s or pause_s, _LONGEST_TOLD_S))
        except Unreachable:
            if not reads or attempt > 0:
                raise
            await sleep(pause_s)
    raise AssertionError("unreachable: the last attempt returns or raises")
