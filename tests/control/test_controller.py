"""The loop as a whole: many jobs at once, jobs that go wrong, tasks that die, clocks that jump."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Sized
from dataclasses import replace
from typing import Any

import pytest

from everstep.brain.snapshot import Settings
from everstep.control import kernel
from everstep.control.controller import LOOP
from everstep.control.options import Options
from everstep.model.access import Actor
from everstep.model.causes import Cause, InstanceEnd
from everstep.model.errors import BadInput, Conflict, EverstepError, NotFound, UnlistedTransition
from everstep.model.events import CancelRequested, InstanceReady, PauseRequested, RetryRequested, UnpauseRequested
from everstep.model.ids import DEPLOYMENT_STREAM, InstanceId, JobId
from everstep.model.job import InstancePhase, JobPhase, JobState
from everstep.model.offers import Market
from everstep.model.task import Recovery, SpotMode
from everstep.testing.scripted import AgentScript, Fault, FaultKind, MarketAt, Submission, TrainingScript
from tests.control.site import JOB, Site, on_site, one_job
from tests.parity.worlds import PLENTY, task, world

FAULT_AT = 25.0


def test_a_submission_is_durable_and_under_way_when_it_returns() -> None:
    async def main(site: Site) -> None:
        controller = await site.start()
        job = await controller.submit(task(1), secrets={}, actor=Actor("ann"), project="p")
        records = await site.lines(job)
        assert records[0].kind == "JobSubmitted"
        assert (records[0].body["user"], records[0].body["project"]) == ("ann", "p")
        assert controller.states[job].phase is JobPhase.ACQUIRING
        await site.until(lambda: controller.states[job].phase is JobPhase.SUCCEEDED)

    on_site(main)


def test_a_task_that_cannot_run_is_refused_and_leaves_no_trace() -> None:
    async def main(site: Site) -> None:
        controller = await site.start()
        for wrong in (replace(task(1), run=""), replace(task(1), policy="hope")):
            with pytest.raises(BadInput):
                await controller.submit(wrong, secrets={"K": "v"}, actor=Actor("ann"), project="p")
        assert await site.lines() == []
        assert len(controller.states) == 0

    on_site(main)


def test_requests_that_do_not_fit_are_refused_and_change_nothing() -> None:
    async def main(site: Site) -> None:
        controller = await site.start()
        with pytest.raises(NotFound):
            await controller.ask(JobId("j-nobody"), CancelRequested("u"))
        await site.submit(task(1))
        with pytest.raises(Conflict, match="acquiring: unpause is not possible"):
            await controller.ask(JOB, UnpauseRequested("u"))
        await site.until(lambda: controller.book.is_put_away(JOB))
        lines = len(await site.lines())
        for request, name in ((PauseRequested("u"), "pause"), (RetryRequested("u"), "retry")):
            with pytest.raises(Conflict, match=f"succeeded: {name} is not possible"):
                await controller.ask(JOB, request)
        assert len(await site.lines()) == lines
        assert controller.book.is_put_away(JOB), "a refused request does not bring an ended job back"

    on_site(main)


def test_a_fact_about_an_ended_job_that_changes_nothing_does_not_keep_it_open() -> None:
    async def main(site: Site) -> None:
        controller = await site.start()
        await site.submit(task(1))
        await site.until(lambda: controller.book.is_put_away(JOB))
        await controller.put(JOB, InstanceReady(InstanceId("i-1"), 1))
        assert controller.book.is_put_away(JOB)
        assert controller.live_states() == []

    on_site(main)


def test_facts_about_jobs_that_nobody_knows_are_dropped_in_silence() -> None:
    async def main(site: Site) -> None:
        controller = await site.start()
        await controller.put(JobId("j-nobody"), InstanceReady(InstanceId("i-1"), 1))
        assert await site.lines() == []

    on_site(main)


def test_an_impossible_move_quarantines_its_job_and_nothing_else() -> None:
    submissions = tuple(Submission(0.0107, JobId(f"j-{n}"), task(1)) for n in (1, 2))

    async def main(site: Site) -> None:
        controller = await site.start()
        await site.until(lambda: site.state().phase is JobPhase.RUNNING)
        for _ in range(3):
            await controller.put(JOB, InstanceReady(InstanceId("i-of-nobody"), 1))
        kinds = await site.kinds()
        assert kinds.count("Rejected") == 1, "told once, however often it is repeated"
        assert "i-of-nobody" in site.state().quarantined
        assert controller.failed is not None
        assert not controller.failed.done()
        await site.until(lambda: site.state(JobId("j-2")).phase is JobPhase.SUCCEEDED)
        await site.clock.sleep(1.0)
        assert (await controller.ask(JOB, CancelRequested("u"))).phase is not JobPhase.ACQUIRING
        await site.until(lambda: site.state().phase.ended)
        assert not any(m.alive for m in site.provider.machines.values())

    on_site(main, world("two", submissions=submissions, trainings={JOB: TrainingScript(steps=400)}))


def test_what_could_not_be_recorded_is_not_done(monkeypatch: pytest.MonkeyPatch) -> None:
    real = kernel.advance

    def advance(state: Any, event: Any, now: float) -> Any:
        if type(event).__name__ == "LaunchIntended" and state.id == JOB:
            raise UnlistedTransition("no launch in this test")
        return real(state, event, now)

    monkeypatch.setattr(kernel, "advance", advance)

    async def main(site: Site) -> None:
        await site.start()
        await site.submit(task(1), JobId("j-2"))
        await site.submit(task(1))
        await site.until(lambda: site.state(JobId("j-2")).phase is JobPhase.SUCCEEDED)
        assert {m.request.job for m in site.provider.machines.values()} == {"j-2"}
        assert site.state().quarantined == "no launch in this test"
        assert site.state().wait == "quarantined: no launch in this test"

    on_site(main)


def test_a_part_of_the_loop_that_dies_is_told() -> None:
    async def main(site: Site) -> None:
        controller = await site.start()

        def broken() -> None:
            raise ZeroDivisionError("a bug")

        controller.around.glance = broken  # type: ignore[method-assign]
        await site.clock.sleep(2.0)
        assert controller.failed is not None
        assert isinstance(controller.failed.exception(), ZeroDivisionError)
        await controller.stop()

    on_site(main)


def test_stop_and_start_at_once_leave_nothing_running() -> None:
    async def main(site: Site) -> None:
        before = len(asyncio.all_tasks())
        for _ in range(3):
            await site.start()
            await site.controller.stop()
            assert len(asyncio.all_tasks()) == before
            site.controller = site._controller()

    on_site(main, exclusive=True)


def test_the_loop_runs_under_the_name_that_drivers_of_virtual_time_look_for() -> None:
    async def main(site: Site) -> None:
        await site.start()
        assert LOOP in {task_.get_name() for task_ in asyncio.all_tasks()}

    on_site(main)


# --- Time -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [3600.0, -3600.0, 5.1])
def test_a_step_of_the_system_clock_is_noted_once(seconds: float) -> None:
    async def main(site: Site) -> None:
        await site.start()
        site.clock.step(seconds)
        await site.clock.sleep(60.0)
        records = await site.store.read(stream=DEPLOYMENT_STREAM)
        assert [(r.kind, r.body.get("seconds")) for r in records[1:]] == [("ClockStepped", seconds)]

    on_site(main)


def test_a_small_step_of_the_system_clock_is_nothing() -> None:
    async def main(site: Site) -> None:
        await site.start()
        site.clock.step(4.9)
        await site.clock.sleep(60.0)
        assert len(await site.store.read(stream=DEPLOYMENT_STREAM)) == 1

    on_site(main)


# --- After a restart --------------------------------------------------------------------------------------------------


def test_after_a_restart_nobody_is_judged_lost_before_a_full_lease_and_then_they_are() -> None:
    async def main(site: Site) -> None:
        await site.start()
        await site.until(lambda: site.state().phase is JobPhase.RUNNING)
        await site.kill()
        for machine in site.provider.machines.values():
            site.agents.freeze(site.agents.agents[machine.instance], 5000.0)  # type: ignore[union-attr]
        await site.revive(options=Options(lease_s=120.0, poll_s=4.9871, offers_s=5.0149))
        began = site.clock.now()
        await site.clock.sleep(119.0)
        assert not any(m.silent for m in site.state().instances.values())
        await site.until(lambda: any(m.silent for m in site.state().instances.values()), 30.0)
        assert site.clock.now() - began <= 120.0 + 10.0 + 2.0

    on_site(main, one_job(task(1), trainings={JOB: TrainingScript(steps=4000)}), exclusive=True)


def test_after_a_restart_a_machine_that_was_not_heard_is_no_proof_of_the_users_failure() -> None:
    async def main(site: Site) -> None:
        await site.start()
        await site.until(lambda: site.state().phase is JobPhase.RUNNING)
        await site.clock.sleep(8.0)
        await site.kill()
        silent, other = site.provider.machines.values()
        # One machine is cut off, the ranks of the other fail for want of it; the vendor sees nothing.
        site.agents.freeze(site.agents.agents[silent.instance], 5000.0)  # type: ignore[union-attr]
        site.agents.crash(site.agents.agents[other.instance])  # type: ignore[union-attr]
        await site.clock.sleep(1.0)
        await site.revive()
        await site.until(lambda: bool(site.state().attempts[0].settled_at), 100.0)
        assert site.state().attempts[0].cause is Cause.NODE_LOSS
        assert site.state().user_failures == 0

    on_site(main, one_job(task(2), trainings={JOB: TrainingScript(steps=4000)}), exclusive=True)


def test_after_a_restart_an_agent_that_is_heard_is_as_before() -> None:
    async def main(site: Site) -> None:
        await site.start()
        await site.until(lambda: site.state().phase is JobPhase.RUNNING)
        await site.restart()
        await site.clock.sleep(5.0)
        seen = site.controller.observed(InstanceId("i-1"))
        assert seen is not None
        assert not seen.restarted
        await site.until(lambda: site.state().phase is JobPhase.SUCCEEDED)
        assert site.state().attempt_no == 1

    on_site(main, one_job(task(1)), exclusive=True)


def test_a_server_without_the_provider_of_its_machines_does_not_start() -> None:
    async def main(site: Site) -> None:
        await site.start()
        await site.until(lambda: site.state().phase is JobPhase.RUNNING)
        await site.kill()
        name, provider = site.provider.name, site.provider
        provider.name = "another"  # type: ignore[misc]
        with pytest.raises(EverstepError, match=f"job {JOB} has i-1 at provider '{name}', which is not configured"):
            await site.revive()
        await site.controller.stop()
        provider.name = name  # type: ignore[misc]
        await site.revive()
        await site.until(lambda: site.state().phase is JobPhase.SUCCEEDED)

    on_site(main, one_job(task(1)), exclusive=True)


# --- Many at once -----------------------------------------------------------------------------------------------------


def test_five_hundred_jobs_preempted_at_once_do_not_rush_one_pool() -> None:
    jobs = 500
    market = tuple(o for o in PLENTY if o.zone == "a")
    wanted = task(1, spot=SpotMode.TRUE, recovery=Recovery(cooldown_s=0.0))
    submissions = tuple(Submission(0.0107 + n * 0.0001, JobId(f"j-{n}"), wanted) for n in range(jobs))
    # Few words, so that what is counted here are launches, not heartbeats.
    quiet = AgentScript(boot_s=5000.0)
    scripted = world(
        "crowd", submissions=submissions, markets=(MarketAt(0.0, market),), agents=(quiet,) * 3 * jobs, until=4000.0
    )

    async def main(site: Site) -> None:
        await site.start()
        await site.until(lambda: len(site.provider.machines) == jobs, 700.0)
        for machine in list(site.provider.machines.values()):
            site.provider.end(machine, InstanceEnd.PREEMPTED)
        await site.until(lambda: len(site.provider.machines) == 2 * jobs, 700.0)
        launches = [r for r in await site.lines() if r.kind == "LaunchIntended"]
        assert len(launches) == 2 * jobs
        times = sorted(r.at for r in launches)
        limit = site.controller.options.settings.launches_per_minute
        for first, past in zip(times, times[limit:], strict=False):
            assert past - first >= 60.0 - 1e-6, f"more than {limit} launches within a minute"
        per_job = Counter(r.stream for r in launches)
        assert set(per_job.values()) == {2}

    options = Options(poll_s=4.9871, offers_s=5.0149, settings=Settings(launches_per_minute=200))
    on_site(main, scripted, options=options)


def test_fifty_short_jobs_at_once_all_succeed_and_leave_nothing() -> None:
    submissions = tuple(Submission(0.0107, JobId(f"j-{n}"), task(1)) for n in range(50))
    trainings = {f"j-{n}": TrainingScript(steps=3) for n in range(50)}

    async def main(site: Site) -> None:
        await site.start()
        await site.until(lambda: len(site.controller.states) == 50 and not site.controller.live_states(), 200.0)
        assert {site.state(job).phase for job in site.controller.states} == {JobPhase.SUCCEEDED}
        assert not any(m.alive for m in site.provider.machines.values())
        assert len(site.provider.machines) == 50

    on_site(main, world("fifty", submissions=submissions, trainings=trainings))


def test_of_jobs_that_ended_nothing_is_held_but_their_packed_states() -> None:
    """Counted by their objects: whatever holds one, a cache, a queue, a task or a forgotten callback, is found."""
    jobs = 40
    wanted = replace(task(2, spot=SpotMode.TRUE, recovery=Recovery(cooldown_s=0.0)), name="counted")
    submissions = tuple(Submission(0.0107 + n * 0.01, JobId(f"counted-{n}"), wanted) for n in range(jobs))
    trainings = {f"counted-{n}": TrainingScript(steps=40) for n in range(jobs)}

    async def main(site: Site) -> None:
        controller = await site.start()
        await site.until(lambda: sum(m.alive for m in site.provider.machines.values()) >= jobs, 300.0)
        for machine in list(site.provider.machines.values())[::4]:
            site.provider.end(machine, InstanceEnd.PREEMPTED)
        await site.until(lambda: len(controller.states) == jobs and not controller.live_states(), 900.0)
        assert sum(r.kind == "LaunchIntended" for r in await site.lines()) > 2 * jobs, "some were preempted"
        await site.clock.sleep(120.0)  # sweeps go on, and see the machines that ended
        gc.collect()
        assert _held("counted") == 0
        desk, watch = controller.desk, controller.around.watches[0]
        kept: list[Sized] = [desk._orders, desk._waiting, desk._acked, desk._joins, controller._doer._tasks]
        seen: list[Sized] = [controller._telemetry.observed, controller.kernel.market.heard, controller.book._job_of]
        rest: list[Sized] = [
            controller.kernel.wakes,
            controller.kernel._inflight,
            watch._missing_since,
            watch._ended_again_at,
        ]
        assert [len(held) for held in (*kept, *seen, *rest)] == [0] * 12
        # They are all there all the same.
        assert Counter(controller.states[job].phase for job in controller.states) == {JobPhase.SUCCEEDED: jobs}
        gc.collect()
        assert 0 < _held("counted") <= 32, "opened for whoever looked; no more than that"

    scripted = world(
        "counted", submissions=submissions, trainings=trainings, agents=(AgentScript(),) * 4 * jobs, until=4000.0
    )
    on_site(main, scripted)


def _held(prefix: str) -> int:
    """States in memory of jobs whose ids begin so."""
    return sum(1 for thing in gc.get_objects() if type(thing) is JobState and thing.id.startswith(prefix))


# --- Silence ----------------------------------------------------------------------------------------------------------


def test_a_silence_makes_us_ask_the_vendor_long_before_the_next_look() -> None:
    faults = (Fault(FAULT_AT, FaultKind.KILL, "rank:0"),)

    async def main(site: Site) -> None:
        await site.start()
        await site.until(lambda: bool(site.in_phase(InstancePhase.ENDED)), 100.0)
        assert site.clock.now() - site.provider.machines[InstanceId("i-1")].ended_at < 5.0  # type: ignore[operator]

    on_site(main, one_job(task(1), faults=faults, poll_s=120.0))


def test_the_market_is_heard_of_at_once_when_it_moves() -> None:
    dry = tuple(replace(o, available=0) for o in PLENTY if o.market is Market.SPOT)
    markets = (MarketAt(0.0, dry), MarketAt(31.0, PLENTY))

    async def main(site: Site) -> None:
        await site.start()
        await site.clock.sleep(31.0)
        assert site.provider.machines == {}
        assert "capacity" in site.state().wait
        wake = site.controller.kernel.next_wake()
        assert wake is not None
        await site.until(lambda: "LaunchIntended" in [r.kind for r in site.written], 2.0)
        assert site.clock.now() < wake, "long before the job would have looked again by itself"

    on_site(main, one_job(task(1, spot=SpotMode.TRUE), markets=markets, offers_s=0.7013))
