"""Droughts, refusals, slow boots and errors of the provider: every wait has a reason and an end (rules 9, 13)."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from everstep.model.errors import PROVIDER_ERRORS
from tests.e2e.rig import PLENTY, Rig

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("e2e-capacity")]

_TRACED = """\
trace_hour_s: 3600
notice_s: 1.5
boot_s: 0
stop_grace_s: 3
billing: {granularity_s: 1, minimum_s: 60}
machines:
  small: {cpus: 4, memory_gib: 8, prices: {on_demand: 3.6, spot: 1.2}}
zones:
  east-a: {region: east, spot: {trace: east-a.json}, on_demand: {capacity: 0}}
  east-b: {region: east, spot: {trace: east-b.json}, on_demand: {capacity: 0}}
"""

#: Error of a launch, and whether it took effect all the same: only a lost answer may leave a machine behind.
FAILURES = [
    *((error, False) for error in sorted(set(PROVIDER_ERRORS) - {"bad_request", "unauthorized"})),
    ("unreachable", True),
    ("throttled", True),
]


@pytest.mark.expensive(family="steering and capacity")
def test_job_waits_through_a_drought_of_all_zones_with_a_visible_reason(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(cloud=_TRACED)
    # One tick a second: six seconds of capacity, then all zones are dry for ten, then it is back.
    available = [2] * 6 + [0] * 10 + [2] * 100
    for zone in ("east-a", "east-b"):
        trace = {"metadata": {"gap_seconds": 1, "zone": zone}, "data": available, "prices": [1.2] * len(available)}
        (rig.folder / f"{zone}.json").write_text(json.dumps(trace))
    rig.start()
    job = rig.stepper(nodes=2, options="--steps 120 --step-s 0.1", recovery={"cooldown": "1s"})
    waits: set[str] = set()

    def done() -> bool:
        detail = rig.client.status(job)
        waits.add(detail.wait)
        return detail.ended

    rig.wait_for(done, "end of the job")
    detail = rig.detail(job)
    assert detail.phase == "succeeded"
    assert len(detail.attempts) >= 2
    assert any("pools looked at" in wait for wait in waits), waits
    assert any(decision.wait and decision.wake_at for decision in rig.client.why(job))
    assert {a.cause for a in detail.attempts[:-1]} == {"preemption"}
    rig.check_ranks()
    rig.check_exclusive()
    rig.check_settled()
    rig.check_tokens()


@pytest.mark.expensive(family="steering and capacity")
def test_wait_that_is_too_long_fails_the_job_in_words(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(cloud=PLENTY.replace("spot: {capacity: 8}", "spot: {capacity: 0}, on_demand: {capacity: 0}"))
    rig.start()
    job = rig.stepper(options="--steps 5", recovery={"max_wait": "2s"})
    detail = rig.client.wait(job, timeout_s=90)
    assert detail.phase == "failed"
    assert "no capacity for" in detail.why
    rig.check_settled()


@pytest.mark.expensive(family="steering and capacity")
@pytest.mark.parametrize(("error", "late"), FAILURES, ids=[f"{e}, late" if late else e for e, late in FAILURES])
def test_launch_that_fails_is_got_over_with_one_machine_per_token(rig: Rig, error: str, late: bool) -> None:
    rig.wait_for(lambda: rig.client.offers(), "market")
    rig.box("api_fault", method="launch", error=error, delay_s=0.0, late=late, times=1)
    job = rig.stepper(nodes=2, options="--steps 10")
    detail = rig.wait_phase(job, "succeeded")
    assert len(detail.attempts) == 1
    rig.check_settled()
    rig.check_tokens()


@pytest.mark.expensive(family="steering and capacity")
def test_request_that_the_provider_will_never_take_fails_the_job(rig: Rig) -> None:
    rig.wait_for(lambda: rig.client.offers(), "market")
    rig.box("api_fault", method="launch", error="bad_request", delay_s=0.0, late=False, times=1)
    job = rig.stepper(options="--steps 10")
    detail = rig.client.wait(job, timeout_s=90)
    assert detail.phase == "failed"
    assert "refuses" in detail.why
    rig.check_settled()


@pytest.mark.expensive(family="steering and capacity")
def test_machine_that_does_not_boot_in_time_is_replaced(rig: Rig) -> None:
    rig.wait_for(lambda: rig.client.offers(), "market")
    rig.box("slow_boot", boot_s=600.0, zone="", times=1)
    job = rig.stepper(nodes=2, options="--steps 10", recovery={"boot_timeout": "4s"})
    detail = rig.wait_phase(job, "succeeded")
    assert len(detail.machines) == 3
    assert sum("not ready" in m.leave_reason for m in detail.machines) == 1
    rig.check_settled()
    rig.check_tokens()


@pytest.mark.expensive(family="steering and capacity")
def test_machine_that_is_taken_while_it_boots_is_replaced(rig: Rig) -> None:
    rig.wait_for(lambda: rig.client.offers(), "market")
    rig.box("slow_boot", boot_s=600.0, zone="", times=1)
    job = rig.stepper(nodes=2, options="--steps 10")
    booting = rig.wait_for(
        lambda: [m.instance for m in rig.client.status(job).machines if m.phase == "booting"], "booting machine"
    )
    rig.wait_for(lambda: "ready" in {m.phase for m in rig.client.status(job).machines}, "machine that is ready")
    (slow,) = [m.instance for m in rig.client.status(job).machines if m.phase == "booting"]
    assert slow in booting
    rig.box("preempt", instance=slow, notice=False, notice_s=None)
    detail = rig.wait_phase(job, "succeeded")
    assert len(detail.attempts) == 1
    rig.check_settled()
    rig.check_tokens()
