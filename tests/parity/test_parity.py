"""The two drivers give identical journals for the same scripted world."""

from __future__ import annotations

import pytest
from hypothesis import given

from everstep.testing.scripted import ScriptedWorld
from everstep.testing.scripted_run import Played, play_live, play_on_heap
from tests.parity.generated import worlds
from tests.parity.worlds import WORLDS


def first_difference(a: Played, b: Played) -> str:
    for n, (x, y) in enumerate(zip(a.journal, b.journal, strict=False), 1):
        if x != y:
            return f"line {n}:\n  heap {x}\n  live {y}"
    if len(a.journal) != len(b.journal):
        rest = max(a.journal, b.journal, key=len)[min(len(a.journal), len(b.journal)) :]
        return f"{len(a.journal)} lines on the heap, {len(b.journal)} live; the next one: {rest[0]}"
    return ""


@pytest.mark.parametrize("world", WORLDS, ids=[w.name for w in WORLDS])
def test_both_drivers_write_the_same_journal(world: ScriptedWorld) -> None:
    heap, live = play_on_heap(world), play_live(world)
    assert first_difference(heap, live) == ""
    assert heap.states == live.states
    assert heap.refused == live.refused


@given(worlds())
def test_both_drivers_write_the_same_journal_for_any_world(world: ScriptedWorld) -> None:
    heap, live = play_on_heap(world), play_live(world)
    assert first_difference(heap, live) == ""
    assert heap.states == live.states
    assert heap.refused == live.refused


def test_a_world_leaves_the_same_journal_whenever_it_is_played() -> None:
    world = next(w for w in WORLDS if w.name == "three_jobs")
    assert first_difference(play_on_heap(world), play_on_heap(world)) == ""
