"""One server on two clouds at once: a job on each, and a job that goes from one to the other when there is no more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.clouds import CloudRig
from tests.e2e.ec2 import Ec2
from tests.e2e.gce import WORLD, Gce

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.xdist_group("e2e-gce")]

STEPS = 60


class TwoClouds(CloudRig):
    """One installation on a fake account of EC2 and a fake project of Compute Engine. EC2 is the cheaper one."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.ec2, self.gce = Ec2(folder), Gce(folder)
        super().__init__(folder, [self.ec2, self.gce])

    def clouds_of(self, job: str) -> list[str]:
        """Providers of the job's machines, in the order of their launches."""
        return [m.provider for m in self.detail(job).machines if m.instance]

    def started(self, job: str) -> str:
        """The machine of a job of one node, once its rank has begun."""
        (begun, *_) = self.wait_for(lambda: self.events(job, "RanksStarted"), f"rank of {job}")
        return str(begun.body["instance"])


@pytest.fixture
def rig(tmp_path: Path, take_in: Callable[[TwoClouds], TwoClouds]) -> TwoClouds:
    made = take_in(TwoClouds(tmp_path / "rig"))
    made.start()
    return made


@pytest.mark.expensive(family="clouds end to end")
def test_a_job_on_each_cloud_in_one_server(rig: TwoClouds) -> None:
    """Each is preempted by its own cloud while the server dies, and neither cloud's trouble is the other job's."""
    rig.supervise()
    jobs = {
        infra: rig.stepper(
            options=f"--steps {STEPS} --step-s 0.05 --until-attempt 2", resources={"infra": infra, "spot": True}
        )
        for infra in ("aws", "gcp")
    }
    on_ec2, on_gce = (rig.started(job) for job in jobs.values())
    rig.kill_server()
    rig.ec2.fake.interrupt(on_ec2)
    rig.gce.fake.preempt(on_gce)
    for infra, job in jobs.items():
        detail = rig.wait_phase(job, "succeeded")
        assert [a.cause for a in detail.attempts] == ["preemption", "success"], infra
        assert set(rig.clouds_of(job)) == {infra}
    assert rig.restarts == 1
    rig.check_settled()
    rig.check_tokens()


@pytest.mark.expensive(family="clouds end to end")
def test_a_gang_goes_to_the_other_cloud_when_the_first_is_dry(rig: TwoClouds) -> None:
    """Both nodes are lost with nothing to be had in any zone of EC2: it goes on from the bucket, on Compute Engine."""
    job = rig.gang(f"--steps {STEPS} --step-s 0.05 --until-attempt 2")
    rig.wait_saved(job, 1)
    assert set(rig.clouds_of(job)) == {"aws"}, "the cheaper one"
    for zone in sorted({zone for zone, _ in rig.ec2.fake.cloud.world.supplies}):
        rig.ec2.dry(zone)
    for machine in rig.members(job):
        rig.ec2.fake.interrupt(machine, notice_s=0.0)
    detail = rig.wait_phase(job, "succeeded")
    assert [a.cause for a in detail.attempts] == ["preemption", "success"]
    assert str(detail.attempts[1].base).startswith("1:"), "nothing began anew"
    last = detail.attempts[-1].members
    assert {m.provider for m in detail.machines if m.instance in last} == {"gcp"}
    assert {m.zone for m in detail.machines if m.instance in last} <= {zone for zone, _ in WORLD.supplies}
    assert rig.digest_file.read_text() == rig.undisturbed(nodes=2, steps=STEPS)
    rig.check_ranks()
    rig.check_settled()
    rig.check_tokens()
