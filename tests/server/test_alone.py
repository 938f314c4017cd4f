"""A plan where no server runs."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from everstep.cli import link
from everstep.client import launcher
from everstep.client.api import Client
from everstep.client.home import Home
from everstep.client.results import PlanView
from everstep.model.errors import BadInput
from everstep.model.task import SpotMode, Task
from everstep.ports import OfferQuery
from everstep.providers.local import LocalProvider
from everstep.server.alone import plan_alone

TASK = Task(name="t", run="true", spot=SpotMode.AUTO)
BOX = """
machines:
  m1: {cpus: 8, memory_gib: 16, prices: {on_demand: 1.0, spot: 0.25}}
zones:
  box-a: {spot: {capacity: 2}, on_demand: {capacity: 2}}
"""


@pytest.fixture
def home(tmp_path: Path, leak_guard: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    """Not made yet; ``leak_guard`` looks for processes that are left."""
    made = Home(tmp_path / "home")
    monkeypatch.setenv("EVERSTEP_HOME", str(made.path))
    yield made
    if launcher.is_running(made):
        launcher.stop(made)
    if box_of(made).home.exists():
        asyncio.run(box_of(made).stop())


def box_of(home: Home) -> LocalProvider:
    return LocalProvider(home.path / "local")


def with_box(home: Home) -> Home:
    home.path.mkdir()
    (home.path / "box.yaml").write_text(BOX)
    home.config_file.write_text("providers: {local: {config_path: box.yaml}}\n")
    return home


def decision(plan: PlanView) -> tuple[object, ...]:
    offers = [(o.provider, o.zone, o.machine_type, o.market, o.price_usd_per_h) for o in plan.offers]
    return offers, plan.choice, plan.reasons, plan.wait, plan.policy


def test_nothing_is_left_of_a_plan_in_a_home_that_is_not_there(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "_spawn", lambda *_: pytest.fail("a server was started"))
    plan = link.plan(TASK)
    assert [(o.provider, o.market) for o in plan.offers] == [("local", "static")]
    assert not home.path.exists()


def test_a_cloud_in_a_box_that_nobody_had_is_looked_at_and_gone(home: Home) -> None:
    plan = plan_alone(with_box(home), TASK)
    assert plan.choice["market"] == "spot"
    assert any("at $0.25/h" in reason for reason in plan.reasons)
    assert sorted(path.name for path in home.path.iterdir()) == ["box.yaml", "config.yaml"]


@pytest.mark.e2e
def test_a_box_that_runs_goes_on_and_one_that_did_not_run_does_not(home: Home) -> None:
    box = LocalProvider(with_box(home).path / "local", home.path / "box.yaml")
    asyncio.run(box.offers(OfferQuery()))
    assert plan_alone(home, TASK).choice["zone"] == "box-a"
    assert box.runs()
    asyncio.run(box.leave())
    assert not box.runs()
    home.config_file.unlink()
    assert plan_alone(home, TASK).choice["zone"] == "box-a", "the box has not forgotten what it offers"
    assert not box.runs()


def test_what_a_server_would_refuse_is_refused(home: Home) -> None:
    with pytest.raises(BadInput, match="there is nothing to run"):
        plan_alone(home, Task(name="t", run=""))
    with pytest.raises(BadInput, match="there is no policy 'x'"):
        plan_alone(home, Task(name="t", run="true", policy="x"))
    home.path.mkdir()
    home.config_file.write_text("providers: {nosuch: {}}\n")
    with pytest.raises(BadInput, match="nosuch"):
        plan_alone(home, TASK)


def test_a_cloud_that_could_not_call_back_is_told_before_anything_is_asked(home: Home) -> None:
    home.path.mkdir()
    home.config_file.write_text("providers: {aws: {regions: [us-east-1], types: [g5.xlarge]}}\n")
    pytest.importorskip("boto3")
    with pytest.raises(BadInput, match=re.escape("only its own computer can, at http://127.0.0.1; ")):
        plan_alone(home, TASK)


@pytest.mark.e2e
def test_a_server_that_runs_is_asked_and_says_the_same(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    with_box(home)
    alone = link.plan(TASK)
    launcher.start_background(home)
    monkeypatch.setattr("everstep.server.alone.plan_alone", lambda *_: pytest.fail("the server was not asked"))
    assert decision(link.plan(TASK)) == decision(alone)
    with Client(home=home) as client:
        assert client.health().jobs == {}
