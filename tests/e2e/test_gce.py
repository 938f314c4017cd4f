"""Jobs on the fake Compute Engine: startup script to notice to replacement with the old disk, by the vendor's SDK."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.clouds import taken_down
from tests.e2e.conftest import RIGS
from tests.e2e.gce import GceRig

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.xdist_group("e2e-gce")]

STEPS = 40
FIVE_STEPS, SHARE = 300, 50
"""What an attempt may do at most: enough for several saves, and the next one has as much before it."""


@pytest.fixture
def rig(request: pytest.FixtureRequest, tmp_path: Path, leak_guard: str) -> Iterator[GceRig]:
    options = getattr(request, "param", {})
    with taken_down(GceRig(tmp_path / "rig", **options)) as made:
        request.node.stash.setdefault(RIGS, []).append(made)
        made.start()
        yield made


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
    """With and without notice, master and child, a host that hangs; where it is runs dry, so the gang moves."""
    rig.supervise()
    job = rig.gang(f"--steps {FIVE_STEPS} --step-s 0.05 --until-attempt 6 --share {SHARE}", spot=True)
    zones: list[set[str]] = []

    def next_attempt(number: int) -> tuple[str, str]:
        rig.wait_saved(job, number)
        master, child = rig.members(job)
        zones.append({rig.gce.zone(master), rig.gce.zone(child)})
        return master, child

    _, child = next_attempt(1)
    rig.fake.preempt(child)
    master, _ = next_attempt(2)
    rig.kill_server()
    rig.fake.preempt(master, notice_s=0.0)
    both = next_attempt(3)
    for zone in zones[2]:
        rig.gce.dry(zone)
    for machine in both:
        rig.fake.lose(machine)
    master, _ = next_attempt(4)
    rig.fake.preempt(master)
    rig.kill_server()
    _, child = next_attempt(5)
    rig.fake.hang(child)

    detail = rig.wait_phase(job, "succeeded")
    assert rig.restarts == 2
    causes = [a.cause for a in detail.attempts]
    assert causes == ["preemption", "preemption", "node_loss", "preemption", "node_loss", "success"]
    assert detail.user_failures == 0
    assert not zones[3] & zones[2], "it went on where there was capacity, from the bucket"
    bases = [str(a.base).split(":")[0] for a in detail.attempts[1:]]
    assert bases == ["1", "2", "3", "4", "5"], "no attempt began anew"
    assert rig.digest_file.read_text() == rig.undisturbed(nodes=2, steps=FIVE_STEPS)
    rig.check_ranks()
    rig.check_settled()
    rig.check_tokens()
