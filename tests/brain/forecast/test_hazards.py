"""What follows from a cumulative hazard: survival, residual life, likelihoods of censored records."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from everstep.brain.forecast.hazard import (
    Hazard,
    log_likelihood,
    mean_log_likelihood,
    mean_residual_s,
    rate_per_h,
    residual_survival,
    survival,
)
from everstep.brain.forecast.parametric import Bathtub, Exponential, Lomax, Weibull
from everstep.brain.forecast.piecewise import Piecewise
from everstep.brain.forecast.records import SHORTEST_H, Lifetime, counted, lasted

H = 3600.0
MODELS: dict[str, Hazard] = {
    "exponential": Exponential(0.2),
    "weibull": Weibull(0.6, 8.0),
    "bathtub": Bathtub(0.5, 1.0, 0.02, 0.3, 2.0),
    "lomax": Lomax(2.0, 10.0),
    "piecewise": Piecewise((0.0, 0.25, 1.0, 4.0), (1.0, 0.5, 0.2, 0.05)),
}
each = pytest.mark.parametrize("hazard", MODELS.values(), ids=MODELS)
AGES_H = st.floats(0.0, 60.0)


@each
@given(AGES_H, AGES_H)
def test_the_cumulative_hazard_never_falls(hazard: Hazard, a: float, b: float) -> None:
    low, high = sorted((a, b))
    assert hazard.cumulative(0.0) == 0.0
    assert hazard.cumulative(high * H) >= hazard.cumulative(low * H)


@each
@given(AGES_H, AGES_H)
def test_to_last_is_to_last_to_an_age_and_then_on(hazard: Hazard, age: float, more: float) -> None:
    whole = survival(hazard, (age + more) * H)
    assert survival(hazard, age * H) * residual_survival(hazard, more * H, age * H) == pytest.approx(whole, rel=1e-9)


@each
@given(st.floats(0.05, 40.0))
def test_a_narrow_interval_is_a_known_moment(hazard: Hazard, age: float) -> None:
    """log(S(a) - S(a + w)) = log density + log w, as w goes to nothing."""
    width = 1e-7
    # Not across the edge of a piece, where the density jumps.
    assume(math.isclose(rate_per_h(hazard, age * H), rate_per_h(hazard, (age + width) * H), rel_tol=1e-3))
    narrow = log_likelihood(hazard, Lifetime(age, age + width))
    assert narrow - math.log(width) == pytest.approx(log_likelihood(hazard, lasted(age, True)), abs=2e-2)


@each
@given(st.lists(st.floats(0.05, 40.0), min_size=1, max_size=5, unique=True))
def test_what_can_happen_adds_up_to_one(hazard: Hazard, cuts: list[float]) -> None:
    """Lost in one of the intervals, or censored after the last."""
    edges = [0.0, *sorted(cuts)]
    lives = [Lifetime(low, high) for low, high in pairwise(edges)] + [lasted(edges[-1], False)]
    assert sum(math.exp(log_likelihood(hazard, life)) for life in lives) == pytest.approx(1.0, abs=1e-9)


@each
def test_the_rate_is_the_slope_and_the_mean_the_integral(hazard: Hazard) -> None:
    for age_h in (0.5, 3.0, 9.0):
        slope = (hazard.cumulative((age_h + 1e-3) * H) - hazard.cumulative((age_h - 1e-3) * H)) / 2e-3
        assert rate_per_h(hazard, age_h * H) == pytest.approx(slope, rel=1e-3)
    steps = 40_000
    summed = sum(residual_survival(hazard, (i + 0.5) * 30 * H / steps, 2 * H) for i in range(steps)) * 30 * H / steps
    assert mean_residual_s(hazard, 2 * H, 30 * H) == pytest.approx(summed, rel=1e-5)
    assert mean_residual_s(hazard, 2 * H, 0.0) == 0.0


def test_the_general_mean_agrees_with_the_closed_form() -> None:
    hazard = Piecewise((0.0, 0.25, 1.0, 4.0), (1.0, 0.5, 0.2, 0.05))
    closed = hazard.mean_residual_h(0.1, 50.0)
    assert mean_residual_s(hazard, 0.1 * H, 50.0 * H) / H == pytest.approx(closed, rel=1e-5)


@given(st.floats(0.0, 20.0), st.floats(0.0, 8.0))
def test_the_time_to_an_amount_of_hazard_is_its_inverse(age: float, amount: float) -> None:
    hazard = Piecewise((0.0, 0.25, 1.0, 4.0), (1.0, 0.0, 0.2, 0.05))
    assert hazard.between(age, age + hazard.hours_to(age, amount)) == pytest.approx(amount, abs=1e-9)
    assert Piecewise((0.0, 1.0), (1.0, 0.0)).hours_to(0.5, 0.6) == math.inf


def test_a_likelihood_by_hand() -> None:
    hazard = Exponential(0.5)
    assert log_likelihood(hazard, lasted(2.0, True)) == pytest.approx(math.log(0.5) - 1.0)
    assert log_likelihood(hazard, lasted(2.0, False)) == pytest.approx(-1.0)
    assert log_likelihood(hazard, Lifetime(2.0, 4.0)) == pytest.approx(math.log(math.exp(-1.0) - math.exp(-2.0)))
    lives = [lasted(2.0, True), lasted(2.0, False)]
    assert mean_log_likelihood(lives, lambda pool: hazard) == pytest.approx((math.log(0.5) - 2.0) / 2)
    assert math.isnan(mean_log_likelihood([], lambda pool: hazard))


def test_records_say_what_is_known() -> None:
    lives = [lasted(3.0, True), lasted(3.0, False), Lifetime(1.0, 2.0)]
    assert [(life.lost, life.exact) for life in lives] == [(True, True), (False, False), (True, False)]
    assert counted(lives) == 2
    assert lasted(0.0, True).lived_h == SHORTEST_H
    for low, high in ((-1.0, 2.0), (3.0, 2.0), (math.inf, math.inf), (math.nan, 1.0)):
        with pytest.raises(ValueError, match="lived_h"):
            Lifetime(low, high)
