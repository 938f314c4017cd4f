from __future__ import annotations

import math

import numpy as np
import pytest

from everstep.sim.estimate import Ask, Pool, Range, Unfit, draws, entrant, estimate, horizon_s, names, sighted
from everstep.sim.futures import OwnForecast, Sight, Ups

H = 3600.0
POOL = Pool("zone", "region", 1.0, 3.0)
#: 10 h of work in ticks of 120 s; a start takes two of them.
ASK = Ask(10 * H, 240.0, (POOL,))


def future(*hours: tuple[bool, float]) -> list[Ups]:
    return [np.concatenate([np.full(round(h * H / ASK.tick_s), up) for up, h in hours])]


ALWAYS, NEVER = future((True, 100.0)), future((False, 100.0))


def test_on_demand_costs_the_same_whatever_comes() -> None:
    found = estimate(ASK, [ALWAYS, NEVER], "on_demand", None)
    # Work and one changeover, all of it billed.
    assert found.cost_usd.p10 == found.cost_usd.p90 == pytest.approx(3.0 * (10 + 240 / H))
    assert found.finish_s.p50 == pytest.approx(10 * H + 240)
    assert (found.futures, found.met) == (2, None)


def test_quantiles_are_over_the_futures() -> None:
    worlds = [ALWAYS] * 7 + [NEVER] * 3
    found = estimate(ASK, worlds, "greedy", None)
    assert found.cost_usd.p10 == found.cost_usd.p50 == pytest.approx(10 + 240 / H)
    assert found.cost_usd.p90 == pytest.approx(3 * (10 + 240 / H))
    assert found.cost_usd.curve[0] == found.cost_usd.p10
    assert list(found.cost_usd.curve) == sorted(found.cost_usd.curve)


def test_greedy_is_the_live_one_which_stays_on_demand() -> None:
    drought = future((True, 2.0), (False, 1.0), (True, 97.0))
    greedy = estimate(ASK, [drought], "greedy", None).cost_usd.p50
    assert greedy == pytest.approx(2.0 + 3.0 * (10 - 2 + 2 * 240 / H))
    assert estimate(ASK, [drought], "incl", None).cost_usd.p50 < greedy


def test_the_chance_is_that_of_the_deadline_that_was_asked_for() -> None:
    worlds = [ALWAYS] * 3 + [future((False, 5.0), (True, 95.0))]
    assert estimate(ASK, worlds, "spot_only", 12 * H).met == 0.75
    assert estimate(ASK, worlds, "greedy_spot_safety_net", 12 * H).met == 1.0
    assert estimate(ASK, worlds, "on_demand", 9 * H).met == 0.0


def test_a_future_that_ends_before_the_job_never_finishes() -> None:
    found = estimate(ASK, [ALWAYS, NEVER], "spot_only", None)
    assert found.finish_s.p50 == pytest.approx(10 * H + 240)
    assert found.finish_s.p90 == math.inf


def test_a_deadline_that_cannot_be_kept_is_missed_and_paid_to_the_end() -> None:
    worlds = draws(ASK, OwnForecast([Sight()]), 5, horizon_s(ASK, [ASK.work_s / 2]), seed=1)
    found = estimate(ASK, worlds, "on_demand", ASK.work_s / 2)
    assert found.met == 0.0
    assert found.finish_s.p90 == pytest.approx(10 * H + 240)
    assert found.cost_usd.p90 == pytest.approx(3.0 * (10 + 240 / H))


def test_auto_without_a_deadline_waits_for_spot() -> None:
    worlds = draws(ASK, OwnForecast([Sight()]), 5, horizon_s(ASK, [None]), seed=1)
    assert estimate(ASK, worlds, "auto", None).cost_usd == estimate(ASK, worlds, "spot_only", None).cost_usd


def test_a_slow_policy_meets_fewer_futures() -> None:
    assert estimate(ASK, [ALWAYS] * 50, "on_demand", None, patience_s=0.0).futures == 20


def test_infinite_values_have_quantiles() -> None:
    span = Range.of(np.asarray([3.0, 1.0, math.inf, 2.0]))
    assert (span.p10, span.p50, span.p90) == (1.0, 2.0, math.inf)


@pytest.mark.parametrize(
    ("policy", "words"), [("uniform_progress", "needs a deadline"), ("rotate", "known: "), ("x", "no policy 'x'")]
)
def test_what_cannot_be_estimated_says_why(policy: str, words: str) -> None:
    with pytest.raises(Unfit, match=words):
        entrant(policy, deadline=False)


@pytest.mark.parametrize("policy", names())
def test_every_policy_can_be_estimated_under_a_deadline(policy: str) -> None:
    worlds = draws(ASK, OwnForecast([Sight()]), 3, horizon_s(ASK, [14 * H]), seed=1)
    found = estimate(ASK, worlds, policy, 14 * H)
    assert 10.0 <= found.cost_usd.p10 <= found.cost_usd.p90 <= 3.0 * 14.2
    if policy != "spot_only":
        assert found.met == 1.0, "on-demand is always to be had in these futures"


def test_more_time_never_makes_it_dearer_in_the_mean() -> None:
    ends = [11 * H, 14 * H, 20 * H]
    worlds = draws(ASK, OwnForecast([Sight()]), 60, horizon_s(ASK, ends), seed=3)
    costs = [np.mean(estimate(ASK, worlds, "uniform_progress", end).cost_usd.curve) for end in ends]
    assert costs[0] > costs[1] > costs[2]


def test_a_record_teaches_state_age_and_counts() -> None:
    up = np.asarray([True] * 12 + [False] * 6 + [True] * 3)
    sight = sighted(up, 600.0, half_life_h=None)
    assert (sight.up, sight.age_h) == (True, 0.5)
    assert sight.seen is not None
    assert sum(sight.seen.up_runs.events) == 1.0
    assert sum(sight.seen.down_runs.events) == 1.0
    assert sum(sight.seen.up_runs.exposure_h) == pytest.approx(2.5)
    assert sum(sight.seen.down_runs.exposure_h) == pytest.approx(1.0)


def test_what_was_long_ago_counts_less() -> None:
    early, late = (np.repeat([up, not up] * 6 + [up] * 30, 6) for up in (True, True))
    late = late[::-1].copy()
    kept = [sum(one.seen.up_runs.events) for up in (early, late) if (one := sighted(up, 1200.0)).seen is not None]
    assert kept[0] < kept[1]
