"""Coroutines in virtual time: exact instants, stable order, nothing swallowed."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.sim.strand import Promise, Timeline


def run(timeline: Timeline) -> None:
    timeline.settle()
    while timeline.next_at() is not None:
        timeline.advance()
        timeline.settle()


@given(st.lists(st.integers(0, 5)))
def test_things_happen_in_order_of_time_and_then_of_planning(delays: list[int]) -> None:
    timeline, seen = Timeline(10.0), []
    for n, delay in enumerate(delays):
        timeline.after(delay, lambda n=n, d=delay: seen.append((d, n)))  # type: ignore[misc]
    run(timeline)
    assert seen == sorted((d, n) for n, d in enumerate(delays))
    assert timeline.now() == 10.0 + max(delays, default=0)


def test_what_was_called_off_does_not_happen_and_takes_no_time() -> None:
    timeline, seen = Timeline(0.0), []
    timeline.after(1.0, lambda: seen.append("kept"))
    timeline.after(2.0, lambda: seen.append("called off"))()
    run(timeline)
    assert (seen, timeline.now()) == (["kept"], 1.0)


def test_a_strand_sleeps_in_virtual_time() -> None:
    timeline, seen = Timeline(0.0), []

    async def work() -> None:
        for seconds in (1.5, 0.0, 2.5):
            await timeline.sleep(seconds)
            seen.append(timeline.now())

    strand = timeline.spawn(work(), "work")
    run(timeline)
    assert seen == [1.5, 1.5, 4.0]
    assert strand.done()


def test_a_promise_lets_all_go_on_and_passes_an_error_on() -> None:
    timeline = Timeline(0.0)
    kept, broken, seen = Promise(timeline), Promise(timeline), []

    async def wait(promise: Promise, name: str) -> None:
        try:
            await promise
            seen.append(name)
        except ValueError as error:
            seen.append(f"{name}: {error}")

    for name in ("a", "b"):
        timeline.spawn(wait(kept, name), name)
    timeline.spawn(wait(broken, "c"), "c")
    timeline.settle()
    assert seen == []
    kept.keep()
    kept.keep(ValueError("too late"))
    broken.keep(ValueError("no"))
    timeline.settle()
    timeline.spawn(wait(kept, "later"), "later")
    timeline.settle()
    assert seen == ["a", "b", "c: no", "later"]


def test_an_error_in_a_strand_comes_out() -> None:
    timeline, ended = Timeline(0.0), []

    async def work() -> None:
        await timeline.sleep(1.0)
        raise ZeroDivisionError

    timeline.spawn(work(), "work").add_done_callback(lambda strand: ended.append(strand))
    timeline.settle()
    with pytest.raises(ZeroDivisionError):
        timeline.advance()
    assert len(ended) == 1


def test_waiting_for_what_has_no_virtual_time_is_an_error_that_names_the_strand() -> None:
    timeline = Timeline(0.0)

    async def work() -> None:
        await asyncio.sleep(0)

    timeline.spawn(work(), "the culprit")
    with pytest.raises(RuntimeError, match="the culprit"):
        timeline.settle()


def test_a_strand_that_is_cancelled_cleans_up_and_goes_on_no_more() -> None:
    timeline, seen = Timeline(0.0), []

    async def work() -> None:
        try:
            await timeline.sleep(1.0)
            seen.append("went on")
        finally:
            seen.append("cleaned up")

    strand = timeline.spawn(work(), "work")
    timeline.settle()
    strand.cancel()
    strand.cancel()
    run(timeline)
    assert seen == ["cleaned up"]
    assert strand.done()
