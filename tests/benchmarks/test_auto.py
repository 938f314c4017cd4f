"""The benchmark of `auto`, and a sample of what it measures."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import auto
from everstep.brain.select.policies import POLICIES

EVERY = 13


def test_on_a_sample_of_published_windows_it_is_cheaper_and_never_late(data_dir: Path) -> None:
    """Every 13th window: too few for the goals themselves, which `make bench ARGS=auto` measures over all."""
    folder = data_dir / "spot_availability"
    zones, chosen = auto.Zones(folder), auto.windows(folder)[::EVERY]
    assert len(chosen) == 60
    ran = auto.outcomes(chosen, zones, POLICIES["auto"])
    costs = np.array([one.cost_usd for one in ran])
    best = auto.least(chosen, zones)
    even = np.array([window.known["uniform_progress"] for window in chosen])
    assert all(one.deadline_met for one in ran)
    assert (costs >= best - 1e-3).all()
    assert auto.gap(costs, best) < 9.0
    assert auto.gap(costs, best) < 0.8 * auto.gap(even, best)


def test_what_is_not_known_of_the_past_costs_something_but_not_the_deadline(data_dir: Path) -> None:
    folder = data_dir / "spot_availability"
    zones, chosen = auto.Zones(folder), auto.windows(folder)[::40]
    watched, unwatched = (auto.outcomes(chosen, zones, POLICIES["auto"], watched=known) for known in (True, False))
    assert all(one.deadline_met for one in unwatched)
    assert [one.cost_usd for one in watched] != [one.cost_usd for one in unwatched]


def test_without_data_it_measures_the_speed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    auto.main(["--data", str(tmp_path)])
    cases = [json.loads(line)["case"] for line in capsys.readouterr().out.splitlines()]
    live = "a live decision, 13 zones, 300 jobs of all kinds"
    assert cases == ["a solution, deadline in 60 h", "a decision, 13 zones", live]


def test_an_interval_holds_its_mean_and_the_gap_is_of_means() -> None:
    best = np.linspace(50.0, 90.0, 40)
    costs = best * np.tile([1.0, 1.2], 20)
    assert auto.gap(costs, best) == pytest.approx(100 * (costs.sum() / best.sum() - 1))
    low, high = auto.interval(costs, best)
    assert low < auto.gap(costs, best) < high
    low, high = auto.interval(costs, best, of_ratios=True)
    assert low < 1.1 < high
