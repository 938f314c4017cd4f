"""The sweep: what it adopts, ends, lists and leaves alone."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from everstep.control.telemetry import Telemetry
from everstep.control.watch import Watch
from everstep.model.causes import InstanceEnd, NoticeKind
from everstep.model.errors import NotFound, Unreachable
from everstep.model.events import (
    CancelRequested,
    Event,
    InstanceEnded,
    LaunchFailed,
    LaunchSucceeded,
    NoticeReceived,
    TerminateIntended,
    VolumeDeleted,
    VolumeDeleteIntended,
    VolumeIntended,
    VolumeReady,
)
from everstep.model.gang import Slot
from everstep.model.ids import DeploymentId, InstanceId, JobId, LaunchToken, VolumeId
from everstep.model.job import InstancePhase, JobPhase, JobState
from everstep.model.offers import Market
from everstep.ports import Notice, ProviderResource, ResourceKind
from everstep.testing.scripted import Fault, FaultKind, LaunchScript
from everstep.testing.scripted_run import START
from everstep.testing.virtual import VirtualClock, run_virtual
from tests.brain.making import DEPLOYMENT, JOB, fold, fresh, machine
from tests.control.site import JOB as HERE
from tests.control.site import Site, on_site, one_job
from tests.parity.worlds import task

ME = InstanceId("i-1")


class Vendor:
    """Lists what it is given."""

    name = "box"

    def __init__(self) -> None:
        self.rows: list[ProviderResource] = []
        self.warnings: list[Notice] = []
        self.error: Exception | None = None
        self.meanwhile: Any = None

    async def resources(self, deployment: DeploymentId) -> list[ProviderResource]:
        if self.error is not None:
            raise self.error
        rows = list(self.rows)
        if self.meanwhile is not None:
            self.meanwhile()
        return rows

    async def notices(self, deployment: DeploymentId) -> list[Notice]:
        return self.warnings


class Known:
    """One job."""

    def __init__(self, state: JobState) -> None:
        self.job = state
        self.told: list[Event] = []
        self.terminated: list[InstanceId] = []
        self.deleted: list[VolumeId] = []
        self.troubles: list[str] = []

    def put(self, job: JobId, event: Event) -> asyncio.Future[None]:
        assert job == self.job.id
        self.told.append(event)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    def state(self, job: JobId) -> JobState | None:
        return self.job if job == self.job.id else None

    def live_states(self) -> list[JobState]:
        return [self.job]

    def terminate(self, job: JobId, instance: InstanceId) -> None:
        self.terminated.append(instance)

    def delete_volume(self, job: JobId, volume: VolumeId) -> None:
        self.deleted.append(volume)

    def market_moved(self) -> None:
        raise AssertionError("the sweep does not look at the market")

    def look_again(self) -> None:
        raise AssertionError("the sweep does not ask for that")

    def trouble(self, provider: str, text: str) -> None:
        self.troubles.append(text)


class Tower:
    """A watch with what it watches and whom it tells."""

    def __init__(self, clock: VirtualClock, state: JobState) -> None:
        self.clock = clock
        self.vendor = Vendor()
        self.known = Known(state)
        self.telemetry = Telemetry({})
        self.watch = Watch(
            self.vendor,  # type: ignore[arg-type]
            deployment=DEPLOYMENT,
            known=self.known,
            clock=clock,
            telemetry=self.telemetry,
        )


def watching(main: Any, state: JobState) -> None:
    async def run(clock: VirtualClock) -> None:
        await main(Tower(clock, state))

    run_virtual(run, start=START)


def row(number: int = 1, *, job: str | None = JOB, token: str | None = None, **changes: Any) -> ProviderResource:
    plain = ProviderResource(
        ResourceKind.INSTANCE, f"i-{number}", DEPLOYMENT, None if job is None else JobId(job), number,
        LaunchToken(token or f"t-{number}"), "a", "p3.2xlarge", Market.SPOT, True, START, price_usd_per_h=1.25,
    )  # fmt: skip
    return replace(plain, **changes)


def disk(**changes: Any) -> ProviderResource:
    plain = ProviderResource(
        ResourceKind.VOLUME, "v-1", DEPLOYMENT, JOB, None, None, "a", "", Market.ON_DEMAND, True, START,
        price_usd_per_h=0.5, size_gib=10.0,
    )  # fmt: skip
    return replace(plain, **changes)


def launching() -> JobState:
    return fold(fresh(1), machine(1)[:1])


def up() -> JobState:
    return fold(fresh(1), machine(1), START)


def test_a_launch_whose_answer_was_lost_is_adopted_at_the_vendors_price() -> None:
    async def main(t: Tower) -> None:
        t.vendor.rows = [row()]
        await t.watch.poll()
        assert t.known.told == [LaunchSucceeded(LaunchToken("t-1"), ME, START, 1.25)]
        assert t.watch.unknown == []

    watching(main, launching())


def test_a_launch_thought_refused_is_adopted_if_the_machine_lives() -> None:
    async def main(t: Tower) -> None:
        t.vendor.rows = [row()]
        await t.watch.poll()
        assert [type(e) for e in t.known.told] == [LaunchSucceeded]

    watching(main, fold(launching(), [LaunchFailed(LaunchToken("t-1"), "no_capacity", "")]))


def test_a_launch_thought_refused_is_billed_also_if_its_machine_ended_before_it_was_seen() -> None:
    async def main(t: Tower) -> None:
        t.vendor.rows = [row(alive=False, ended_at=START + 25.0, end=InstanceEnd.PREEMPTED)]
        for _ in range(2):
            await t.watch.poll()
            t.known.job = fold(t.known.job, t.known.told[-1:])
        assert t.known.told == [
            LaunchSucceeded(LaunchToken("t-1"), ME, START, 1.25),
            InstanceEnded(ME, START + 25.0, InstanceEnd.PREEMPTED),
        ]

    watching(main, fold(launching(), [LaunchFailed(LaunchToken("t-1"), "quota_exceeded", "")]))


def test_a_launch_that_was_refused_since_its_machine_never_ran_stays_refused() -> None:
    async def main(t: Tower) -> None:
        t.vendor.rows = [row(alive=False, ended_at=START + 3.0, end=InstanceEnd.BOOT_FAILED)]
        await t.watch.poll()
        assert t.known.told == []

    watching(main, fold(launching(), [LaunchFailed(LaunchToken("t-1"), "no_capacity", "")]))


def test_the_end_of_an_adopted_machine_is_told_also_if_its_provider_has_taken_it_back() -> None:
    async def main(t: Tower) -> None:
        ended = row(alive=False, ended_at=START + 5.0, end=InstanceEnd.OWNER)
        t.vendor.rows = [replace(ended, token=None)]
        await t.watch.poll()
        assert t.known.told == [InstanceEnded(ME, START + 5.0, InstanceEnd.OWNER)]

    watching(main, up())


def test_another_machine_of_the_same_launch_is_nobodys() -> None:
    async def main(t: Tower) -> None:
        t.vendor.rows = [row(), row(2, token="t-1"), row(3, token="t-1", alive=False, ended_at=START + 5.0)]
        await t.watch.poll()
        assert t.known.told == []
        assert [r.id for r in t.watch.unknown] == ["i-2"]

    watching(main, up())


def test_a_machine_that_ended_is_told_once_with_the_vendors_end() -> None:
    async def main(t: Tower) -> None:
        t.vendor.rows = [row(alive=False, ended_at=START + 7.0, end=InstanceEnd.PREEMPTED)]
        await t.watch.poll()
        assert t.known.told == [InstanceEnded(ME, START + 7.0, InstanceEnd.PREEMPTED)]
        t.known.job = fold(t.known.job, t.known.told)
        await t.watch.poll()
        assert len(t.known.told) == 1

    watching(main, up())


@pytest.mark.parametrize("ended_by_us", [True, False])
def test_an_end_that_the_vendor_does_not_explain_is_ours_or_a_loss(ended_by_us: bool) -> None:
    async def main(t: Tower) -> None:
        t.vendor.rows = [row(alive=False, ended_at=START + 7.0)]
        await t.watch.poll()
        (ended,) = t.known.told
        assert isinstance(ended, InstanceEnded)
        assert ended.end is (InstanceEnd.OWNER if ended_by_us else InstanceEnd.LOST)

    watching(main, fold(up(), [TerminateIntended(ME, "over")], START) if ended_by_us else up())


def test_a_machine_counts_as_missing_only_after_a_minute() -> None:
    async def main(t: Tower) -> None:
        t.telemetry.word(ME, START + 1.0)
        for _ in range(7):
            await t.watch.poll()
            assert t.known.told == []
            await t.clock.sleep(10.0)
        await t.watch.poll()
        assert t.known.told == [InstanceEnded(ME, START + 1.0, InstanceEnd.LOST)]

    watching(main, up())


def test_a_machine_that_shows_up_again_was_never_missing() -> None:
    async def main(t: Tower) -> None:
        for listed in ([], [row()], [], []):
            t.vendor.rows = listed
            await t.watch.poll()
            await t.clock.sleep(45.0)
        assert t.known.told == []

    watching(main, up())


def test_what_was_launched_while_the_vendor_made_its_list_is_not_missing() -> None:
    async def main(t: Tower) -> None:
        t.vendor.meanwhile = lambda: setattr(t.known, "job", up())
        await t.watch.poll()
        await t.clock.sleep(61.0)
        t.vendor.rows = [row()]
        await t.watch.poll()
        assert t.known.told == []

    watching(main, fresh(1))


def test_what_nobody_knows_is_listed_and_never_ended() -> None:
    async def main(t: Tower) -> None:
        strangers = [row(8, job=None), row(9, job="j-other"), row(7), disk(id="v-9", job=None), disk(id="v-8")]
        t.vendor.rows = [*strangers, row(6, job=None, alive=False)]
        await t.watch.poll()
        assert [r.id for r in t.watch.unknown] == ["i-8", "i-9", "i-7", "v-9", "v-8"]
        assert t.known.told == []
        assert t.known.terminated == []
        t.vendor.rows = []
        await t.watch.poll()
        assert t.watch.unknown == []

    watching(main, fresh(1))


@pytest.mark.parametrize("believed", ["leaving", "ended"])
def test_what_should_be_gone_is_ended_again_now_and_then(believed: str) -> None:
    gone: list[Event] = [TerminateIntended(ME, "over")]
    if believed == "ended":
        gone.append(InstanceEnded(ME, START, InstanceEnd.OWNER))

    async def main(t: Tower) -> None:
        t.vendor.rows = [row()]
        for _ in range(6):
            await t.clock.sleep(5.0)
            await t.watch.poll()
        assert t.known.terminated == [ME, ME]
        assert t.known.told == []

    watching(main, fold(up(), gone, START))


def test_trouble_with_the_vendor_is_shown_and_survived_and_proves_nothing() -> None:
    async def main(t: Tower) -> None:
        t.vendor.error = Unreachable("timeout")
        for _ in range(20):
            await t.watch.poll()
            await t.clock.sleep(10.0)
        assert t.known.told == []
        assert set(t.known.troubles) == {"timeout"}
        t.vendor.error, t.vendor.rows = None, [row()]
        await t.watch.poll()
        assert t.known.troubles[-1] == ""
        assert t.known.told == []

    watching(main, up())


def test_a_vendor_that_breaks_its_contract_is_trouble_like_any_other() -> None:
    async def main(t: Tower) -> None:
        t.vendor.error = KeyError("region")
        await t.watch.poll()
        assert t.known.troubles == ["unexpected KeyError('region')"]
        assert t.known.told == []

    watching(main, up())


def test_offers_that_cannot_be_had_leave_the_market_as_it_was() -> None:
    async def main(site: Site) -> None:
        await site.start()
        before = site.controller.kernel.market.offers
        assert before

        async def offers(query: object) -> list[Any]:
            raise ValueError("a bug of the plugin")

        site.provider.offers = offers  # type: ignore[assignment,method-assign]
        await site.clock.sleep(20.0)
        assert site.controller.kernel.market.offers == before
        assert site.controller.failed is not None
        assert not site.controller.failed.done()

    on_site(main)


def test_a_notice_is_told_once_and_not_again_when_the_agent_told_it_first() -> None:
    async def main(t: Tower) -> None:
        t.vendor.rows = [row()]
        t.vendor.warnings = [Notice(ME, NoticeKind.TERMINATE, START + 30.0)]
        await t.watch.poll()
        assert t.known.told == [NoticeReceived(ME, NoticeKind.TERMINATE, START + 30.0, "provider")]
        for first in (START + 30.0, START + 30.4):
            t.known.job = fold(up(), [NoticeReceived(ME, NoticeKind.TERMINATE, first)], START)
            await t.watch.poll()
        assert len(t.known.told) == 1

    watching(main, up())


def test_steps_of_an_older_attempt_are_not_told_as_those_of_this_one() -> None:
    async def main(t: Tower) -> None:
        t.vendor.rows = [row(alive=False, ended_at=START + 7.0, end=InstanceEnd.LOST)]
        for attempt, told in ((0, None), (1, 45)):
            t.telemetry.progress(ME, START, attempt=attempt, step=45, total=None, metrics={})
            await t.watch.poll()
            ended = t.known.told.pop()
            assert isinstance(ended, InstanceEnded)
            assert ended.last_step == told

    watching(main, up())


def test_a_disk_whose_answer_was_lost_is_adopted_and_its_end_is_told() -> None:
    intended = VolumeIntended(Slot(0, 0), "n", "a", "box", 10.0)

    async def main(t: Tower) -> None:
        t.vendor.rows = [disk()]
        await t.watch.poll()
        assert t.known.told == [VolumeReady(Slot(0, 0), VolumeId("v-1"), START, 0.05, "n")]
        t.known.job = fold(t.known.job, t.known.told)
        t.vendor.rows = [disk(alive=False, ended_at=START + 9.0)]
        await t.watch.poll()
        assert t.known.told[1:] == [VolumeDeleted(VolumeId("v-1"), START + 9.0)]

    watching(main, fold(fresh(1), [intended], START))


def test_a_disk_whose_deletion_was_refused_is_deleted_again_now_and_then() -> None:
    intended = VolumeIntended(Slot(0, 0), "n", "a", "box", 10.0)
    made = VolumeReady(Slot(0, 0), VolumeId("v-1"), START, 0.05)

    async def main(t: Tower) -> None:
        t.vendor.rows = [disk()]
        for _ in range(3):
            await t.clock.sleep(9.0)
            await t.watch.poll()
        assert t.known.deleted == []
        t.known.job = fold(t.known.job, [VolumeDeleteIntended(VolumeId("v-1"))], START)
        for _ in range(7):
            await t.watch.poll()
            await t.clock.sleep(5.0)
        assert t.known.deleted == [VolumeId("v-1")] * 2
        t.known.job = fold(t.known.job, [VolumeDeleted(VolumeId("v-1"), START)], START)
        await t.clock.sleep(60.0)
        await t.watch.poll()
        assert len(t.known.deleted) == 2

    watching(main, fold(fresh(1), [intended, made], START))


# --- With the whole controller ----------------------------------------------------------------------------------------


def test_ends_of_unknown_things_are_only_by_command_and_only_of_what_is_listed() -> None:
    async def main(site: Site) -> None:
        await site.start()
        await site.until(lambda: site.state().phase is JobPhase.RUNNING)
        mine = next(iter(site.provider.machines.values()))
        stranger = site.provider._make(replace(mine.request, token=LaunchToken("stranger"), job=JobId("j-gone")))
        await site.clock.sleep(30.0)
        assert [r.id for r in site.controller.unknown()] == [stranger.instance]
        assert stranger.alive
        for wrong in ([mine.instance], [stranger.instance, "i-77"]):
            with pytest.raises(NotFound):
                await site.controller.end_unknown(wrong)
        assert stranger.alive, "nothing is ended when one of the names is wrong"
        await site.controller.end_unknown([stranger.instance])
        assert not stranger.alive
        assert mine.alive
        await site.clock.sleep(6.0)
        assert site.controller.unknown() == []

    on_site(main, one_job(task(1)))


def test_a_vendor_without_the_offers_of_a_region_has_not_said_all(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(site: Site) -> None:
        assert site.controller.silent == {"box"}, "nobody was asked yet"
        await site.start()
        assert not site.controller.silent
        monkeypatch.setattr(site.provider, "unanswered", ("west",), raising=False)
        assert await site.controller.offers() == site.controller.market
        assert site.controller.market
        assert site.controller.silent == {"box"}

    on_site(main)


def test_a_vendor_that_lies_dead_for_an_hour_costs_no_machine() -> None:
    faults = (Fault(20.0, FaultKind.API_DOWN, seconds=3600.0),)

    async def main(site: Site) -> None:
        await site.start()
        await site.clock.sleep(25.0)
        assert site.controller.troubles == {"box": "scripted: the vendor does not answer"}
        assert site.controller.silent == {"box"}
        await site.until(lambda: site.state().goal.value == "succeed", 100.0)
        await site.clock.sleep(4000.0)
        assert site.controller.troubles == {}
        assert not site.controller.silent
        assert site.state().phase is JobPhase.SUCCEEDED
        assert not any(m.alive for m in site.provider.machines.values())

    on_site(main, one_job(task(2), faults=faults))


def test_a_lost_answer_is_adopted_while_the_call_is_repeated() -> None:
    async def main(site: Site) -> None:
        await site.start()
        await site.until(lambda: bool(site.in_phase(InstancePhase.READY)))
        assert len(site.provider.machines) == 1
        assert (await site.kinds()).count("LaunchSucceeded") == 1

    on_site(main, one_job(task(1), launches=(LaunchScript(3.1, lost_answer=True),)))


def test_a_machine_whose_end_was_not_heard_is_ended_again_until_it_is_gone() -> None:
    async def main(site: Site) -> None:
        await site.start()
        await site.until(lambda: site.state().phase is JobPhase.RUNNING)
        original = site.provider.end
        deaf = {"n": 2}

        def end(machine_: Any, why: InstanceEnd) -> None:
            if deaf["n"] > 0:
                deaf["n"] -= 1
            else:
                original(machine_, why)

        site.provider.end = end  # type: ignore[method-assign]
        await site.ask(HERE, CancelRequested("user"))
        await site.until(lambda: site.state().phase is JobPhase.CANCELLED, 60.0)
        assert not any(m.alive for m in site.provider.machines.values())

    on_site(main, one_job(task(1)))
