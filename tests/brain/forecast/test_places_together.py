"""How long a failed pool stays away, and how far zones fail together."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.brain.forecast.availability import AGES_H, BUILT_IN, Rates
from everstep.brain.forecast.coupling import Track, correlation, coupling
from everstep.brain.forecast.piecewise import Piecewise
from everstep.brain.forecast.recovery import back_after_h, up_probability

FLAT = Rates(loss=Piecewise((0.0,), (0.5,)), back=Piecewise((0.0,), (2.0,)))


def test_half_of_the_pools_are_back_after_the_median() -> None:
    assert back_after_h(FLAT, 0.0) == pytest.approx(math.log(2.0) / 2.0)
    median_h = back_after_h(BUILT_IN, 1.0, 0.5)
    assert BUILT_IN.back.flip_probability(1.0, median_h) == pytest.approx(0.5)
    assert back_after_h(BUILT_IN, 6.0) > median_h
    with pytest.raises(ValueError, match="chance"):
        back_after_h(FLAT, 0.0, 1.0)


@pytest.mark.parametrize("up", [True, False])
def test_without_ageing_it_is_the_two_state_chain(up: bool) -> None:
    """P(up at t) = p + (now - p) exp(-(loss + back) t), p = back / (loss + back)."""
    for after_h in (0.1, 1.0, 5.0):
        exact = 0.8 + (up - 0.8) * math.exp(-2.5 * after_h)
        assert up_probability(FLAT, up, 3.0, after_h, step_h=0.002) == pytest.approx(exact, abs=2e-3)
    assert up_probability(FLAT, up, 0.0, 0.0) == float(up)


def test_with_ageing_it_is_what_random_runs_do() -> None:
    rng = random.Random(2)
    runs, ups = 20_000, 0
    for _ in range(runs):
        up, age_h, left_h = False, 0.5, 3.0
        while True:
            run_h = BUILT_IN.of(up).hours_to(age_h, rng.expovariate(1.0))
            if run_h > left_h:
                break
            up, age_h, left_h = not up, 0.0, left_h - run_h
        ups += up
    assert up_probability(BUILT_IN, False, 0.5, 3.0, step_h=1 / 60) == pytest.approx(ups / runs, abs=0.012)


@given(st.booleans(), st.floats(0.0, 20.0), st.floats(0.0, 6.0))
def test_it_is_a_probability(up: bool, age_h: float, after_h: float) -> None:
    assert 0.0 <= up_probability(BUILT_IN, up, age_h, after_h) <= 1.0
    assert len(BUILT_IN.back.per_h) == len(AGES_H)


def test_correlation_by_hand() -> None:
    a = Track([(0.0, True), (50.0, False)], 100.0)
    assert correlation(a, a) == pytest.approx(1.0)
    assert correlation(a, Track([(0.0, False), (50.0, True)], 100.0)) == pytest.approx(-1.0)
    assert correlation(a, Track([(0.0, True), (25.0, False), (50.0, True), (75.0, False)], 100.0)) == pytest.approx(0.0)
    # Up for 25 and 50 of 100, both for 25: (.25 - .125) / sqrt(.1875 * .25).
    assert correlation(a, Track([(0.0, True), (25.0, False)], 100.0)) == pytest.approx(0.125 / math.sqrt(0.046875))


def test_correlation_of_what_was_never_seen_together_is_not_known() -> None:
    a = Track([(0.0, True), (50.0, False)], 100.0)
    assert math.isnan(correlation(a, Track([(200.0, True)], 300.0)))
    assert math.isnan(correlation(a, Track([(0.0, True)], 100.0)))
    with pytest.raises(ValueError, match="order of time"):
        Track([(5.0, True), (1.0, False)], 9.0)
    with pytest.raises(ValueError, match="order of time"):
        Track([], 9.0)


TRACKS = st.lists(st.floats(0.1, 50.0), min_size=1, max_size=8).map(
    lambda gaps: Track([(sum(gaps[:i]), i % 2 == 0) for i in range(len(gaps))], sum(gaps))
)


@given(TRACKS, TRACKS)
def test_correlation_is_mutual_and_bounded(a: Track, b: Track) -> None:
    value = correlation(a, b)
    if not math.isnan(value):
        assert -1.0 - 1e-9 <= value <= 1.0 + 1e-9
        assert correlation(b, a) == pytest.approx(value)


def test_zones_of_a_region_are_held_apart_from_others() -> None:
    rng = random.Random(4)
    shared = [rng.random() < 0.5 for _ in range(400)]
    tracks = {}
    for region, copies in (("r1", True), ("r2", False)):
        for zone in "ab":
            states = [s if copies and rng.random() < 0.8 else rng.random() < 0.5 for s in shared]
            tracks[("c", region, zone)] = Track([(float(i), s) for i, s in enumerate(states)], 400.0)
    found = coupling({pool: track for pool, track in tracks.items() if pool[1] == "r1"})
    assert found.within_region == pytest.approx(0.64, abs=0.12)
    assert math.isnan(found.across_regions)
    assert abs(coupling(tracks).across_regions) < 0.1
