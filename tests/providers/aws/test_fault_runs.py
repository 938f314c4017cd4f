"""Whole runs on EC2: whatever fails now and then, nothing is leaked, nothing is doubled, and the bill is right."""

from __future__ import annotations

import pytest

from everstep.providers.aws import AwsProvider
from everstep.testing.fault_runs import play, play_gangs
from everstep.testing.fault_runs.ec2 import CALLS, Ec2Vendor, sure_of

RUNS, GANGS = 250, 40


@pytest.mark.parametrize(
    "seed", [pytest.param(n, marks=pytest.mark.expensive(family="ec2 fault runs")) for n in range(RUNS)]
)
def test_whatever_fails_nothing_is_left_or_there_twice(seed: int) -> None:
    run = play(Ec2Vendor(), seed, sure=sure_of(seed))
    assert run.problems == []
    assert run.states
    assert run.met


def test_the_runs_meet_each_fault_of_each_call() -> None:
    drawn = {(s.call, s.kind, s.late) for s in map(sure_of, range(RUNS))}
    for call in CALLS:
        for kind in ("throttle", "internal", "unavailable", "cut", "permission", "quota", "bad_parameter"):
            assert (call, kind, False) in drawn
        for kind in ("internal", "unavailable", "cut"):
            assert (call, kind, True) in drawn


@pytest.mark.expensive(family="ec2 fault runs")
@pytest.mark.parametrize("seed", range(GANGS))
def test_gangs_are_all_or_nothing_in_any_weather(seed: int) -> None:
    assert play_gangs(Ec2Vendor(), seed) == []


@pytest.mark.expensive(family="ec2 fault runs")
def test_a_provider_that_forgets_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async def forget(self: AwsProvider, what: object) -> None:
        """Says yes and does nothing."""

    monkeypatch.setattr(AwsProvider, "delete_volume", forget)
    run = play(Ec2Vendor(), 2)
    assert [p for p in run.problems if p.startswith("left behind")]
