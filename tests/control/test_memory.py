"""What a server holds after many jobs: as much as after a few, but for a line of an index for each."""

from __future__ import annotations

import gc
import sys
from types import BuiltinFunctionType, CodeType, CoroutineType, FrameType, FunctionType, ModuleType
from typing import Any

from everstep.control.controller import Controller
from everstep.model.ids import JobId
from tests.control.site import Site, on_site
from tests.parity.worlds import task

_ROUNDS = 13
_EACH = 5
_BESIDE = (type, ModuleType, FunctionType, BuiltinFunctionType, CodeType, FrameType, CoroutineType)
_NOT_OURS = ("tests.", "everstep.testing.", "everstep.store.", "asyncio", "_asyncio")


def bytes_of(controller: Controller) -> int:
    """Everything that can be reached from the controller, without the journal, the vendor and the agents."""
    seen: set[int] = set()
    found: list[Any] = [controller]
    total = 0
    while found:
        thing = found.pop()
        if id(thing) in seen or isinstance(thing, _BESIDE) or type(thing).__module__.startswith(_NOT_OURS):
            continue
        seen.add(id(thing))
        total += sys.getsizeof(thing)
        found.extend(gc.get_referents(thing))
    return total


def test_rounds_of_jobs_leave_nothing_behind_but_a_line_in_an_index() -> None:
    async def main(site: Site) -> None:
        await site.start()
        held = []
        for turn in range(_ROUNDS):
            jobs = [JobId(f"j-{turn}-{n}") for n in range(_EACH)]
            for job in jobs:
                await site.submit(task(1), job)
            await site.until(lambda done=tuple(jobs): all(map(site.controller.book.is_put_away, done)))  # type: ignore[misc]
            # What the last of them left open for a moment goes too.
            await site.clock.sleep(120.0)
            held.append(bytes_of(site.controller))
        half = _ROUNDS // 2
        per_job = (held[-1] - held[half]) / (_EACH * (_ROUNDS - 1 - half))
        assert per_job < 400, (per_job, held)

    on_site(main)
