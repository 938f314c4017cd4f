"""Hazards of availability: what is counted, what comes out, and that looking more often changes nothing."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.brain.forecast.availability import (
    AGES_H,
    BUILT_IN,
    Counts,
    Observed,
    Prior,
    Rates,
    pooled,
    pooled_rates,
)
from everstep.brain.forecast.piecewise import Piecewise

H = 3600.0
RUNS_H = st.lists(st.floats(0.01, 40.0), min_size=1, max_size=12)
HALF_LIVES_H = st.sampled_from([None, 2.0, 96.0])


def follow(runs_h: list[float], half_life_h: float | None = None) -> Observed:
    seen = Observed.begin(0.0, True, half_life_h=half_life_h)
    for hours in runs_h:
        seen = seen.watched(seen.at_s + hours * H, not seen.up)
    return seen


def test_before_anything_was_seen_the_prior_stands() -> None:
    rates = Observed.begin(0.0, True).rates()
    assert rates.loss.per_h == pytest.approx(BUILT_IN.loss.per_h, rel=1e-12)
    assert rates.back.per_h == pytest.approx(BUILT_IN.back.per_h, rel=1e-12)


def test_the_hours_of_a_run_go_to_the_ages_at_which_they_were_lived() -> None:
    seen = follow([5.0, 0.25])
    assert seen.up_runs == Counts((0, 0, 0, 1, 0), pytest.approx((0.25, 0.75, 3.0, 1.0, 0.0)))
    assert seen.down_runs == Counts((1, 0, 0, 0, 0), pytest.approx((0.25, 0, 0, 0, 0)))
    assert (seen.up, seen.age_h(seen.at_s + H)) == (True, pytest.approx(1.0))


def test_the_estimate_by_hand() -> None:
    # 5 h up, then lost: H = 1.13/4 + 3/4 * .913 + 3 * .301 + .145 = 2.01525; phi = (1.5 + 1)/(1.5 + H).
    rates = follow([5.0]).rates()
    phi = 2.5 / (1.5 + 2.01525)
    assert rates.loss.per_h[0] == pytest.approx(phi * 1.13 * 10 / (10 + phi * 1.13 * 0.25), rel=1e-12)
    assert rates.loss.per_h[3] == pytest.approx(phi * 0.145 * 11 / (10 + phi * 0.145), rel=1e-12)
    assert rates.loss.per_h[4] == pytest.approx(phi * 0.070, rel=1e-12)


def test_a_probe_puts_the_flip_in_the_middle_and_spreads_the_hours_over_the_ages() -> None:
    seen = Observed.begin(0.0, True).probed(2 * H, True).probed(6 * H, False)
    assert seen.up_runs == Counts((0, 0, 1, 0, 0), pytest.approx((0.25, 0.75, 3.0, 0.0, 0.0)))
    assert seen.down_runs.exposure_h == pytest.approx((0.25, 0.75, 1.0, 0.0, 0.0))
    assert seen.since_s == 4 * H


def test_a_run_that_is_known_to_be_old_counts_at_its_age() -> None:
    seen = Observed.begin(0.0, False, age_s=3 * H).watched(2 * H, True)
    assert seen.down_runs == Counts((0, 0, 0, 1, 0), pytest.approx((0, 0, 1.0, 1.0, 0)))


def test_after_one_half_life_an_event_counts_half() -> None:
    seen = follow([0.5], half_life_h=96.0)
    later = seen.watched(seen.at_s + 96 * H, seen.up)
    assert later.up_runs.events[1] == pytest.approx(0.5)
    assert later.up_runs.exposure_h[0] == pytest.approx(seen.up_runs.exposure_h[0] / 2)


@given(RUNS_H, HALF_LIVES_H, st.lists(st.floats(0.0, 1.0), max_size=4))
def test_looking_more_often_changes_nothing(runs_h: list[float], half_life_h: float | None, looks: list[float]) -> None:
    often = Observed.begin(0.0, True, half_life_h=half_life_h)
    for hours in runs_h:
        start_s = often.at_s
        for look in sorted(looks):
            often = often.watched(start_s + look * hours * H, often.up)
        often = often.watched(start_s + hours * H, not often.up)
    seldom = follow(runs_h, half_life_h)
    for a, b in ((often.up_runs, seldom.up_runs), (often.down_runs, seldom.down_runs)):
        assert a.events == pytest.approx(b.events, rel=1e-9, abs=1e-12)
        assert a.exposure_h == pytest.approx(b.exposure_h, rel=1e-9, abs=1e-9)


@given(RUNS_H)
def test_every_hour_and_every_flip_is_counted_once(runs_h: list[float]) -> None:
    seen = follow(runs_h)
    assert sum(seen.up_runs.exposure_h) + sum(seen.down_runs.exposure_h) == pytest.approx(sum(runs_h))
    assert sum(seen.up_runs.events) + sum(seen.down_runs.events) == len(runs_h)


@given(RUNS_H, HALF_LIVES_H)
def test_hazards_are_positive_and_a_longer_quiet_time_lowers_them(
    runs_h: list[float], half_life_h: float | None
) -> None:
    seen = follow(runs_h, half_life_h)
    rates = seen.rates()
    assert all(rate > 0.0 for rate in (*rates.loss.per_h, *rates.back.per_h))
    if half_life_h is None:
        quiet = seen.watched(seen.at_s + 5 * H, seen.up).rates().of(seen.up)
        assert all(after < before for after, before in zip(quiet.per_h, rates.of(seen.up).per_h, strict=True))


@given(RUNS_H)
def test_complete_runs_may_come_in_any_order(runs_h: list[float]) -> None:
    """Swapping the times up among themselves changes no estimate that does not fade."""
    # Times that add up without rounding: on the edge of an age the last bit decides which age it is.
    runs_h = [math.ceil(hours * 1024) / 1024 for hours in runs_h]
    ups = [f"{hours!r}" for hours in runs_h[::2]]
    shuffled = list(runs_h)
    shuffled[::2] = [float(hours) for hours in reversed(ups)]
    assert follow(shuffled).rates().loss.per_h == pytest.approx(follow(runs_h).rates().loss.per_h, rel=1e-9)


def test_much_evidence_overrules_the_prior() -> None:
    rng = random.Random(7)
    truth = Rates(loss=Piecewise(AGES_H, (0.2, 0.2, 0.2, 0.2, 0.2)), back=Piecewise(AGES_H, (2.0, 2.0, 2.0, 2.0, 2.0)))
    seen = Observed.begin(0.0, True)
    for _ in range(20_000):
        seen = seen.watched(seen.at_s + rng.expovariate(truth.of(seen.up).per_h[0]) * H, not seen.up)
    rates = seen.rates()
    assert rates.loss.per_h == pytest.approx(truth.loss.per_h, rel=0.08)
    assert rates.back.per_h[:2] == pytest.approx(truth.back.per_h[:2], rel=0.08)


def test_pools_taken_together_stand_as_the_prior_of_one() -> None:
    pools = [follow([0.3, 0.1] * 30), follow([0.4, 0.2] * 30)]
    region = pooled_rates(pools)
    assert sum(pooled(*(p.up_runs for p in pools)).events) == 60
    assert region.loss.per_h[1] > BUILT_IN.loss.per_h[1]
    fresh = Observed.begin(0.0, True).rates(Prior(rates=region))
    assert fresh.loss.per_h == pytest.approx(region.loss.per_h)
    assert pooled_rates([]).loss.per_h == pytest.approx(BUILT_IN.loss.per_h)


def test_what_cannot_be_is_refused() -> None:
    seen = Observed.begin(10.0, True)
    with pytest.raises(ValueError, match="in order"):
        seen.watched(9.0, True)
    with pytest.raises(ValueError, match="half_life_h"):
        Observed.begin(0.0, True, half_life_h=0.0)
    with pytest.raises(ValueError, match="age_s"):
        Observed.begin(0.0, True, age_s=-1.0)


@given(st.floats(0.0, 30.0), st.floats(0.0, 30.0))
def test_mean_residual_life_is_the_integral_of_survival(age_h: float, horizon_h: float) -> None:
    loss = BUILT_IN.loss
    steps = 4000
    width = horizon_h / steps
    summed = sum(math.exp(-loss.between(age_h, age_h + (i + 0.5) * width)) for i in range(steps)) * width
    assert loss.mean_residual_h(age_h, horizon_h) == pytest.approx(summed, rel=1e-4, abs=1e-9)
    assert loss.flip_probability(age_h, horizon_h) == pytest.approx(
        -math.expm1(-loss.between(age_h, age_h + horizon_h))
    )


def test_a_piece_without_hazard_ends_nothing() -> None:
    calm = Piecewise((0.0, 1.0), (0.0, 2.0))
    assert calm.mean_residual_h(0.0, 1.0) == 1.0
    assert (calm.flip_probability(0.0, 1.0), calm.rate_per_h(1.0)) == (0.0, 2.0)
    assert calm.cumulative(1.5 * H) == pytest.approx(1.0)
    with pytest.raises(ValueError, match="first piece from age 0"):
        Piecewise((1.0,), (1.0,))
    with pytest.raises(ValueError, match="not negative"):
        Piecewise((0.0,), (-1.0,))
