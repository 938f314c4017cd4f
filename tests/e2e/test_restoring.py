"""Going back to an older checkpoint: what is listed as restorable is there when the next attempt starts from it."""

from __future__ import annotations

import shutil

import pytest

from tests.e2e.rig import Rig

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.xdist_group("e2e-restoring")]

STEPS, KEEP = 60, 2


def _third_attempt(rig: Rig) -> tuple[str, list[int]]:
    """A job with as many checkpoints as it keeps, that saves only when it is stopped; their steps."""
    job = rig.trainer(options=f"--steps {STEPS} --step-s 0.1", checkpoint={"every": "1h", "keep": KEEP})
    for step in (5, 15):
        rig.wait_step(job, step)
        rig.client.pause(job)
        rig.wait_phase(job, "paused")
        rig.client.unpause(job)
    rig.wait_for(lambda: len(rig.events(job, "Restored")) == 3, "third attempt")
    return job, [c.step for c in rig.client.checkpoints(job) if c.restorable]


@pytest.mark.expensive(family="steering and capacity")
@pytest.mark.parametrize("lost", [False, True], ids=["undisturbed", "its machine is lost at once"])
def test_the_oldest_that_is_kept_can_be_gone_back_to(rig: Rig, lost: bool) -> None:
    job, kept = _third_attempt(rig)
    assert len(kept) == KEEP, "one more save, and the oldest is deleted"
    assert rig.client.restore(job, kept[0]) == f"1:{kept[0]}"
    if lost:
        rig.box("kill", instance=rig.members(job)[0], detect_s=0.0, silent=False)
    detail = rig.wait_phase(job, "succeeded")
    told = [event.body for event in rig.events(job, "Restored")]
    assert [body["base"] for body in told][2:4] == [f"2:{kept[1]}", f"1:{kept[0]}"]
    assert not any(body["missed"] for body in told)
    assert detail.user_failures == 0
    assert rig.digest_file.read_text() == rig.undisturbed(steps=STEPS)
    rig.check_exclusive()
    rig.check_settled()


@pytest.mark.expensive(family="steering and capacity")
def test_if_it_is_gone_all_the_same_the_job_goes_on_from_the_newest(rig: Rig) -> None:
    job, kept = _third_attempt(rig)
    shutil.rmtree(rig.box_home / "shared" / job / "checkpoints" / "000001")
    assert rig.client.restore(job, kept[0]) == f"1:{kept[0]}"
    rig.wait_phase(job, "succeeded")
    event = rig.events(job, "Restored")[3]
    assert (event.body["base"], event.body["missed"]) == (f"2:{kept[1]}", f"1:{kept[0]}")
    assert event.text.endswith(f"NOT from 1:{kept[0]}, which was asked for and is gone")
    assert rig.digest_file.read_text() == rig.undisturbed(steps=STEPS)
    rig.check_settled()
