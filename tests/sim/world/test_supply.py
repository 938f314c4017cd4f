from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from everstep.sim.world.supply import Supply
from tests.sim.world.made import START, supply


def test_a_tick_holds_until_the_next_and_the_last_for_ever() -> None:
    made = supply([2, 2, 0, 3], gap_s=100.0)
    assert [made.count(START + t) for t in (-5.0, 0.0, 199.9, 200.0, 300.0, 1e6)] == [2, 2, 2, 0, 3, 3]


def test_changes_are_where_count_or_price_change() -> None:
    counts, prices = np.array([1, 1, 1, 2, 2]), np.array([1.0, 1.5, 1.5, 1.5, 1.5])
    made = Supply(counts, prices, 0.0, 60.0, START)
    assert list(made.changes(START, START + 1e9)) == [START + 60.0, START + 180.0]
    assert made.next_change(START + 180.0) is None
    assert (made.price(START), made.price(START + 61.0)) == (1.0, 1.5)


@example([1, 0] * 10, 0.01, 1e9)
@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=40), st.sampled_from([0.01, 32.0, 195.0, 600.0]), st.floats(0, 4e9)
)
def test_from_change_to_change_is_every_tick(counts: list[int], gap_s: float, begins_at: float) -> None:
    made = Supply(np.array(counts), None, 1.0, gap_s, begins_at)
    at, seen = begins_at, []
    while (following := made.next_change(at)) is not None:
        assert following > at
        seen.append((round((following - begins_at) / gap_s), made.count(following)))
        at = following
    wanted = [(i, counts[i]) for i in range(1, len(counts)) if counts[i] != counts[i - 1]]
    assert seen == wanted


def test_the_trace_is_shared_not_copied() -> None:
    counts = np.ones(10_000, dtype=np.int64)
    made = Supply(counts, None, 1.0, 60.0, START)
    assert made.counts is counts
    assert len(made._changes) == 0
    with pytest.raises(AttributeError):
        made.gap_s = 1.0  # type: ignore[misc]
