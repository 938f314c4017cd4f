"""kill -9 of everything but the server: agents, ranks, the command line that follows, the box."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.e2e.rig import Rig

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("e2e-processes-killed")]


@pytest.mark.expensive(family="servers and agents lost")
def test_killed_agent_takes_its_ranks_along_and_the_job_goes_on_elsewhere_or_there(rig: Rig) -> None:
    job = rig.stepper(nodes=2, options="--steps 50 --step-s 0.1")
    rig.wait_step(job, 5)
    rig.wait_step(job, 5, node=1)
    os.kill(rig.agent_pid(rig.members(job)[1]), signal.SIGKILL)
    detail = rig.wait_phase(job, "succeeded")
    assert [a.cause for a in detail.attempts] == ["node_loss", "success"]
    assert detail.user_failures == 0
    rig.check_ranks()
    rig.check_exclusive()
    rig.check_settled()
    rig.check_tokens()


@pytest.mark.expensive(family="servers and agents lost")
def test_killed_rank_is_the_users_failure_and_charges_the_budget(rig: Rig) -> None:
    job = rig.stepper(nodes=2, options="--steps 30 --step-s 0.1", recovery={"max_restarts": 1})
    rig.wait_step(job, 5)
    os.kill(next(line.pid for line in rig.trail("began") if line.node == 1), signal.SIGKILL)
    detail = rig.wait_phase(job, "succeeded")
    assert [a.cause for a in detail.attempts] == ["user_error", "success"]
    assert detail.user_failures == 1
    assert detail.attempts[0].members == detail.attempts[1].members, "healthy machines stay"
    rig.check_ranks()
    rig.check_exclusive()
    rig.check_settled()


@pytest.mark.expensive(family="servers and agents lost")
def test_killed_ranks_without_a_budget_fail_the_job_with_the_signal_in_its_exit_code(rig: Rig) -> None:
    job = rig.stepper(options="--steps 1000 --step-s 0.1")
    rig.wait_step(job, 3)
    os.kill(rig.trail("began")[0].pid, signal.SIGKILL)
    detail = rig.client.wait(job, timeout_s=90)
    assert (detail.phase, detail.exit_code) == ("failed", 128 + signal.SIGKILL)
    rig.check_settled()


@pytest.mark.expensive(family="servers and agents lost")
def test_job_outlives_the_command_line_that_follows_it(rig: Rig) -> None:
    task = rig.folder / "task.yaml"
    script = rig.folder / "go"
    task.write_text(
        f"name: outlives\nrun: |\n  echo running\n  until [ -e {script} ]; do sleep 0.1; done\n  echo over\n"
    )
    command = [sys.executable, "-m", "everstep", "run", "-y", str(task)]
    environ = {**os.environ, "EVERSTEP_HOME": str(rig.home.path)}
    told = (rig.folder / "cli.txt").open("wb")
    with told, subprocess.Popen(command, stdout=told, stderr=told, env=environ, stdin=subprocess.DEVNULL) as follower:
        try:
            rig.wait_for(lambda: "running" in (rig.folder / "cli.txt").read_text(), "followed log")
        finally:
            follower.kill()
    (view,) = rig.client.jobs()
    rig.jobs.append(view.job)
    script.touch()
    detail = rig.wait_phase(view.job, "succeeded")
    assert len(detail.attempts) == 1
    assert rig.log(view.job).split() == ["running", "over"]
    rig.check_settled()


@pytest.mark.expensive(family="servers and agents lost")
def test_killed_box_is_found_again_with_its_machines(rig: Rig) -> None:
    job = rig.stepper(nodes=2, options="--steps 60 --step-s 0.1")
    rig.wait_step(job, 3)
    os.kill(rig.box_pid(), signal.SIGKILL)
    rig.wait_step(job, 20)  # the machines do not need their cloud to train
    rig.box_comes_back()
    rig.box("preempt", instance=rig.members(job)[0], notice=True, notice_s=1.5)
    detail = rig.wait_phase(job, "succeeded")
    assert [a.cause for a in detail.attempts] == ["preemption", "success"]
    rig.check_ranks()
    rig.check_exclusive()
    rig.check_settled()
    rig.check_tokens()
