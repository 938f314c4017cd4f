"""Jobs on the fake Compute Engine: startup script to notice to replacement with the old disk, by the vendor's SDK."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.gce import GceRig
from tests.e2e.losses import five_losses

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.xdist_group("e2e-gce")]

STEPS = 40


@pytest.fixture
def rig(request: pytest.FixtureRequest, tmp_path: Path, take_in: Callable[[GceRig], GceRig]) -> GceRig:
    made = take_in(GceRig(tmp_path / "rig", **getattr(request, "param", {})))
    made.start()
    return made


@pytest.mark.expensive(family="clouds end to end")
@pytest.mark.parametrize("rig", [{"keep": "volume"}, {"keep": "boot_disk"}], indirect=True, ids=lambda o: o["keep"])
def test_a_job_goes_on_from_its_disk_after_a_preemption(rig: GceRig) -> None:
    job = rig.trainer(options=f"--steps {STEPS} --step-s 0.05 --until-attempt 2")
    rig.wait_for(lambda: rig.events(job, "CheckpointSaved"), "a checkpoint")
    (instance,) = rig.members(job)
    rig.fake.preempt(instance)
    detail = rig.wait_phase(job, "succeeded")
    assert [a.cause for a in detail.attempts] == ["preemption", "success"]
    assert str(detail.attempts[1].base).startswith("1:")
    assert rig.digest_file.read_text() == rig.undisturbed(nodes=1, steps=STEPS)
    rig.check_settled()
    rig.check_tokens()


@pytest.mark.expensive(family="gang losses")
def test_five_preemptions_a_dry_zone_and_a_server_killed_twice(rig: GceRig) -> None:
    five_losses(rig, rig.gce, spot=True)
