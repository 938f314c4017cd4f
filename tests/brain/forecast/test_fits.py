"""Fits of the models: by hand, against the truth that data were drawn from, and what must not matter."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.brain.forecast.baseline import fit_baseline
from everstep.brain.forecast.frailty import Frailty, fit_frailty
from everstep.brain.forecast.hazard import mean_log_likelihood, survival
from everstep.brain.forecast.models import DEFAULT, MODELS, fitted, score, split_by_time
from everstep.brain.forecast.nonparametric import kaplan_meier, nelson_aalen
from everstep.brain.forecast.parametric import (
    fit_bathtub,
    fit_exponential,
    fit_gamma_poisson,
    fit_weibull,
)
from everstep.brain.forecast.piecewise import Piecewise
from everstep.brain.forecast.records import Lifetime, lasted

H = 3600.0
POOLS = (("aws", "r1", "r1a"), ("aws", "r1", "r1b"), ("aws", "r2", "r2a"), ("gcp", "r3", "r3a"))


@st.composite
def lifetimes(draw: st.DrawFn) -> Lifetime:
    hours = draw(st.floats(0.01, 40.0))
    pool = draw(st.sampled_from(POOLS))
    kind = draw(st.sampled_from(["lost", "censored", "between"]))
    if kind == "between":
        return Lifetime(hours, hours + draw(st.floats(0.01, 5.0)), pool, 0.0)
    return lasted(hours, kind == "lost", pool, 0.0)


LIVES = st.lists(lifetimes(), min_size=1, max_size=20)


def drawn(hazard: Piecewise, count: int, *, seed: int, look_h: float = 0.0, stop_h: float = 30.0) -> list[Lifetime]:
    """Lives under a hazard, censored at ``stop_h``; noticed every ``look_h`` hours, at once if 0."""
    rng = random.Random(seed)
    lives = []
    for _ in range(count):
        hours = hazard.hours_to(0.0, rng.expovariate(1.0))
        if hours > stop_h:
            lives.append(lasted(stop_h, False))
        elif look_h:
            low = math.floor(hours / look_h) * look_h
            lives.append(Lifetime(low, low + look_h))
        else:
            lives.append(lasted(hours, True))
    return lives


def test_the_baseline_by_hand() -> None:
    hazard = fit_baseline([lasted(2.0, True), lasted(0.5, False)], (0.0, 1.0))
    assert hazard.per_h == pytest.approx(((0.3 + 0) / (3 + 1.5), (0.3 + 1) / (3 + 1.0)))


def test_the_factor_of_a_pool_by_hand_and_backed_off() -> None:
    base = Piecewise((0.0,), (0.5,))
    lives = [lasted(2.0, True, POOLS[0]), lasted(4.0, True, POOLS[0]), lasted(6.0, False, POOLS[1])]
    model = fit_frailty(lives, baseline=base)
    cloud = (3 + 2) / (3 + 6.0)
    region = (3 + 2) / (3 / cloud + 6.0)
    assert model.factor(("aws",)) == pytest.approx(cloud)
    assert model.factor(POOLS[0]) == pytest.approx((3 + 2) / (3 / region + 3.0))
    assert model.factor(("aws", "r1", "new")) == pytest.approx(region)
    assert model.factor(("aws", "new", "new")) == pytest.approx(cloud)
    assert model.factor(("new",)) == 1.0
    flat = fit_frailty([replace(life, pool=life.pool[-1:]) for life in lives], baseline=base)
    assert flat.factor(("r1a",)) == pytest.approx((3 + 2) / (3 + 3.0))


def test_decay_multiplies_losses_and_hazard() -> None:
    base = Piecewise((0.0,), (0.5,))
    old, new = lasted(2.0, True, ("z",), 0.0), lasted(2.0, False, ("z",), 96 * H)
    model = fit_frailty([old, new], baseline=base, half_life_h=96.0)
    assert model.as_of_s == 98 * H
    assert model.factor(("z",)) == pytest.approx((3 + 0.5) / (3 + 0.5 * 1.0 + 1.0))
    assert fit_frailty([old, new], baseline=base).factor(("z",)) == pytest.approx((3 + 1) / (3 + 2))


@given(LIVES)
@settings(deadline=None, max_examples=30)
def test_noting_records_one_by_one_is_fitting_them_at_once(lives: list[Lifetime]) -> None:
    base = Piecewise((0.0, 1.0, 5.0), (0.6, 0.2, 0.1))
    model = Frailty(base)
    for life in lives:
        model = model.noted(life)
    at_once = fit_frailty(lives, baseline=base)
    for pool in POOLS:
        assert model.factor(pool) == pytest.approx(at_once.factor(pool), rel=1e-9)


def test_records_that_are_noted_fade_those_before() -> None:
    base = Piecewise((0.0,), (0.5,))
    lives = [lasted(2.0, True, ("z",), 0.0), lasted(2.0, False, ("z",), 96 * H)]
    model = Frailty(base, half_life_h=96.0)
    for life in lives:
        model = model.noted(life, (life.start_s or 0.0) + life.lived_h * H)
    assert model.factor(("z",)) == pytest.approx(fit_frailty(lives, baseline=base, half_life_h=96.0).factor(("z",)))


@given(LIVES, st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=30)
def test_the_order_of_records_does_not_matter(lives: list[Lifetime], rng: random.Random) -> None:
    shuffled = list(lives)
    rng.shuffle(shuffled)
    for fit in (fit_frailty, lambda ls: Frailty(fit_baseline(ls))):
        one, other = fit(lives), fit(shuffled)
        for pool in POOLS:
            assert one.of(pool).per_h == pytest.approx(other.of(pool).per_h, rel=1e-7)
    for steps in (kaplan_meier, nelson_aalen):
        assert steps(lives) == steps(shuffled)


@given(LIVES)
@settings(deadline=None, max_examples=30)
def test_every_hazard_of_the_default_is_positive_and_bounded(lives: list[Lifetime]) -> None:
    model = fit_frailty(lives)
    for pool in POOLS:
        assert all(0.0 < rate < 1e4 for rate in model.of(pool).per_h)
        assert mean_log_likelihood(lives, model.of) > -math.inf


def test_a_hazard_that_was_drawn_from_is_found_again_whatever_is_known_of_the_moments() -> None:
    truth = Piecewise((0.0, 0.5, 2.0, 8.0), (1.0, 0.4, 0.1, 0.04))
    for look_h in (0.0, 0.4):
        found = fit_baseline(drawn(truth, 6000, seed=3, look_h=look_h), truth.from_h)
        assert found.per_h == pytest.approx(truth.per_h, rel=0.08)


def test_intervals_that_narrow_become_the_known_moment() -> None:
    exact = [lasted(hours, True) for hours in (0.3, 0.7, 1.5, 3.0, 6.0, 9.0)]
    narrow = [Lifetime(life.lived_h, life.lived_h + 1e-6) for life in exact]
    assert fit_baseline(narrow).per_h == pytest.approx(fit_baseline(exact).per_h, rel=1e-4)
    assert fit_exponential(narrow).per_h == pytest.approx(fit_exponential(exact).per_h, rel=1e-3)
    assert fit_weibull(narrow).shape == pytest.approx(fit_weibull(exact).shape, rel=1e-3)


def test_an_interval_without_end_is_censored() -> None:
    assert Lifetime(3.0, math.inf) == lasted(3.0, False)


def test_formulas_find_their_own_parameters() -> None:
    rng = random.Random(11)
    lives = [lasted(hours, True) for hours in (rng.weibullvariate(6.0, 0.6) for _ in range(4000)) if hours > 1e-3]
    weibull = fit_weibull(lives)
    assert (weibull.shape, weibull.scale_h) == (pytest.approx(0.6, rel=0.05), pytest.approx(6.0, rel=0.08))
    flat = drawn(Piecewise((0.0,), (0.3,)), 4000, seed=5)
    assert fit_exponential(flat).per_h == pytest.approx(0.3, rel=0.05)
    assert fit_weibull(flat).shape == pytest.approx(1.0, abs=0.05)
    tub = drawn(Piecewise((0.0, 1.0, 20.0, 22.0), (0.4, 0.02, 0.2, 0.8)), 4000, seed=6, stop_h=24.0)
    bathtub = fit_bathtub(tub)
    assert bathtub.early_per_h > 5 * bathtub.steady_per_h < bathtub.late_per_h
    others = [mean_log_likelihood(tub, lambda pool, m=m: m) for m in (fit_exponential(tub), fit_weibull(tub))]
    assert mean_log_likelihood(tub, lambda pool: bathtub) > max(others)


def test_pools_with_rates_of_their_own_are_told_apart() -> None:
    lives = [
        replace(life, pool=(name,))
        for name, rate, seed in (("calm", 0.05, 1), ("wild", 1.0, 2))
        for life in drawn(Piecewise((0.0,), (rate,)), 200, seed=seed)
    ]
    model = fit_gamma_poisson(lives)
    assert model.of(("calm",)).cumulative(H) == pytest.approx(0.05, rel=0.25)
    assert model.of(("wild",)).cumulative(0.1 * H) == pytest.approx(0.1, rel=0.25)
    assert 0.05 < model.of(("new",)).cumulative(H) < 1.0
    frailty = fit_frailty(lives)
    assert frailty.factor(("calm",)) < 1.0 < frailty.factor(("wild",))


def test_kaplan_meier_and_nelson_aalen_by_hand() -> None:
    """Lost at 1, 2 (two of them), censored at 2 and 3."""
    lives = [lasted(1, True), lasted(2, True), lasted(2, True), lasted(2, False), lasted(3, False)]
    km, na = kaplan_meier(lives), nelson_aalen(lives)
    assert math.exp(-km.cumulative(2.5 * H)) == pytest.approx(4 / 5 * 2 / 4)
    assert na.cumulative(2.5 * H) == pytest.approx(1 / 5 + 2 / 4)
    assert km.cumulative(0.9 * H) == 0.0
    assert kaplan_meier([lasted(1, True)]).cumulative(H) == math.inf
    assert nelson_aalen([Lifetime(1.0, 3.0)]).at_h == (2.0,)


@pytest.mark.parametrize("name", MODELS)
def test_every_model_fits_what_little_there_is(name: str) -> None:
    for lives in ([lasted(2.0, False)], [lasted(2.0, True)], [lasted(2.0, True), Lifetime(1.0, 2.0)]):
        hazard = MODELS[name](lives).of(("anywhere",))
        assert 0.0 <= hazard.cumulative(H) <= hazard.cumulative(24 * H)


def test_the_later_part_judges_what_the_earlier_part_taught() -> None:
    truth = Piecewise((0.0, 0.5, 4.0), (1.5, 0.2, 0.03))
    lives = [replace(life, start_s=float(i)) for i, life in enumerate(drawn(truth, 800, seed=8))]
    random.Random(1).shuffle(lives)
    earlier, later = split_by_time(lives, 0.7)
    assert (len(earlier), len(later)) == (560, 240)
    assert max(life.start_s or 0 for life in earlier) < min(life.start_s or 0 for life in later)
    scores = {name: score(name, earlier, later) for name in MODELS}
    best = mean_log_likelihood(later, lambda pool: truth)
    assert scores[DEFAULT] == pytest.approx(best, abs=0.05)
    assert scores[DEFAULT] > scores["weibull"] > scores["exponential"]
    assert scores["kaplan-meier"] == -math.inf
    assert score(DEFAULT, earlier, later, half_life_h=1.0) == score(DEFAULT, earlier, later)
    assert isinstance(fitted(DEFAULT, earlier, half_life_h=5.0), Frailty)


def test_a_split_needs_starts_and_two_parts() -> None:
    with pytest.raises(ValueError, match="without a start"):
        split_by_time([lasted(1.0, True)], 0.5)
    with pytest.raises(ValueError, match="cannot be cut"):
        split_by_time([lasted(1.0, True, (), 0.0)], 0.5)


def test_lives_that_were_all_alike_are_no_overflow() -> None:
    hazard = fit_weibull([lasted(1.0, True)] * 3)
    assert hazard.shape > 10
    assert survival(hazard, 24 * 3600.0) == 0.0


@pytest.mark.parametrize("name", ["kaplan-meier", "nelson-aalen"])
def test_a_model_of_steps_has_no_density_where_losses_come_in_whole_minutes_either(name: str) -> None:
    lives = [lasted(hours, True, start_s=float(n)) for n, hours in enumerate((1.0, 2.0, 3.0) * 4)]
    earlier, later = split_by_time(lives, 0.5)
    assert score(name, earlier, later) == -math.inf
