from __future__ import annotations

import math

import numpy as np
import pytest

from everstep.brain.forecast.availability import AGES_H, Counts, Observed, Prior, Rates
from everstep.brain.forecast.piecewise import Piecewise
from everstep.sim.futures import OwnForecast, Sight, drawn

CERTAIN = 1e9
"""Weights of a prior that nothing moves: every future has the hazards of the prior."""


def flat(per_h: float) -> Piecewise:
    return Piecewise(AGES_H, (per_h,) * len(AGES_H))


def known(loss: Piecewise, back: Piecewise) -> Prior:
    return Prior(Rates(loss, back), pool_weight=CERTAIN, bucket_weight=CERTAIN)


def test_runs_are_as_long_as_their_hazard_says() -> None:
    world = OwnForecast([Sight(up=True, age_h=0.0)], known(flat(0.5), flat(2.0)))
    up = world.draw(np.random.default_rng(1), 400_000, 60.0)[0]
    assert len(up) == 400_000
    flips = np.flatnonzero(up[1:] != up[:-1]) + 1
    runs = np.diff(flips) / 60.0
    first_is_up = bool(up[flips[0]])
    ups, downs = (runs[::2], runs[1::2]) if first_is_up else (runs[1::2], runs[::2])
    assert ups.mean() == pytest.approx(2.0, rel=0.05)
    assert downs.mean() == pytest.approx(0.5, rel=0.05)
    assert up.mean() == pytest.approx(0.8, rel=0.03)


def test_the_chance_to_last_follows_the_age_of_the_run() -> None:
    loss = Piecewise(AGES_H, (1.13, 0.913, 0.301, 0.145, 0.070))
    rng = np.random.default_rng(2)
    for age_h in (0.0, 2.0, 20.0):
        world = OwnForecast([Sight(up=True, age_h=age_h)], known(loss, flat(1.0)))
        lasted = np.mean([world.draw(rng, 36, 600.0)[0][:35].all() for _ in range(3000)])
        # A run is seen to end at the nearest edge of a tick.
        expected = math.exp(-loss.between(age_h, age_h + 34.5 / 6))
        assert lasted == pytest.approx(expected, abs=0.03)


def test_a_pool_that_is_down_begins_down() -> None:
    world = OwnForecast([Sight(up=False, age_h=0.0), Sight(up=True)], known(flat(0.1), flat(0.1)))
    down, up = world.draw(np.random.default_rng(3), 100, 60.0)
    assert not down[0]
    assert up[0]


def test_hazards_are_drawn_around_the_estimate_and_less_widely_the_more_was_seen() -> None:
    rng = np.random.default_rng(4)

    def spread(scale: float) -> tuple[float, float]:
        ups = Counts((0.5 * scale,) * 5, (0.5 * scale,) * 5)
        seen = Observed(0.0, True, 0.0, up_runs=ups)
        rates = [drawn(rng, seen, Prior()).loss.per_h[3] for _ in range(4000)]
        return float(np.mean(rates)) / seen.rates(Prior()).loss.per_h[3], float(np.std(rates) / np.mean(rates))

    (few_mean, few), (many_mean, many) = spread(2.0), spread(200.0)
    assert few_mean == pytest.approx(1.0, abs=0.15)
    assert many_mean == pytest.approx(1.0, abs=0.02)
    assert many < 0.3 * few


def test_futures_are_the_same_for_the_same_seed() -> None:
    world = OwnForecast([Sight(), Sight(up=False)])
    first, again = (world.draw(np.random.default_rng(7), 500, 600.0) for _ in range(2))
    assert all((a == b).all() for a, b in zip(first, again, strict=True))
    assert world.world == "our own forecast"
