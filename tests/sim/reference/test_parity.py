"""Every row of the published costs, to a tenth of a cent."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import pytest

from everstep.brain.select.policies import ALIASES, POLICIES
from everstep.market.availability import read_series
from everstep.sim.reference.drive import drive
from everstep.sim.reference.market import Job, Market, Zone

POLICY_NAMES = ("on_demand", "greedy_spot_safety_net", "up_no_hysteresis", "uniform_progress")


def rows(folder: Path, policy: str) -> Iterator[dict[str, str]]:
    with (folder / "peer_costs_dev.csv").open(newline="", encoding="utf-8") as file:
        yield from (row for row in csv.DictReader(file) if row["policy"] == policy)


def job(row: dict[str, str]) -> Job:
    hours = (float(row[key]) * 3600 for key in ("task_h", "deadline_h", "changeover_h"))
    return Job(*hours, start_tick=int(row["start_tick_in_file"]))


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_every_published_row_comes_out_the_same(name: str, data_dir: Path) -> None:
    folder = data_dir / "spot_availability"
    markets: dict[tuple[str, str], Market] = {}
    count = 0
    for row in rows(folder, name):
        key = row["file"], row["gang"]
        if key not in markets:
            series = read_series(folder / row["file"])
            markets[key] = Market([Zone(series.zone, series.region, series.up(int(row["gang"])))], series.gap_s)
        outcome = drive(markets[key], job(row), POLICIES[ALIASES.get(name, name)])
        count += 1
        assert outcome.finish_s is not None
        assert outcome.cost_usd == pytest.approx(float(row["cost_usd"]), abs=1e-3), row
        assert outcome.finish_s / 3600 == pytest.approx(float(row["finish_h"]), abs=1e-3), row
        assert outcome.spot_exits == int(row["spot_exits"]), row
        assert outcome.deadline_met
    assert count == 771
