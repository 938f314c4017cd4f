"""Whole runs on each cloud: whatever fails now and then, nothing is leaked, nothing is doubled, the bill is right."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from everstep.providers import load
from everstep.testing.fault_runs import Vendor, play, play_gangs

RUNS, GANGS = 250, 40
VENDORS = {"ec2": "Ec2Vendor", "gce": "GceVendor"}
QUOTA = {"ec2": "quota", "gce": "quota_at_once"}


def family(cloud: str) -> pytest.MarkDecorator:
    return pytest.mark.expensive(family=f"{cloud} fault runs")


def seeds(count: int) -> list[Any]:
    return [pytest.param(c, n, id=f"{c}-{n}", marks=family(c)) for c in VENDORS for n in range(count)]


def side(cloud: str) -> Any:
    """The cloud's module of the runs; skips the test where packages are missing."""
    if cloud == "gce":
        pytest.importorskip("google.cloud.compute_v1", reason="needs the extra gcp: pip install 'everstep[gcp]'")
        pytest.importorskip("googleapiclient", reason="the fake needs google-api-python-client")
    return import_module(f"everstep.testing.fault_runs.{cloud}")


def vendor(cloud: str) -> Vendor:
    made: Vendor = getattr(side(cloud), VENDORS[cloud])()
    return made


@pytest.mark.parametrize(("cloud", "seed"), seeds(RUNS))
def test_whatever_fails_nothing_is_left_or_there_twice(cloud: str, seed: int) -> None:
    run = play(vendor(cloud), seed, sure=side(cloud).sure_of(seed))
    assert run.problems == []
    assert run.states
    assert run.met


@pytest.mark.parametrize(
    ("cloud", "calls", "sure_of", "runs"),
    [
        ("ec2", "CALLS", "sure_of", RUNS),
        ("gce", "CALLS", "sure_of", RUNS),
        ("gce", "GANG_CALLS", "sure_of_gangs", GANGS),
    ],
)
def test_the_runs_meet_each_fault_of_each_call(cloud: str, calls: str, sure_of: str, runs: int) -> None:
    drawn = {(s.call, s.kind, s.late) for s in map(getattr(side(cloud), sure_of), range(runs))}
    for call in getattr(side(cloud), calls):
        for kind in ("throttle", "internal", "unavailable", "cut", "permission", QUOTA[cloud], "bad_parameter"):
            assert (call, kind, False) in drawn
        for kind in ("internal", "unavailable", "cut"):
            assert (call, kind, True) in drawn


@pytest.mark.parametrize(("cloud", "seed"), seeds(GANGS))
def test_gangs_are_all_or_nothing_in_any_weather(cloud: str, seed: int) -> None:
    # Where gangs make calls that no other run makes, each of these meets each fault.
    sure_of = getattr(side(cloud), "sure_of_gangs", lambda seed: None)
    assert play_gangs(vendor(cloud), seed, sure=sure_of(seed)) == []


@pytest.mark.parametrize(("cloud", "seed"), seeds(GANGS))
def test_gangs_that_the_controller_launches_by_one_call_in_any_weather(cloud: str, seed: int) -> None:
    run = play(vendor(cloud), seed, shared=True)
    assert run.problems == []
    assert run.states


@pytest.mark.parametrize("cloud", VENDORS)
def test_a_provider_that_forgets_is_found_out(cloud: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In every sample: it fails also where the runs lease nothing, and so prove nothing."""

    async def forget(self: object, what: object) -> None:
        """Says yes and does nothing."""

    forgetful = vendor(cloud)
    monkeypatch.setattr(load(forgetful.name), "delete_volume", forget)
    run = play(forgetful, 2)
    assert [p for p in run.problems if p.startswith("left behind")]
