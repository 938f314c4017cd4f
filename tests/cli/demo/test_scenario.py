from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.cli.demo import scenario
from everstep.cli.demo.reference import script_folder
from everstep.cli.demo.scenario import FAULTS, Kind, Training
from everstep.client.taskfile import load_task
from everstep.model.offers import Market
from everstep.model.task import SpotMode
from everstep.providers.local.config import read_config


@pytest.fixture
def box(tmp_path: Path) -> Path:
    for name, text in {"box.yaml": scenario.BOX_YAML, **scenario.traces()}.items():
        (tmp_path / name).write_text(text)
    return tmp_path / "box.yaml"


def test_the_box_understands_its_cloud(box: Path) -> None:
    config = read_config(box)
    assert set(config.zones) == set(scenario.ZONES)
    assert config.billing.time_scale == 3600 / scenario.TRACE_HOUR_S
    assert all(zone.supply[Market.ON_DEMAND].capacity is None for zone in config.zones.values())


def test_all_zones_run_dry_at_once_and_nothing_else_takes_a_gang(box: Path) -> None:
    for zone in read_config(box).zones.values():
        trace = zone.supply[Market.SPOT].trace
        assert trace is not None
        for hour in range(36):
            dry = scenario.DROUGHT_AT_H <= hour < scenario.DROUGHT_END_H
            available = trace.available_at(hour * 3600.0)
            assert (available == 0) if dry else (available > scenario.NODES), (zone.name, hour)
            price = trace.price_at(hour * 3600.0)
            assert price is not None
            assert 0 < price < 3.06


def test_the_task_leaves_the_market_to_the_selector(tmp_path: Path) -> None:
    (tmp_path / "task.yaml").write_text(scenario.task_yaml(Training(400, 0.25), "/opt/my python"))
    loaded = load_task(tmp_path / "task.yaml", cwd=tmp_path)
    assert (loaded.task.spot, loaded.task.gang.size, loaded.task.work.steps) == (SpotMode.AUTO, 2, 400)
    assert loaded.task.gang.groups[0].ranks_per_node == 1
    assert loaded.task.run.startswith("'/opt/my python' charlm.py --steps 400 --step-s 0.25")
    assert loaded.warnings == ()


def test_the_script_and_its_data_are_found() -> None:
    folder = script_folder()
    assert (folder / scenario.SCRIPT).is_file()
    assert (folder / scenario.DATA).is_file()


def test_steps_fit_the_time_and_never_get_too_few() -> None:
    fitting = scenario.training(0.1)
    assert fitting.steps * fitting.step_s == pytest.approx(scenario.USEFUL_S, rel=0.02)
    assert fitting.step_s > 0.1
    assert scenario.training(100.0).steps == 100


def test_the_script_keeps_an_even_pace(tmp_path: Path) -> None:
    words = [sys.executable, scenario.SCRIPT, "--steps", "11", "--step-s", "0.3", "--batch", "2"]
    env = {**os.environ, "EVERSTEP_CHECKPOINT_DIR": str(tmp_path)}
    at = []
    with subprocess.Popen(words, cwd=script_folder(), env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        at += [time.monotonic() for line in process.stdout if line.startswith("step ")]
    assert process.returncode == 0
    assert len(at) == 11
    assert at[-1] - at[0] > 0.5 * 10 * 0.3


def test_the_run_lives_through_the_drought() -> None:
    # Even training that nothing held up would not be through when it comes; boot, set-up and recoveries add to that.
    assert scenario.USEFUL_S > scenario.DROUGHT_AT_S
    # The last fault is got over before the drought, even if each takes ten seconds to recover from.
    assert FAULTS[-1].at_fraction * scenario.USEFUL_S + 10 * len(FAULTS) < scenario.DROUGHT_AT_S


@given(st.lists(st.tuples(st.integers(0, 1000), st.booleans()), max_size=200))
def test_faults_come_in_order_each_once_and_only_into_training(sights: list[tuple[int, bool]]) -> None:
    issued: list[Kind] = []
    for step, training in sights:
        fault = scenario.next_fault(len(issued), step, 1000, under_way=training)
        if fault is not None:
            assert training
            assert step >= fault.at_fraction * 1000
            issued.append(fault.kind)
    assert issued == [fault.kind for fault in FAULTS][: len(issued)]


@pytest.mark.parametrize(("step", "total"), [(None, 100), (50, None), (50, 0)])
def test_without_known_progress_nothing_is_broken(step: int | None, total: int | None) -> None:
    assert scenario.next_fault(0, step, total, under_way=True) is None
