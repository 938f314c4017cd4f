"""The journal: what is done is written first; what was written is there again after any end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from everstep.control.options import Options
from everstep.model.errors import EverstepError, LeaseHeld, StaleFence, StoreClosed, StoreFull, StoreUnusable
from everstep.model.events import CancelRequested, PauseRequested, RetryRequested
from everstep.model.ids import DEPLOYMENT_STREAM, JobId, job_stream
from everstep.model.job import InstancePhase, JobPhase
from everstep.ports import Append, NewRecord
from everstep.testing.scripted import Fault, FaultKind, Request, Submission
from tests.control.site import JOB, Site, on_site, one_job
from tests.parity.worlds import BY_NAME, task, world

BUSY = world(
    "busy",
    submissions=tuple(Submission(0.0107 + n * 3.1, JobId(f"j-{n}"), task(1 + n % 2)) for n in range(1, 5)),
    faults=(Fault(24.07, FaultKind.PREEMPT, "machine:2"), Fault(27.01, FaultKind.KILL, "machine:1")),
    requests=(Request(20.0171, "cancel", JobId("j-3")), Request(48.0, "retry", JobId("j-3"))),
)


@pytest.mark.parametrize("at", [0.3, 5.7, 13.1, 24.9, 31.0, 49.3, 75.0, 120.0])
@pytest.mark.parametrize("how", ["stop", "kill"])
def test_after_a_restart_every_job_is_as_it_was(at: float, how: str) -> None:
    async def main(site: Site) -> None:
        await site.start()
        await site.clock.sleep(at)
        if how == "stop":
            await site.controller.stop()
        else:
            await site.kill()
        before = {job: site.controller.states[job] for job in site.controller.states}
        site.controller = site.copy()
        await site.controller.journal.restore(site.controller.kernel, site.controller.book)
        assert {job: site.controller.book[job] for job in site.controller.book} == before

    on_site(main, BUSY, exclusive=True)


@pytest.mark.parametrize("every", [1, 7, 40])
def test_snapshots_taken_at_any_moment_and_the_lines_after_them_give_the_same(every: int) -> None:
    async def main(site: Site) -> None:
        site.options["options"] = Options(poll_s=4.9871, offers_s=5.0149, snapshot_every=every)
        site.controller = site._controller()
        await site.start()
        for _ in range(12):
            await site.clock.sleep(9.37)
            copy = site.copy()
            await copy.journal.restore(copy.kernel, copy.book)
            states = site.controller.states
            assert {job: copy.book[job] for job in copy.book} == {job: states[job] for job in states}
            assert copy.kernel.pools == site.controller.kernel.pools
        assert await site.store.load_snapshot("controller") is not None

    on_site(main, BUSY)


def test_a_snapshot_that_fits_in_no_way_is_thrown_away() -> None:
    async def main(site: Site) -> None:
        await site.start()
        await site.clock.sleep(30.0)
        await site.controller.stop()
        states = {job: site.controller.states[job] for job in site.controller.states}
        found = await site.store.load_snapshot("controller")
        assert found is not None
        for body in (
            b"",
            b"garbage",
            found[1][:-7],
            found[1].replace(b"ACQUIRING", b"ACQUIRINH")[: len(found[1]) // 2],
        ):
            await site.store.save_snapshot("controller", seq=found[0], body=body)
            copy = site.copy()
            await copy.journal.restore(copy.kernel, copy.book)
            assert {job: copy.book[job] for job in copy.book} == states

    on_site(main, BUSY)


def test_a_snapshot_of_another_shape_is_thrown_away(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(site: Site) -> None:
        await site.start()
        await site.clock.sleep(30.0)
        await site.controller.stop()
        states = {job: site.controller.states[job] for job in site.controller.states}
        monkeypatch.setattr("everstep.control.snapshots.shape_stamp", lambda: "of tomorrow")
        copy = site.copy()
        await copy.journal.restore(copy.kernel, copy.book)
        assert copy.journal.seq == len(await site.store.read(limit=100_000)), "all of it was read again"
        assert {job: copy.book[job] for job in copy.book} == states

    on_site(main, BUSY)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (NewRecord(1.0, "JobTeleported", 1, {}), "knows no event 'JobTeleported'"),
        (NewRecord(1.0, "InstanceReady", 1, {"instance": "i-99", "port": 1}), "InstanceReady"),
        (NewRecord(1.0, "InstanceReady", 1, {}), "InstanceReady"),
    ],
)
def test_a_line_that_cannot_be_read_stops_the_start_and_is_named(line: NewRecord, text: str) -> None:
    async def main(site: Site) -> None:
        await site.start()
        await site.clock.sleep(10.0)
        await site.kill()
        seq = await site.store.append([Append(job_stream(JOB), (line,))], None)
        site.controller = site._controller()
        with pytest.raises(EverstepError, match=f"line {seq}.*{text}"):
            await site.controller.start()

    on_site(main, one_job(task(1)), exclusive=True)


def _things_done(site: Site) -> tuple[int, int]:
    return len(site.provider.machines), len(site.provider.disks)


def test_a_full_disk_is_waited_out_and_nothing_is_done_that_is_not_written() -> None:
    async def main(site: Site) -> None:
        await site.start()
        site.store.refuse = StoreFull("no space left")
        site.store.refuse_leases = StoreFull("no space left")
        submitting = asyncio.ensure_future(site.submit(task(2)))
        await site.clock.sleep(300.0)
        assert not submitting.done()
        assert _things_done(site) == (0, 0)
        assert "no space left" in site.controller.journal.trouble
        assert site.controller.failed is not None
        assert not site.controller.failed.done()
        site.store.refuse = site.store.refuse_leases = None
        await submitting
        await site.until(lambda: len(site.in_phase(InstancePhase.READY)) == 2)
        assert site.controller.journal.trouble == ""
        assert (await site.kinds())[0] == "JobSubmitted"

    on_site(main)


def test_a_slow_disk_holds_back_every_effect_and_every_answer() -> None:
    order: list[str] = []

    async def main(site: Site) -> None:
        await site.start()
        site.store.delay_s = 3.0
        original = site.provider.on_machine
        site.provider.on_machine = lambda m: (order.append("machine"), original(m))[1]  # type: ignore[func-returns-value]
        site.store.on_append = lambda batch: order.extend(r.kind for a in batch for r in a.records)
        submitting = asyncio.ensure_future(site.submit(task(1)))
        await site.clock.sleep(2.9)
        assert not submitting.done()
        assert not site.provider.calls
        await site.clock.sleep(2.0)
        assert submitting.done()
        assert order.index("LaunchIntended") < order.index("machine")

    on_site(main)


def test_every_effect_has_its_intent_in_the_journal_before_it_is_done() -> None:
    async def main(site: Site) -> None:
        await site.start()
        site.store.delay_s = 0.31
        seen: list[str] = []

        async def kinds() -> list[str]:
            return [r.kind for r in await site.lines()]

        original = site.provider.terminate

        async def terminate(instances: Sequence[Any]) -> None:
            for instance in instances:
                bodies = [r.body.get("instance") for r in await site.lines() if r.kind == "TerminateIntended"]
                assert instance in bodies
                seen.append(instance)
            await original(instances)

        site.provider.terminate = terminate  # type: ignore[method-assign]
        await site.clock.sleep(160.0)
        assert len(seen) >= 2
        intended = (await kinds()).count("LaunchIntended")
        assert len(site.provider.machines) <= intended

    on_site(main, BY_NAME["child_lost_with_notice"])


def test_a_process_that_lost_the_lease_stops_and_writes_nothing_more() -> None:
    async def main(site: Site) -> None:
        await site.start()
        await site.clock.sleep(10.0)
        first = site.controller
        await site.store.lease("controller", first.journal._holder, 0.0)  # gives it back, as if it had run out
        await site.store.lease("controller", "another server", 1000.0)
        lines = len(await site.store.read(limit=100_000))
        await site.ask_quietly(JOB, CancelRequested("user"))
        await site.clock.sleep(6.0)
        assert first.failed is not None
        assert isinstance(first.failed.exception(), StaleFence | LeaseHeld)
        snapshot = await site.store.load_snapshot("controller")
        await first.stop()
        assert len(await site.store.read(limit=100_000)) == lines
        assert await site.store.load_snapshot("controller") == snapshot, "what it believed last is nobody's truth"

    on_site(main, one_job(task(1)))


@pytest.mark.parametrize("error", [StoreUnusable("damaged"), StoreClosed("closed")])
def test_a_journal_that_cannot_be_mended_by_waiting_ends_the_server(error: Exception) -> None:
    async def main(site: Site) -> None:
        await site.start()
        site.store.refuse = error
        await site.ask_quietly(JOB, CancelRequested("user"), submit=task(1))
        await site.clock.sleep(1.0)
        assert site.controller.failed is not None
        assert site.controller.failed.exception() is error

    on_site(main)


def test_a_request_whose_line_was_never_written_is_not_answered_as_done() -> None:
    async def main(site: Site) -> None:
        await site.start()
        await site.submit(task(1))
        site.store.refuse = StaleFence("another server")
        asking = asyncio.ensure_future(site.controller.ask(JOB, CancelRequested("user")))
        await site.clock.sleep(2.0)
        later = asyncio.ensure_future(site.controller.ask(JOB, PauseRequested("user")))
        await site.clock.sleep(1.0)
        assert not asking.done()
        await site.controller.stop()
        for request in (asking, later):
            with pytest.raises(asyncio.CancelledError):
                await request
        assert site.controller.failed is not None
        assert isinstance(site.controller.failed.exception(), StaleFence)

    on_site(main)


def test_a_successor_takes_over_when_the_lease_of_a_dead_server_has_run_out() -> None:
    async def main(site: Site) -> None:
        await site.start()
        await site.clock.sleep(12.0)
        await site.kill()
        began = site.clock.now()
        await site.revive()
        assert 5.0 < site.clock.now() - began <= 15.2
        assert site.controller.journal.fence is not None
        assert site.controller.journal.fence.number == 2

    on_site(main, one_job(task(1)))


def test_with_an_exclusive_lock_a_successor_does_not_wait() -> None:
    async def main(site: Site) -> None:
        await site.start()
        await site.clock.sleep(12.0)
        await site.kill()
        began = site.clock.now()
        await site.revive()
        assert site.clock.now() == began

    on_site(main, one_job(task(1)), exclusive=True)


def test_two_servers_do_not_start_on_one_journal() -> None:
    async def main(site: Site) -> None:
        first = await site.start()
        second = site.copy()
        with pytest.raises(LeaseHeld):
            await second.start()
        assert first.failed is not None
        assert not first.failed.done()

    on_site(main)


def test_a_damaged_journal_is_told_at_once_at_the_start() -> None:
    async def main(site: Site) -> None:
        site.store.refuse_leases = StoreUnusable("damaged")
        began = site.clock.now()
        with pytest.raises(StoreUnusable):
            await site.start()
        assert site.clock.now() == began

    on_site(main)


def test_starts_are_noted_in_a_stream_of_their_own() -> None:
    async def main(site: Site) -> None:
        await site.start()
        await site.restart()
        records = await site.store.read(stream=DEPLOYMENT_STREAM)
        assert [r.kind for r in records] == ["ServerStarted", "ServerStarted"]

    on_site(main)


@pytest.mark.parametrize("at", [4.0, 12.0, 26.0, 50.5])
@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_server_away_for_a_moment_changes_nothing_of_the_outcome(at: float, how: str) -> None:
    async def main(site: Site) -> None:
        await site.start()
        await site.clock.sleep(at)
        if how == "stop":
            await site.controller.stop()
        else:
            await site.kill()
        await site.clock.sleep(1.3)
        await site.revive()
        await site.until(lambda: site.state().phase.ended, 400.0)
        state = site.state()
        assert state.phase is JobPhase.SUCCEEDED
        assert not any(m.alive for m in site.provider.machines.values())
        assert site.controller.unknown() == []
        assert state.user_failures == 0

    on_site(main, one_job(task(2)), exclusive=True)


def test_an_ended_job_that_was_put_away_is_retried_over_a_restart() -> None:
    async def main(site: Site) -> None:
        await site.start()
        await site.until(lambda: site.state().phase is JobPhase.RUNNING)
        await site.controller.ask(JOB, CancelRequested("user"))
        await site.until(lambda: site.controller.book.is_put_away(JOB))
        await site.restart()
        assert site.controller.book.is_put_away(JOB)
        await site.controller.ask(JOB, RetryRequested("user"))
        await site.until(lambda: site.state().phase is JobPhase.RUNNING)
        await site.restart()
        assert site.state().attempt_no == 2
        await site.until(lambda: site.state().phase is JobPhase.SUCCEEDED)

    on_site(main, one_job(task(1)), exclusive=True)
