"""Jobs on the fake EC2: user data to notice to replacement with the old disk, over the wire of the vendor's SDK."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.ec2 import Ec2Rig
from tests.e2e.losses import five_losses

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.xdist_group("e2e-ec2")]

STEPS = 60


@pytest.fixture
def rig(tmp_path: Path, take_in: Callable[[Ec2Rig], Ec2Rig]) -> Ec2Rig:
    made = take_in(Ec2Rig(tmp_path / "rig"))
    made.start()
    return made


@pytest.mark.expensive(family="clouds end to end")
def test_two_nodes_through_a_dead_host_a_notice_and_a_dead_server(rig: Ec2Rig) -> None:
    rig.supervise()
    job = rig.gang(f"--steps {STEPS} --step-s 0.05 --until-attempt 3")
    rig.wait_saved(job, 1)
    rig.fake.lose(rig.members(job)[1])
    rig.wait_saved(job, 2)
    master = rig.members(job)[0]
    rig.fake.interrupt(master)
    rig.kill_server()

    detail = rig.wait_phase(job, "succeeded")
    assert rig.restarts == 1
    assert [a.cause for a in detail.attempts] == ["node_loss", "preemption", "success"]
    assert [str(a.base).split(":")[0] for a in detail.attempts] == ["None", "1", "2"]
    assert detail.user_failures == 0
    assert rig.ec2.instance(master)["StateReason"]["Code"] == "Server.SpotInstanceTermination"
    assert rig.digest_file.read_text() == rig.undisturbed(nodes=2, steps=STEPS)
    rig.check_ranks()
    rig.check_settled()
    rig.check_tokens()


@pytest.mark.expensive(family="clouds end to end")
def test_the_way_from_the_launch_to_the_first_step(rig: Ec2Rig) -> None:
    """docs/aws.md has the figures: ``pytest -s tests/e2e/test_ec2.py -k first_step``."""
    job = rig.stepper(options="--steps 5 --step-s 0.05")
    rig.wait_phase(job, "succeeded")
    event = {e.kind: e for e in reversed(rig.events(job))}  # the first of each kind
    (machine,) = rig.fake.cloud.machines.values()
    asked = [
        at
        for at, (_, _, path, _) in zip(rig.fake.metadata.asked_at, rig.fake.metadata.asked, strict=True)
        if path.endswith("/instance-id")
    ]
    way = {
        "submitted": event["JobSubmitted"].at,
        "disk ready": event["VolumeReady"].at,
        "launch answered": machine.launched_at,
        "running": machine.runs_at,
        "boot script asks who it is": asked[0],
        "agent fetched and started": event["InstanceJoined"].body["booted_at"],
        "joined": event["InstanceJoined"].at,
        "prepared": event["InstanceReady"].at,
        "ranks started": event["RanksStarted"].body["spawned_at"],
        "first step": rig.trail("step")[0].t,
    }
    instants = list(way.values())
    print()
    for (what, at), before in zip(list(way.items())[1:], instants, strict=False):
        print(f"  {at - before:6.2f} s  {what}")
    assert instants == sorted(instants), way
    assert instants[-1] - way["running"] < 60.0
    rig.check_settled()


@pytest.mark.expensive(family="gang losses")
def test_five_preemptions_a_dry_zone_and_a_server_killed_twice(rig: Ec2Rig) -> None:
    zones = five_losses(rig, rig.ec2)
    assert len({master for master, _ in zones[:3]}) == 1, "it stays with its disk as long as it can"
