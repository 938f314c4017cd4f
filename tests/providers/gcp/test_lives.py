"""A fleet of limited life does not end at once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from everstep.providers.gcp.lives import SPREAD_S, planned_end

DAY_S = 86_400.0


@given(job=st.text(), deployment=st.text(), started_at=st.floats(0, 4e9), life_s=st.floats(60, 1e6))
def test_never_after_the_life_and_never_much_before(
    job: str, deployment: str, started_at: float, life_s: float
) -> None:
    end = planned_end(started_at, life_s, deployment=deployment, job=job)
    assert started_at + life_s - min(SPREAD_S, life_s / 12) - 1e-3 <= end <= started_at + life_s
    assert end == planned_end(started_at, life_s, deployment=deployment, job=job)


def test_five_hundred_jobs_are_spread_over_the_window() -> None:
    ends = [planned_end(0.0, DAY_S, deployment="d", job=f"j-{n}") for n in range(500)]
    buckets = [0] * 12  # of ten minutes
    for end in ends:
        buckets[int((DAY_S - end) // (SPREAD_S / 12))] += 1
    assert max(buckets) < 2 * 500 / 12
    assert min(buckets) > 500 / 12 / 2


def test_a_gang_goes_together() -> None:
    ends = {planned_end(started, DAY_S, deployment="d", job="j-1") - started for started in (0.0, 5.0, 60.0)}
    assert len({round(end, 6) for end in ends}) == 1
    assert planned_end(0.0, DAY_S, deployment="d", job="j-2") - 0.0 not in ends
