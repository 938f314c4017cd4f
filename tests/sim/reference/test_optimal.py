"""The optimum: equal to the published one, and to trying everything in small markets."""

from __future__ import annotations

import csv
import functools
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.market.availability import read_series
from everstep.sim.reference.market import Job, Market, Zone
from everstep.sim.reference.optimal import NoPlan, best_plan, optimal
from tests.sim.reference.test_parity import job
from tests.sim.reference.worlds import TICK_S, market

_SETS = (
    "aws-k80-v100-2022-10",
    "aws-v100x1-2023-02",
    "aws-v100x1-16node-2023-08",
    "aws-v100x1-4node-preemption-2023-08",
)
_PARTS = 8


@pytest.mark.expensive(family="published optimum")
@pytest.mark.parametrize("part", range(_PARTS))
@pytest.mark.parametrize("name", _SETS)
def test_every_published_optimum_comes_out_the_same(name: str, part: int, data_dir: Path) -> None:
    folder = data_dir / "spot_availability"
    with (folder / "peer_costs_dev.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["policy"] == "optimal_dp" and row["set"] == name]
    assert len(rows) >= 24
    for row in rows[part::_PARTS]:
        series = read_series(folder / row["file"])
        place = Market([Zone(series.zone, series.region, series.up(int(row["gang"])))], series.gap_s)
        outcome = optimal(place, job(row))
        assert outcome.cost_usd == pytest.approx(float(row["cost_usd"]), abs=1e-3), row
        assert outcome.deadline_met


def by_trying_everything(place: Market, wanted: Job) -> float:
    """The least cost over all sequences of actions, by the rules of the driver: an unspent changeover is given back."""
    regions = {zone.name: zone.region for zone in place.zones}
    actions = [("idle", "")] + [(mode, zone.name) for zone in place.zones for mode in ("spot", "on_demand")]
    steady = {zone.name: zone.on_demand_usd_per_h for zone in place.zones}
    last = wanted.last_tick(TICK_S)

    @functools.cache
    def least(tick: int, standing: tuple[str, str], unpaid_s: float, done_s: float, region: str | None) -> float:
        if done_s >= wanted.task_s - 1e-6:
            return 0.0
        if tick >= last:
            return math.inf
        if standing[0] == "spot" and not place.up(standing[1], tick):
            standing = ("idle", "")
        return min(cost(tick, action, standing, unpaid_s, done_s, region) for action in actions)

    def cost(
        tick: int,
        action: tuple[str, str],
        standing: tuple[str, str],
        unpaid_s: float,
        done_s: float,
        region: str | None,
    ) -> float:
        mode, name = action
        if mode == "idle":
            return least(tick + 1, action, 0.0, done_s, region)
        if mode == "spot" and not place.up(name, tick):
            return math.inf
        usd = place.spot_usd(name, tick, tick + 1) if mode == "spot" else steady[name] * TICK_S / 3600
        if action != standing:
            usd += place.move_usd(region, regions[name])
            unpaid_s = wanted.changeover_s
        paid_s = min(unpaid_s, TICK_S)
        after_s = min(done_s + TICK_S - paid_s, wanted.task_s)
        return usd + least(tick + 1, action, unpaid_s - paid_s, after_s, regions[name])

    return least(wanted.start_tick, ("idle", ""), 0.0, 0.0, None)


@settings(max_examples=40)
@given(
    ups=st.lists(st.lists(st.booleans(), min_size=14, max_size=14), min_size=1, max_size=3),
    prices=st.lists(st.lists(st.sampled_from([0.5, 1.0, 2.0, 3.05]), min_size=14, max_size=14), min_size=3, max_size=3),
    changeover_s=st.sampled_from([0.0, 72.0, 600.0, 720.0, 1440.0]),
    slack_ticks=st.integers(0, 6),
)
def test_no_sequence_of_actions_is_cheaper(
    ups: list[list[bool]], prices: list[list[float]], changeover_s: float, slack_ticks: int
) -> None:
    place = market(ups, prices[: len(ups)])
    wanted = Job(7 * TICK_S, (7 + slack_ticks) * TICK_S, changeover_s, start_tick=1)
    least = by_trying_everything(place, wanted)
    if math.isinf(least):
        with pytest.raises(NoPlan):
            best_plan(place, wanted)
    else:
        assert best_plan(place, wanted).cost_usd == pytest.approx(least, abs=1e-6)


def test_an_odd_changeover_is_rounded_up_and_still_meets_the_deadline() -> None:
    place = market([[True, False] * 200], [[1.0] * 400])
    wanted = Job(200 * TICK_S, 300 * TICK_S, 117.003)
    outcome = optimal(place, wanted)
    assert outcome.deadline_met
    near = best_plan(place, Job(200 * TICK_S, 300 * TICK_S, 117.0)).cost_usd
    assert near <= outcome.cost_usd <= near * 1.01
