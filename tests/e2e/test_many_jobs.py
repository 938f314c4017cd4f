"""Fifty short jobs at once on one server."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.e2e.rig import PLENTY, Rig

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.xdist_group("e2e-many-jobs")]

JOBS = 50


@pytest.mark.expensive(family="servers and agents lost")
def test_fifty_short_jobs_at_once(make_rig: Callable[..., Rig]) -> None:
    # Twelve machines for fifty jobs: most of them wait for others to end.
    rig = make_rig(cloud=PLENTY.replace("spot: {capacity: 8}", "spot: {capacity: 6}, on_demand: {capacity: 0}"))
    rig.start()
    jobs = [
        rig.submit(f"echo job number {n} >> {rig.folder}/done; exit $(({n} % 5 == 4))", recovery={"cooldown": "2s"})
        for n in range(JOBS)
    ]
    rig.wait_for(
        lambda: not rig.client.jobs() and len(rig.client.jobs(all=True)) == JOBS, "end of all jobs", timeout_s=400
    )
    views = {view.job: view for view in rig.client.jobs(all=True)}
    assert [views[job].phase for job in jobs] == ["failed" if n % 5 == 4 else "succeeded" for n in range(JOBS)]
    told = (rig.folder / "done").read_text().splitlines()
    assert sorted(told) == sorted(f"job number {n}" for n in range(JOBS)), "each ran once"
    rig.check_settled()
    rig.check_tokens()
