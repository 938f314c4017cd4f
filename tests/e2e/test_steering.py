"""What users ask of a job, in every phase it can be in (rule 13: cancel wins over everything)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from everstep.model.errors import Conflict
from tests.e2e.rig import PLENTY, Rig

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("e2e-steering")]

DRY = PLENTY.replace("spot: {capacity: 8}", "spot: {capacity: 0}, on_demand: {capacity: 0}")
SLOW_BOOT = PLENTY.replace("boot_s: 0", "boot_s: 600")
LONG = "--steps 100000 --step-s 0.1"


def _acquiring(make_rig: Callable[..., Rig]) -> tuple[Rig, str]:
    rig = make_rig(cloud=DRY)
    rig.start()
    job = rig.stepper(options=LONG)
    rig.wait_for(lambda: "no" in rig.client.status(job).wait, "wait with a reason")
    return rig, job


def _booting(make_rig: Callable[..., Rig]) -> tuple[Rig, str]:
    rig = make_rig(cloud=SLOW_BOOT)
    rig.start()
    job = rig.stepper(options=LONG)
    rig.wait_for(lambda: [m for m in rig.client.status(job).machines if m.phase == "booting"], "booting machine")
    return rig, job


def _launching(make_rig: Callable[..., Rig]) -> tuple[Rig, str]:
    rig = make_rig()
    rig.start()
    rig.wait_for(lambda: rig.client.offers(), "market")
    rig.box("api_fault", method="launch", error="", delay_s=3.0, late=False, times=1)
    job = rig.stepper(options=LONG)
    rig.wait_for(lambda: [m for m in rig.client.status(job).machines if m.phase == "launching"], "launch under way")
    return rig, job


def _setting_up(make_rig: Callable[..., Rig]) -> tuple[Rig, str]:
    rig = make_rig()
    rig.start()
    job = rig.stepper(options=LONG, setup="echo busy; sleep 600")
    rig.wait_for(lambda: "busy" in rig.log(job), "set-up")
    return rig, job


def _checking(make_rig: Callable[..., Rig]) -> tuple[Rig, str]:
    rig = make_rig()
    rig.start()
    # The first machine that is ready stands still when the check begins, so the check lasts.
    job = rig.stepper(nodes=2, options=LONG, setup=f"if mkdir {rig.folder}/slow; then sleep 3; fi")
    ready = rig.wait_for(
        lambda: [m.instance for m in rig.client.status(job).machines if m.phase == "ready"], "machine that is ready"
    )
    rig.box("pause", instance=ready[0], seconds=9.0)
    rig.wait_phase(job, "checking")
    return rig, job


def _running(make_rig: Callable[..., Rig]) -> tuple[Rig, str]:
    rig = make_rig()
    rig.start()
    job = rig.stepper(nodes=2, options=LONG)
    rig.wait_step(job, 3)
    return rig, job


def _saving_on_notice(make_rig: Callable[..., Rig]) -> tuple[Rig, str]:
    rig = make_rig(cloud=PLENTY.replace("spot: {capacity: 8}", "spot: {capacity: 2}, on_demand: {capacity: 0}"))
    rig.start()
    job = rig.stepper(nodes=2, options=LONG)
    rig.wait_step(job, 3)
    rig.box("preempt", instance=rig.members(job)[1], notice=True, notice_s=60.0)
    rig.wait_for(lambda: [x for x in rig.trail("saved") if x.more["why"] == "asked"], "save on the notice")
    return rig, job


def _recovering(make_rig: Callable[..., Rig]) -> tuple[Rig, str]:
    rig = make_rig()
    rig.start()
    job = rig.stepper(nodes=2, options=LONG)
    rig.wait_step(job, 3)
    rig.box("slow_boot", boot_s=600.0, zone="", times=5)
    rig.box("kill", instance=rig.members(job)[1], detect_s=0.0, silent=False)
    rig.wait_for(lambda: rig.client.status(job).phase == "acquiring", "recovery")
    return rig, job


def _releasing(make_rig: Callable[..., Rig]) -> tuple[Rig, str]:
    rig = make_rig()
    rig.start()
    # Kept after a failure: the longest form of releasing.
    job = rig.submit("exit 3", recovery={"keep_on_failure": "10m"})
    rig.wait_phase(job, "releasing")
    return rig, job


PHASES: dict[str, Callable[[Callable[..., Rig]], tuple[Rig, str]]] = {
    "acquiring": _acquiring,
    "launching": _launching,
    "booting": _booting,
    "setting up": _setting_up,
    "checking": _checking,
    "running": _running,
    "saving on notice": _saving_on_notice,
    "recovering": _recovering,
    "releasing": _releasing,
}


@pytest.mark.expensive(family="steering and capacity")
@pytest.mark.parametrize("phase", PHASES)
def test_cancel_ends_a_job_in_any_phase_and_leaves_nothing(make_rig: Callable[..., Rig], phase: str) -> None:
    rig, job = PHASES[phase](make_rig)
    rig.client.cancel(job)
    detail = rig.client.wait(job, timeout_s=90)
    # What has failed stays failed: there were only its machines left to give back.
    assert detail.phase == ("failed" if phase == "releasing" else "cancelled")
    rig.check_settled()
    steps = len(rig.trail("step"))
    rig.check_tokens()
    assert len(rig.trail("step")) == steps, "nothing runs any more"
    with pytest.raises(Conflict):
        rig.client.cancel(job)


@pytest.mark.expensive(family="steering and capacity")
def test_paused_job_holds_no_machine_and_goes_on_where_it_was(rig: Rig) -> None:
    job = rig.stepper(nodes=2, options="--steps 40 --step-s 0.1 --every 1000")
    rig.wait_step(job, 5)
    rig.client.pause(job)
    rig.wait_phase(job, "paused")
    rig.wait_for(lambda: not rig.alive(), "end of every machine")
    stopped = max(line.step for line in rig.trail("saved") if line.node == 0)
    rig.client.unpause(job)
    detail = rig.wait_phase(job, "succeeded")
    assert [line.step for line in rig.trail("began") if line.node == 0] == [0, stopped]
    assert [a.cause for a in detail.attempts] == ["owner", "success"]
    rig.check_exclusive()
    rig.check_settled()
    rig.check_tokens()


@pytest.mark.expensive(family="steering and capacity")
def test_failed_job_is_retried_under_its_id_from_its_checkpoints(rig: Rig) -> None:
    job = rig.stepper(options="--steps 30 --step-s 0.05 --fail-at 15 --fail-with 9 --fail-attempts 1")
    detail = rig.client.wait(job, timeout_s=90)
    assert (detail.phase, detail.exit_code) == ("failed", 9)
    rig.client.retry(job)
    detail = rig.wait_phase(job, "succeeded")
    assert [line.step for line in rig.trail("began")] == [0, 10], "the last save before the failure"
    assert (detail.exit_code, detail.user_failures) == (0, 0)
    rig.check_settled()
    rig.check_tokens()


@pytest.mark.expensive(family="steering and capacity")
def test_restore_goes_back_to_a_step_by_a_new_attempt(rig: Rig) -> None:
    job = rig.stepper(options="--steps 60 --step-s 0.1 --every 5")
    rig.wait_step(job, 22)
    rig.wait_for(lambda: [c for c in rig.client.checkpoints(job) if c.step == 20], "checkpoint of step 20")
    assert rig.client.restore(job, 10) == "1:10"
    detail = rig.wait_phase(job, "succeeded")
    assert [(line.attempt, line.step) for line in rig.trail("began")] == [(1, 0), (2, 10)]
    assert detail.attempts[1].base == "1:10"
    rig.check_exclusive()
    rig.check_settled()


@pytest.mark.expensive(family="steering and capacity")
def test_machines_are_kept_after_a_failure_and_billed_until_cancel(rig: Rig) -> None:
    job = rig.submit("echo broken; exit 5", recovery={"keep_on_failure": "10m"})
    detail = rig.wait_for(lambda: d if (d := rig.client.status(job)).keep_until else None, "kept machine")
    assert [m.phase for m in detail.machines] == ["ready"]
    exec_id = rig.client.exec(job, "echo looking around")
    done = rig.wait_for(lambda: v if (v := rig.client.exec_result(job, exec_id)).done else None, "result")
    assert [(r.rc, r.text.strip()) for r in done.results] == [(0, "looking around")]
    rig.client.cancel(job)
    ended = rig.client.wait(job, timeout_s=90)
    assert (ended.phase, ended.exit_code, ended.why) == ("failed", 5, detail.why)
    rig.check_settled()
    assert rig.client.cost(job).overhead["kept"] > 0
