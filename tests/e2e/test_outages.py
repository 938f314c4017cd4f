"""The server away, leases that end, agents cut off (rules 2, 3, 11)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.rig import Rig

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("e2e-outages")]


@pytest.mark.expensive(family="servers and agents lost")
def test_training_goes_on_while_the_server_is_away_and_reports_arrive_later(rig: Rig) -> None:
    job = rig.stepper(nodes=2, options="--steps 80 --step-s 0.1")
    rig.wait_step(job, 5)
    rig.kill_server()
    rig.wait_step(job, 45)  # four seconds of steps: many heartbeats
    rig.start()
    detail = rig.wait_phase(job, "succeeded")
    assert len(detail.attempts) == 1
    assert [(x.attempt, x.step) for x in rig.trail("step") if x.node == 0] == [(1, n) for n in range(1, 81)]
    saved = [e.body["step"] for e in rig.events(job, "CheckpointSaved")]
    assert saved == list(range(10, 81, 10)), "what happened in the meantime is in the journal, once"
    rig.check_settled()


@pytest.mark.expensive(family="servers and agents lost")
def test_job_that_ends_while_the_server_is_away_is_found_ended(rig: Rig) -> None:
    job = rig.stepper(options="--steps 30 --step-s 0.1")
    rig.wait_step(job, 3)
    rig.kill_server()
    rig.wait_for(lambda: rig.trail("ended"), "end of the ranks")
    rig.start()
    detail = rig.wait_phase(job, "succeeded")
    assert (len(detail.attempts), detail.step) == (1, 30)
    rig.check_settled()


@pytest.mark.expensive(family="servers and agents lost")
def test_at_the_end_of_the_lease_agents_save_and_stop(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(config="lease_s: 4\n")
    rig.start()
    job = rig.stepper(nodes=2, options="--steps 90 --step-s 0.1 --every 1000")
    rig.wait_step(job, 3)
    rig.wait_step(job, 3, node=1)
    rig.kill_server()
    rig.wait_for(lambda: len(_stops(rig)) == 2, "save on both nodes")
    stopped = _stops(rig)
    assert all(step < 90 for step in stopped.values())
    rig.start()
    detail = rig.wait_phase(job, "succeeded")
    assert [a.cause for a in detail.attempts] == ["node_loss", "success"]
    assert detail.user_failures == 0
    assert {x.node: x.step for x in rig.trail("began") if x.attempt == 2} == stopped, "no step was lost"
    rig.check_ranks()
    rig.check_exclusive()
    rig.check_settled()


@pytest.mark.expensive(family="servers and agents lost")
def test_agent_cut_off_for_a_short_while_is_left_alone(rig: Rig) -> None:
    job = rig.stepper(nodes=2, options="--steps 60 --step-s 0.1")
    rig.wait_step(job, 3)
    (_, child) = rig.members(job)
    rig.box("partition", instance=child, mode="reset")
    rig.wait_step(job, 30, node=1)
    rig.box("partition", instance=child, mode="")
    detail = rig.wait_phase(job, "succeeded")
    assert len(detail.attempts) == 1
    rig.check_settled()


@pytest.mark.expensive(family="servers and agents lost")
@pytest.mark.slow
def test_nothing_that_a_replaced_attempt_publishes_is_ever_read(rig: Rig) -> None:
    steps = 150
    job = rig.trainer(options=f"--steps {steps} --step-s 0.15 --until-attempt 3")
    rig.wait_for(lambda: rig.events(job, "CheckpointSaved"), "first checkpoint")
    (zombie,) = rig.members(job)
    # The machine cannot be reached, and the vendor takes its time to end it: it trains on and publishes.
    rig.box("api_fault", method="terminate", error="", delay_s=30.0, late=False, times=1)
    rig.box("partition", instance=zombie, mode="blackhole")
    rig.wait_for(lambda: [x for x in rig.trail("began") if x.attempt == 2], "second attempt")
    (second,) = [x for x in rig.trail("began") if x.attempt == 2]
    rig.wait_step(job, second.step + 12, attempt=2)
    ahead = max(x.step for x in rig.trail("step") if x.attempt == 1)
    assert ahead > second.step, "the cut-off attempt went on beyond the point where its successor froze it"
    rig.box("partition", instance=zombie, mode="")
    # Fenced: its ranks stop, long before the vendor ends the machine.
    rig.wait_for(lambda: not _trains(rig, zombie), "end of the fenced ranks")
    rig.box("kill", instance=rig.members(job)[0], detect_s=0.0, silent=False)
    rig.wait_for(lambda: [x for x in rig.trail("began") if x.attempt == 3], "third attempt")
    (third,) = [x for x in rig.trail("began") if x.attempt == 3]
    assert str(third.more["base"]).startswith("2:"), "the checkpoints of attempt 1 beyond its freezing do not exist"
    detail = rig.wait_phase(job, "succeeded")
    assert [a.attempt for a in detail.attempts] == [1, 2, 3]
    assert rig.digest_file.read_text() == rig.undisturbed(steps=steps)
    rig.check_ranks()
    rig.check_settled()
    rig.check_tokens()


def _stops(rig: Rig) -> dict[int, int]:
    """Node and step of every save before a stop."""
    return {line.node: line.step for line in rig.trail("saved") if line.more["why"] == "stop"}


def _trains(rig: Rig, instance: str) -> bool:
    found = []
    for pid in rig.pids(instance):
        try:
            found.append(b"trainer.py" in Path(f"/proc/{pid}/cmdline").read_bytes())
        except OSError:
            continue
    return any(found)
