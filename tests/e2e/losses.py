"""What a gang on a cloud must come through, whichever cloud it is."""

from __future__ import annotations

from typing import Any

from tests.e2e.clouds import Cloud, CloudRig

STEPS = 300
SHARE = 50
"""What an attempt may do at most: enough for several saves, and the next one has as much before it."""
COOLDOWN = "2m"
"""After the fourth loss no zone is left that did not fail lately. With the usual half an hour the job would then wait
three minutes for the one that has rested longest, with all that runs looking on."""


def five_losses(rig: CloudRig, cloud: Cloud, **resources: Any) -> list[tuple[str, str]]:
    """With and without notice, master and child, a host that hangs; where it is runs dry, so the gang moves; and the
    server is killed twice.

    Args:
        cloud: where the gang is.
        resources: more of the task's.

    Returns:
        Zones of master and child in each attempt but the last.
    """
    rig.supervise()
    options = f"--steps {STEPS} --step-s 0.05 --until-attempt 6 --share {SHARE}"
    job = rig.gang(options, recovery={"cooldown": COOLDOWN}, **resources)
    zones: list[tuple[str, str]] = []

    def next_attempt(number: int) -> tuple[str, str]:
        rig.wait_saved(job, number)
        master, child = rig.members(job)
        zones.append((cloud.zone(master), cloud.zone(child)))
        return master, child

    _, child = next_attempt(1)
    cloud.preempt(child)
    master, _ = next_attempt(2)
    rig.kill_server()
    cloud.preempt(master, notice_s=0.0)
    both = next_attempt(3)
    for zone in set(zones[2]):
        cloud.dry(zone)
    for machine in both:
        cloud.fake.lose(machine)
    master, _ = next_attempt(4)
    cloud.preempt(master)
    rig.kill_server()
    _, child = next_attempt(5)
    cloud.fake.hang(child)

    detail = rig.wait_phase(job, "succeeded")
    assert rig.restarts == 2
    causes = [a.cause for a in detail.attempts]
    assert causes == ["preemption", "preemption", "node_loss", "preemption", "node_loss", "success"]
    assert detail.user_failures == 0
    assert not set(zones[3]) & set(zones[2]), "it went on where there was capacity, from the bucket"
    bases = [str(a.base).split(":")[0] for a in detail.attempts[1:]]
    assert bases == ["1", "2", "3", "4", "5"], "no attempt began anew"
    assert rig.digest_file.read_text() == rig.undisturbed(nodes=2, steps=STEPS)
    rig.check_ranks()
    rig.check_settled()
    rig.check_tokens()
    return zones
