"""The two drivers give identical journals for the same scripted world."""

from __future__ import annotations

import pytest

from everstep.testing.scripted import ScriptedWorld
from everstep.testing.scripted_run import Played, play_live, play_on_heap
from tests.parity.worlds import WORLDS


def first_difference(a: Played, b: Played) -> str:
    for n, (x, y) in enumerate(zip(a.journal, b.journal, strict=False), 1):
        if x != y:
            return f"line {n}:\n  heap {x}\n  live {y}"
    if len(a.journal) != len(b.journal):
        longer = max(a.journal, b.journal, key=len)
        return f"{len(a.journal)} lines on the heap, {len(b.journal)} live; the next one: {longer[min(len(a.journal), len(b.journal))]}"
    return ""


@pytest.mark.parametrize("world", WORLDS, ids=[w.name for w in WORLDS])
def test_both_drivers_write_the_same_journal(world: ScriptedWorld) -> None:
    heap, live = play_on_heap(world), play_live(world)
    assert first_difference(heap, live) == ""
    assert heap.states == live.states
    assert heap.refused == live.refused
