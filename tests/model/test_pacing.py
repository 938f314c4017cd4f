from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.model.pacing import (
    daly_interval_s,
    exact_interval_s,
    lambert_w0,
    local_interval_s,
    slowdown,
    young_interval_s,
)

HOUR = 3600.0

# (mean life h, save s, Young s, Daly s, exact s, slow-down at the exact interval with a restart of 120 s)
WORKED = [
    (1, 60, 657.27, 617.88, 617.89, 1.2474),
    (1, 300, 1469.7, 1276.5, 1276.9, 1.6013),
    (8, 60, 1859.03, 1819.25, 1819.25, 1.0719),
    (24, 10, 1314.5, 1307.9, 1307.9, 1.0168),
]


@pytest.mark.parametrize(("life_h", "save_s", "young_s", "daly_s", "exact_s", "slow"), WORKED)
def test_worked_figures(
    life_h: float, save_s: float, young_s: float, daly_s: float, exact_s: float, slow: float
) -> None:
    life_s = life_h * HOUR

    def agrees(value: float, figure: float) -> bool:
        digits = len(str(figure).partition(".")[2])
        return round(value, digits) == figure

    assert agrees(young_interval_s(save_s, life_s), young_s)
    assert agrees(daly_interval_s(save_s, life_s), daly_s)
    assert agrees(exact_interval_s(save_s, life_s), exact_s)
    at_best = slowdown(exact_interval_s(save_s, life_s), save_s=save_s, mean_life_s=life_s, restart_s=120.0)
    assert agrees(at_best, slow)


@given(st.floats(min_value=-1.0 / math.e, max_value=1e12))
def test_lambert_inverts(x: float) -> None:
    w = lambert_w0(x)
    assert w >= -1.0
    assert w * math.exp(w) == pytest.approx(x, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("x", [-1.0, -0.37, math.nan])
def test_lambert_refuses_left_of_the_branch_point(x: float) -> None:
    with pytest.raises(ValueError, match="-1/e"):
        lambert_w0(x)


@given(st.floats(1.0, 2000.0), st.floats(0.5, 48.0), st.floats(0.0, 600.0), st.floats(0.2, 5.0))
def test_exact_interval_is_the_minimum(save_s: float, life_h: float, restart_s: float, factor: float) -> None:
    life_s = life_h * HOUR
    best_s = exact_interval_s(save_s, life_s)

    def cost(tau_s: float) -> float:
        return slowdown(tau_s, save_s=save_s, mean_life_s=life_s, restart_s=restart_s)

    assert cost(best_s) <= cost(best_s * factor) * (1 + 1e-12)
    assert cost(best_s) >= 1.0


@given(st.floats(0.01, 500.0), st.floats(0.1, 100.0))
def test_local_rule_is_young_for_a_constant_hazard(save_s: float, life_h: float) -> None:
    life_s = life_h * HOUR
    tau_s = local_interval_s(save_s, lambda age_s: age_s / life_s, age_s=1234.5, longest_s=1e9)
    assert tau_s == pytest.approx(young_interval_s(save_s, life_s), rel=1e-6)


@given(st.floats(0.1, 300.0), st.floats(0.3, 0.95), st.floats(0.0, 24.0))
def test_local_rule_solves_its_equation_and_saves_rarer_with_age(save_s: float, shape: float, age_h: float) -> None:
    def hazard(age_s: float) -> float:  # Weibull with a falling hazard, scale 6 h
        return float((age_s / (6 * HOUR)) ** shape)

    age_s = age_h * HOUR
    tau_s = local_interval_s(save_s, hazard, age_s=age_s, longest_s=1e9)
    mean_hazard_per_s = (hazard(age_s + tau_s) - hazard(age_s)) / tau_s
    assert tau_s == pytest.approx(math.sqrt(2 * save_s / mean_hazard_per_s), rel=1e-4)
    assert local_interval_s(save_s, hazard, age_s=age_s + HOUR, longest_s=1e9) >= tau_s * (1 - 1e-6)


def test_no_hazard_and_free_saves_are_the_limits() -> None:
    assert local_interval_s(10.0, lambda _age_s: 0.0, longest_s=900.0) == 900.0
    assert local_interval_s(0.0, lambda age_s: age_s) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize(
    "call",
    [
        lambda: young_interval_s(-1.0, 10.0),
        lambda: exact_interval_s(1.0, 0.0),
        lambda: slowdown(0.0, save_s=1.0, mean_life_s=10.0, restart_s=0.0),
        lambda: local_interval_s(1.0, lambda age_s: age_s, age_s=-1.0),
    ],
)
def test_impossible_inputs_are_refused(call: object) -> None:
    with pytest.raises(ValueError, match="need"):
        call()  # type: ignore[operator]


def test_hopeless_is_infinite_not_an_error() -> None:
    assert slowdown(1e9, save_s=1.0, mean_life_s=1.0, restart_s=0.0) == math.inf
    assert daly_interval_s(30.0, 10.0) == 10.0
