"""500 jobs preempted at once and a burst of 200 submissions: no pool is rushed, and everybody gets there."""

from __future__ import annotations

import pytest

from benchmarks.surge import busiest, surge
from everstep.control.kernel import Line
from everstep.model.events import LaunchIntended
from everstep.model.gang import Slot
from everstep.model.ids import JobId, LaunchToken
from everstep.model.offers import MachineType, Market, Offer


@pytest.mark.slow
@pytest.mark.expensive(family="benchmarks")
@pytest.mark.parametrize(
    ("jobs", "burst", "per_minute", "told"), [(500, 200, 60, False), (150, 60, 20, True)], ids=["hidden", "told"]
)
def test_no_pool_is_launched_into_beyond_its_credits(jobs: int, burst: int, per_minute: int, told: bool) -> None:
    # Two hours of work and a little: they are all at it when their zone runs dry.
    found = surge(jobs, burst, per_minute=per_minute, told=told, hours=2.2)
    assert found.busiest == per_minute
    assert len(found.recovered_s) == jobs
    assert len(found.began_s) == burst
    assert found.finished == jobs + burst


@pytest.mark.slow
@pytest.mark.expensive(family="benchmarks")
def test_without_credits_they_would_be() -> None:
    found = surge(150, 60, per_minute=None, hours=2.2)
    assert found.busiest == 150
    assert found.finished == 210


def test_the_busiest_minute_is_counted_over_any_sixty_seconds() -> None:
    def line(at: float, zone: str) -> Line:
        offer = Offer("w", "r", zone, MachineType("m"), Market.SPOT, 1.0, 2.0, 0.0, "")
        return Line(JobId("j"), LaunchIntended(LaunchToken("t"), 1, Slot(0, 0), offer, None), at)

    assert busiest([line(at, "a") for at in (0.0, 50.0, 59.9, 60.0, 61.0)]) == 4
    assert busiest([line(0.0, "a"), line(1.0, "b"), line(2.0, "b")]) == 2
    assert busiest([]) == 0
