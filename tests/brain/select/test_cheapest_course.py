"""``cheapest``: where to be, and when a move pays."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.brain.select.cheapest_course import cheapest

values = st.lists(st.one_of(st.floats(0.01, 100), st.just(math.inf)), max_size=6)


@pytest.mark.parametrize(
    ("value", "now_on", "margin", "expected"),
    [
        ([], None, 0.0, None),
        ([math.inf, math.inf], 1, 0.0, None),
        ([2.0, 1.0, 1.0], None, 0.0, 1),
        ([1.0, 1.0], 1, 0.0, 1),
        ([math.inf, 3.0], 0, 0.5, 1),
        ([0.96, 1.0], 1, 0.05, 1),
        ([0.95, 1.0], 1, 0.05, 0),
        ([0.999, 1.0], 1, 0.0, 0),
    ],
)
def test_cases(value: list[float], now_on: int | None, margin: float, expected: int | None) -> None:
    assert cheapest(np.array(value), now_on, margin) == expected


@given(values, st.floats(0, 0.5), st.integers(0, 5))
def test_it_moves_only_to_what_is_cheapest_and_only_for_the_margin(value: list[float], margin: float, on: int) -> None:
    now_on = on if on < len(value) else None
    chosen = cheapest(np.array(value), now_on, margin)
    sold = [one for one in value if one < math.inf]
    assert (chosen is None) == (not sold)
    if chosen is not None and chosen != now_on:
        assert value[chosen] == min(sold)
        assert now_on is None or value[chosen] <= (1 - margin) * value[now_on]
        assert now_on is None or value[chosen] < value[now_on]
    if chosen is not None and chosen == now_on:
        assert min(sold) > (1 - margin) * value[chosen] or min(sold) == value[chosen]
