"""Against references: lifelines, published lifetimes, and the traces that the built-in prior comes from."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import numpy as np
import pytest

from everstep.brain.forecast.availability import AGES_H, BUILT_IN, Observed
from everstep.brain.forecast.coupling import Track, coupling
from everstep.brain.forecast.models import DEFAULT, score, split_by_time
from everstep.brain.forecast.nonparametric import kaplan_meier, nelson_aalen
from everstep.brain.forecast.parametric import fit_exponential, fit_weibull
from everstep.brain.forecast.records import Lifetime, counted, lasted
from everstep.market.availability import Series, read_folder
from everstep.market.lifetimes import read_lifetimes

H = 3600.0
DATA = Path(__file__).parents[4] / "shared" / "data"
GCP_2019 = DATA / "preemption" / "gcp_preemptible_2019.csv"
V100 = DATA / "spot_availability" / "aws-v100x1-2023-02"

needs_data = pytest.mark.skipif(not GCP_2019.exists(), reason="the data beside the project is not there")


@needs_data
def test_kaplan_meier_and_nelson_aalen_equal_the_reference() -> None:
    """The reference is rounded to 8 decimals: rounded alike, every figure is the same."""
    reference = json.loads((DATA / "preemption" / "km_reference_shared.json").read_text())
    lives = read_lifetimes(GCP_2019).lives
    assert len(reference) > 1
    for name, figures in reference.items():
        machine = name.partition("|")[2]
        chosen = [life for life in lives if machine == "ALL" or life.pool[-1].split("/")[2] == machine]
        assert (len(chosen), counted(chosen)) == (figures["n"], figures["events"])
        km, na = kaplan_meier(chosen), nelson_aalen(chosen)
        for t_h, s, h in zip(figures["t_h"], figures["km_S"], figures["na_H"], strict=True):
            assert abs(round(math.exp(-km.cumulative(t_h * H)), 8) - s) < 1e-9
            assert abs(round(na.cumulative(t_h * H), 8) - h) < 1e-9


def drawn(count: int, seed: int) -> list[Lifetime]:
    rng = random.Random(seed)
    lives = []
    for _ in range(count):
        hours, stop_h = rng.weibullvariate(6.0, 0.7), rng.expovariate(0.1)
        # Rounded, so that there are ties.
        lives.append(lasted(max(round(min(hours, stop_h), 1), 0.1), hours <= stop_h))
    return lives


def test_lifelines_agrees() -> None:
    lifelines = pytest.importorskip("lifelines", reason="lifelines is not installed")
    lives = drawn(400, 1)
    durations, observed = [life.lived_h for life in lives], [life.lost for life in lives]
    km = lifelines.KaplanMeierFitter().fit(durations, observed)
    na = lifelines.NelsonAalenFitter(nelson_aalen_smoothing=False).fit(durations, observed)
    ours, theirs = kaplan_meier(lives), km.survival_function_at_times
    for t_h in (0.05, 0.1, 0.55, 1.0, 3.0, 7.7, 15.0):
        assert math.exp(-ours.cumulative(t_h * H)) == pytest.approx(float(theirs(t_h).iloc[0]), abs=1e-12)
        expected = float(na.cumulative_hazard_at_times(t_h).iloc[0])
        assert nelson_aalen(lives).cumulative(t_h * H) == pytest.approx(expected, abs=1e-12)
    weibull, exponential = (
        lifelines.WeibullFitter().fit(durations, observed),
        lifelines.ExponentialFitter().fit(durations, observed),
    )
    fit = fit_weibull(lives)
    assert (fit.shape, fit.scale_h) == (pytest.approx(weibull.rho_, rel=1e-3), pytest.approx(weibull.lambda_, rel=1e-3))
    assert fit_exponential(lives).per_h == pytest.approx(1.0 / exponential.lambda_, rel=1e-4)


def test_lifelines_agrees_on_intervals() -> None:
    lifelines = pytest.importorskip("lifelines", reason="lifelines is not installed")
    lives = [
        Lifetime(math.floor(life.lived_h), math.floor(life.lived_h) + 1.0) if life.lost else life
        for life in drawn(400, 2)
    ]
    lives = [Lifetime(max(life.lived_h, 1e-6), life.ended_by_h) for life in lives]
    fit = fit_weibull(lives)
    theirs = lifelines.WeibullFitter().fit_interval_censoring(
        [life.lived_h for life in lives], [life.ended_by_h for life in lives]
    )
    assert (fit.shape, fit.scale_h) == (pytest.approx(theirs.rho_, rel=1e-2), pytest.approx(theirs.lambda_, rel=1e-2))


@needs_data
@pytest.mark.parametrize("share", [0.5, 0.6, 0.7, 0.8])
def test_the_default_judges_later_machines_best(share: float) -> None:
    """Google's preemptible machines of 2019, cut at any of four moments."""
    earlier, later = split_by_time(read_lifetimes(GCP_2019).lives, share)
    others = ("exponential", "gamma-poisson", "weibull", "bathtub")
    assert score(DEFAULT, earlier, later) > max(score(name, earlier, later) for name in others)


def runs_up(series: Series) -> list[Lifetime]:
    """Times up that began while we looked."""
    up = series.up()
    edges = [0, *(np.flatnonzero(np.diff(up.astype(int))) + 1), len(up)]
    return [
        lasted(
            (edges[k + 1] - edges[k]) * series.gap_s / H,
            k + 2 < len(edges),
            (series.cloud, series.region, series.zone),
            float(edges[k] * series.gap_s),
        )
        for k in range(1, len(edges) - 1)
        if up[edges[k]]
    ]


@needs_data
@pytest.mark.parametrize("share", [0.5, 0.6, 0.7, 0.8])
def test_the_default_judges_later_times_up_best(share: float) -> None:
    """V100 in nine zones of AWS, a month of 2023."""
    lives = [life for series in read_folder(V100) for life in runs_up(series)]
    earlier, later = split_by_time(lives, share)
    assert len(lives) > 1000
    others = ("exponential", "gamma-poisson", "weibull", "bathtub")
    assert score(DEFAULT, earlier, later) > max(score(name, earlier, later) for name in others)


@needs_data
def test_the_built_in_prior_is_about_what_licensed_traces_say() -> None:
    """To a factor of 1.5 in every bucket: the weights of the published fit are not known."""
    totals = np.zeros((2, 2, len(AGES_H)))
    for folder in ("aws-v100x1-2023-02", "aws-v100x1-16node-2023-08", "aws-v100x1-4node-preemption-2023-08"):
        for series in read_folder(DATA / "spot_availability" / folder):
            up = series.up(series.capacity)
            seen = Observed.begin(0.0, bool(up[0]))
            for tick in (*(np.flatnonzero(np.diff(up.astype(int))) + 1), len(up) - 1):
                seen = seen.watched(float(tick * series.gap_s), bool(up[tick]))
            totals += np.array([seen.up_runs, seen.down_runs])
    loss, back = totals[:, 0] / totals[:, 1]
    assert loss == pytest.approx(BUILT_IN.loss.per_h, rel=0.5)
    assert back == pytest.approx(BUILT_IN.back.per_h, rel=0.5)


@needs_data
def test_zones_of_a_region_fail_together() -> None:
    tracks = {}
    for series in read_folder(V100):
        up = series.up()
        ticks = (0, *(np.flatnonzero(np.diff(up.astype(int))) + 1))
        changes = [(float(tick * series.gap_s), bool(up[tick])) for tick in ticks]
        tracks[(series.cloud, series.region, series.zone)] = Track(changes, series.ticks * series.gap_s)
    found = coupling(tracks)
    assert 0.4 < found.within_region < 0.6
    assert found.across_regions < 0.5 * found.within_region
