"""Two nodes of real data-parallel training lose machines in every way; the weights are those of an undisturbed run."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from tests.e2e.rig import Rig

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.xdist_group("e2e-gang")]

STEPS = 60


def _child_with_notice(rig: Rig, members: tuple[str, ...]) -> None:
    rig.box("preempt", instance=members[1], notice=True, notice_s=4.0)


def _master_with_notice(rig: Rig, members: tuple[str, ...]) -> None:
    rig.box("preempt", instance=members[0], notice=True, notice_s=4.0)


def _child_without_notice(rig: Rig, members: tuple[str, ...]) -> None:
    rig.box("preempt", instance=members[1], notice=False, notice_s=None)


def _master_without_notice(rig: Rig, members: tuple[str, ...]) -> None:
    rig.box("kill", instance=members[0], detect_s=0.0, silent=False)


def _child_freezes(rig: Rig, members: tuple[str, ...]) -> None:
    # Its sockets stay open: peers wait in a collective, only the silence tells.
    rig.box("kill", instance=members[1], detect_s=600.0, silent=True)


def _both_at_once(rig: Rig, members: tuple[str, ...]) -> None:
    for member in members:
        rig.box("preempt", instance=member, notice=False, notice_s=None)


#: What happens, the cause that is settled, and who must still be there afterwards.
LOSSES: dict[str, tuple[Callable[[Rig, tuple[str, ...]], None], str, int | None]] = {
    "child with notice": (_child_with_notice, "preemption", 0),
    "master with notice": (_master_with_notice, "preemption", 1),
    "child without notice": (_child_without_notice, "preemption", 0),
    "master lost": (_master_without_notice, "node_loss", 1),
    "child freezes": (_child_freezes, "node_loss", 0),
    "both at once": (_both_at_once, "preemption", None),
}


@pytest.mark.expensive(family="training through losses")
@pytest.mark.parametrize("loss", LOSSES)
def test_weights_after_a_loss_are_those_of_an_undisturbed_run(rig: Rig, loss: str) -> None:
    lose, cause, survivor = LOSSES[loss]
    job = rig.trainer(nodes=2, options=f"--steps {STEPS} --step-s 0.1")
    rig.wait_for(lambda: rig.events(job, "CheckpointSaved"), "first checkpoint")
    members = rig.members(job)
    lose(rig, members)
    detail = rig.wait_phase(job, "succeeded")

    assert [a.cause for a in detail.attempts] == [cause, "success"], "one loss is one recovery, however it shows"
    assert detail.user_failures == 0
    if survivor is not None:
        assert detail.attempts[1].members[0] == members[survivor], "the survivor stays and is master"
    else:
        assert not set(detail.attempts[1].members) & set(members)
    assert detail.attempts[1].base is not None
    assert detail.attempts[1].base.startswith("1:"), "it goes on where a checkpoint was"
    assert rig.digest_file.read_text() == rig.undisturbed(nodes=2, steps=STEPS)
    rig.check_ranks()
    rig.check_settled()
    rig.check_tokens()


@pytest.mark.expensive(family="training through losses")
def test_notice_in_time_loses_no_step(rig: Rig) -> None:
    job = rig.trainer(nodes=2, options=f"--steps {STEPS} --step-s 0.1", checkpoint={"every": "10m"})
    rig.wait_step(job, 3)
    rig.box("preempt", instance=rig.members(job)[1], notice=True, notice_s=8.0)
    detail = rig.wait_phase(job, "succeeded")
    done = [line.step for line in rig.trail("step") if line.node == 0]
    assert done == list(range(1, STEPS + 1)), "each step was done once: the gang saved last thing before it stopped"
    assert [a.cause for a in detail.attempts] == ["preemption", "success"]
    assert rig.client.cost(job).lost_steps == 0
    rig.check_settled()


@pytest.mark.expensive(family="training through losses")
@pytest.mark.parametrize("node", [0, 1])
def test_rank_that_aborts_after_its_last_save_costs_a_restart_without_a_step(rig: Rig, node: int) -> None:
    options = f"--steps {STEPS} --step-s 0.05 --abort-node {node}"
    job = rig.trainer(nodes=2, options=options, recovery={"max_restarts": 1})
    detail = rig.wait_phase(job, "succeeded")
    _check_abort(rig, job, node)
    assert [a.cause for a in detail.attempts] == ["user_error", "success"], "on a healthy machine it is the program's"
    assert detail.user_failures == 1
    rig.check_settled()


@pytest.mark.expensive(family="training through losses")
def test_rank_that_aborts_after_its_last_save_fails_a_job_without_restarts_and_retry_completes_it(rig: Rig) -> None:
    job = rig.trainer(nodes=2, options=f"--steps {STEPS} --step-s 0.05 --abort-node 1")
    detail = rig.client.wait(job, timeout_s=90)
    assert (detail.phase, detail.exit_code) == ("failed", 128 + signal.SIGABRT)
    assert "signal 6, on healthy machines" in detail.why
    rig.client.retry(job)
    detail = rig.wait_phase(job, "succeeded")
    _check_abort(rig, job, 1)
    assert (detail.exit_code, detail.user_failures) == (0, 0)
    rig.check_settled()


def _check_abort(rig: Rig, job: str, node: int) -> None:
    """The second attempt began where the first had ended, and the weights are right."""
    assert [(line.attempt, line.step) for line in rig.trail("ended") if line.node == node] == [(1, STEPS), (2, STEPS)]
    assert [line.step for line in rig.trail("step") if line.node == node] == list(range(1, STEPS + 1))
    assert rig.detail(job).attempts[1].base == f"1:{STEPS}"
    assert rig.digest_file.read_text() == rig.undisturbed(nodes=2, steps=STEPS)
    rig.check_ranks()
    rig.check_tokens()
