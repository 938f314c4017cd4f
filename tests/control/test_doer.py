"""The doer: every effect done once, however the vendor behaves and whenever the server dies."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from typing import Any

import pytest

from everstep.control.doer import Doer
from everstep.model.effects import DeleteVolume, EnsureVolume, Launch, Terminate
from everstep.model.errors import NoCapacity, Throttled, Unauthorized, Unreachable
from everstep.model.events import (
    CancelRequested,
    Event,
    LaunchFailed,
    LaunchIntended,
    LaunchSucceeded,
    TerminateIntended,
    VolumeDeleted,
    VolumeDeleteIntended,
    VolumeFailed,
    VolumeIntended,
    VolumeReady,
)
from everstep.model.gang import Slot
from everstep.model.ids import InstanceId, JobId, LaunchToken, VolumeId
from everstep.model.job import InstancePhase, JobState
from everstep.ports import LaunchRequest, VolumeSpec
from everstep.testing.scripted import LaunchScript
from everstep.testing.scripted_cloud import ScriptedProvider
from everstep.testing.scripted_run import START, LiveStage
from everstep.testing.virtual import VirtualClock, run_virtual
from tests.brain.making import DEPLOYMENT, JOB, fold, fresh, machine, offer
from tests.control.site import JOB as HERE
from tests.control.site import Site, on_site, one_job
from tests.parity.worlds import task, world

T1 = LaunchToken("t-1")
DISK = VolumeIntended(Slot(0, 0), "disk", "a", "box", 10.0)


class Desk:
    """What the doer tells, and the state it looks at."""

    def __init__(self) -> None:
        self.told: list[Event] = []
        self.troubles: list[str] = []
        self.job: JobState = fold(fresh(1), machine(1)[:1])

    def put(self, job: JobId, event: Event) -> asyncio.Future[None]:
        self.told.append(event)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    def user_data(self, job: JobId, token: LaunchToken) -> Mapping[str, str]:
        return {"EVERSTEP_TOKEN": f"{job}.{token}"}

    def state(self, job: JobId) -> JobState | None:
        return self.job if job == self.job.id else None

    def trouble(self, provider: str, text: str) -> None:
        self.troubles.append(text)


class Vendor(ScriptedProvider):
    """A scripted vendor that keeps what it was asked, and fails as it is told: errors by method, in order."""

    def __init__(self, clock: VirtualClock, *launches: LaunchScript) -> None:
        super().__init__(world("doer", launches=launches), LiveStage(clock))
        self.requests: list[LaunchRequest] = []
        self.asked: list[str] = []
        self.errors: dict[str, list[Exception]] = {}

    def _fail(self, method: str) -> None:
        self.asked.append(method)
        if self.errors.get(method):
            raise self.errors[method].pop(0)

    async def launch(self, requests: Any, *, all_or_nothing: bool) -> Any:
        self.requests.extend(requests)
        self._fail("launch")
        return await super().launch(requests, all_or_nothing=all_or_nothing)

    async def terminate(self, instances: Any) -> None:
        self._fail("terminate")
        await super().terminate(instances)

    async def ensure_volume(self, spec: VolumeSpec) -> VolumeId:
        self._fail("ensure_volume")
        return await super().ensure_volume(spec)

    async def delete_volume(self, volume: VolumeId) -> None:
        self._fail("delete_volume")
        await super().delete_volume(volume)

    async def resources(self, deployment: Any) -> Any:
        self._fail("resources")
        return await super().resources(deployment)


def launch(token: str = "t-1") -> Launch:
    return Launch(JOB, LaunchIntended(LaunchToken(token), 1, Slot(0, 0), offer(), 3.0, "/shared"))


def doing(main: Any, *launches: LaunchScript) -> None:
    async def run(clock: VirtualClock) -> None:
        desk, vendor = Desk(), Vendor(clock, *launches)
        doer = Doer(deployment=DEPLOYMENT, providers={"box": vendor}, clock=clock, doings=desk)
        await main(doer, desk, vendor, clock)
        await doer.close()

    run_virtual(run, start=START)


def test_a_launch_asks_for_what_was_decided_and_tells_the_machine() -> None:
    async def main(doer: Doer, desk: Desk, vendor: Vendor, clock: VirtualClock) -> None:
        doer.do(launch())
        await clock.sleep(5.0)
        (request,) = vendor.requests
        assert (request.token, request.job, request.offer, request.max_price_usd_per_h) == (T1, JOB, offer(), 3.0)
        assert request.user_data == {"EVERSTEP_TOKEN": f"{JOB}.t-1"}
        assert desk.told == [LaunchSucceeded(T1, InstanceId("i-1"), START + 0.8137, 1.0)]

    doing(main)


@pytest.mark.parametrize("kind", ["no_capacity", "quota_exceeded", "price_above_max", "bad_request", "unauthorized"])
def test_a_refusal_is_told_at_once_and_not_repeated(kind: str) -> None:
    async def main(doer: Doer, desk: Desk, vendor: Vendor, clock: VirtualClock) -> None:
        doer.do(launch())
        await clock.sleep(500.0)
        assert desk.told == [LaunchFailed(T1, kind, f"scripted: {kind}")]
        assert len(vendor.requests) == 1

    doing(main, LaunchScript(error=kind))


def test_throttled_and_unreachable_calls_are_repeated_with_the_same_token_and_growing_pauses() -> None:
    async def main(doer: Doer, desk: Desk, vendor: Vendor, clock: VirtualClock) -> None:
        asked_at = []
        vendor.errors["launch"] = [Throttled("slow down"), Unreachable("?"), Throttled("slow down"), Unreachable("?")]
        original = vendor._fail
        vendor._fail = lambda method: (asked_at.append(clock.now()), original(method))[1]  # type: ignore[method-assign]
        doer.do(launch())
        await clock.sleep(30.0)
        assert {r.token for r in vendor.requests} == {T1}
        pauses = [round(b - a, 6) for a, b in itertools.pairwise(asked_at)]
        assert pauses == [0.2, 0.4, 0.8, 1.6]
        assert [type(e) for e in desk.told] == [LaunchSucceeded]
        assert len(vendor.machines) == 1
        assert desk.troubles[-1] == "", "the trouble is taken back"

    doing(main)


def test_a_vendor_that_says_how_long_to_wait_is_obeyed() -> None:
    async def main(doer: Doer, desk: Desk, vendor: Vendor, clock: VirtualClock) -> None:
        vendor.errors["launch"] = [Throttled("slow down", retry_after_s=17.0)]
        doer.do(launch())
        await clock.sleep(16.9)
        assert len(vendor.requests) == 1
        await clock.sleep(0.2)
        assert len(vendor.requests) == 2

    doing(main)


def test_a_provider_that_breaks_its_contract_counts_as_one_that_gave_no_answer() -> None:
    async def main(doer: Doer, desk: Desk, vendor: Vendor, clock: VirtualClock) -> None:
        vendor.errors["launch"] = [KeyError("region")]
        doer.do(launch())
        await clock.sleep(5.0)
        assert [type(e) for e in desk.told] == [LaunchSucceeded]
        assert any("KeyError" in text for text in desk.troubles)

    doing(main)


def test_a_launch_that_somebody_else_answered_is_not_repeated() -> None:
    async def main(doer: Doer, desk: Desk, vendor: Vendor, clock: VirtualClock) -> None:
        vendor.errors["launch"] = [Unreachable("?")] * 50
        doer.do(launch())
        await clock.sleep(3.0)
        desk.job = fold(desk.job, machine(1)[1:2])  # the sweep saw it
        asked = len(vendor.requests)
        await clock.sleep(100.0)
        assert len(vendor.requests) == asked
        assert desk.told == []

    doing(main)


def test_an_effect_under_way_is_not_started_twice() -> None:
    async def main(doer: Doer, desk: Desk, vendor: Vendor, clock: VirtualClock) -> None:
        for _ in range(3):
            doer.do(launch())
            await clock.sleep(0.1)
        await clock.sleep(5.0)
        assert len(vendor.requests) == 1

    doing(main)


def test_a_machine_is_ended_until_the_vendor_accepts() -> None:
    async def main(doer: Doer, desk: Desk, vendor: Vendor, clock: VirtualClock) -> None:
        doer.do(launch())
        await clock.sleep(2.0)
        desk.job = fold(desk.job, machine(1)[1:2])
        vendor.errors["terminate"] = [Unreachable("?"), Throttled("?")]
        doer.do(Terminate(JOB, TerminateIntended(InstanceId("i-1"), "over")))
        await clock.sleep(5.0)
        assert vendor.asked.count("terminate") == 3
        assert not vendor.machines[InstanceId("i-1")].alive

    doing(main)


def test_a_machine_that_may_not_be_ended_is_shown() -> None:
    async def main(doer: Doer, desk: Desk, vendor: Vendor, clock: VirtualClock) -> None:
        desk.job = fold(desk.job, machine(1)[1:2])
        vendor.errors["terminate"] = [Unauthorized("not yours")]
        doer.do(Terminate(JOB, TerminateIntended(InstanceId("i-1"), "over")))
        await clock.sleep(5.0)
        assert desk.troubles == ["cannot end i-1: not yours"]

    doing(main)


def test_a_disk_is_made_and_deleted_with_the_vendors_times() -> None:
    async def main(doer: Doer, desk: Desk, vendor: Vendor, clock: VirtualClock) -> None:
        doer.do(EnsureVolume(JOB, DISK))
        await clock.sleep(2.0)
        ready = VolumeReady(DISK.slot, VolumeId("v-disk"), START + 0.6151, 0.0001, DISK.name)
        assert desk.told == [ready]
        desk.job = fold(desk.job, [DISK, ready])
        doer.do(DeleteVolume(JOB, VolumeDeleteIntended(VolumeId("v-disk"))))
        await clock.sleep(2.0)
        assert desk.told[1:] == [VolumeDeleted(VolumeId("v-disk"), START + 2.0 + 0.6151)]

    doing(main)


def test_a_vendor_that_does_not_list_just_then_does_not_lose_the_disk() -> None:
    async def main(doer: Doer, desk: Desk, vendor: Vendor, clock: VirtualClock) -> None:
        vendor.errors["resources"] = [Unreachable("?"), Unreachable("?")]
        doer.do(EnsureVolume(JOB, DISK))
        await clock.sleep(2.0)
        assert desk.told == [VolumeReady(DISK.slot, VolumeId("v-disk"), START + 0.6151, 0.0001, DISK.name)]
        vendor.errors["resources"] = [Unreachable("?")]
        desk.job = fold(desk.job, [DISK, desk.told[0]])
        doer.do(DeleteVolume(JOB, VolumeDeleteIntended(VolumeId("v-disk"))))
        await clock.sleep(2.0)
        assert desk.told[1:] == [VolumeDeleted(VolumeId("v-disk"), START + 2.0 + 0.6151)]

    doing(main)


def test_a_disk_that_a_list_does_not_show_yet_is_billed_from_when_the_vendor_made_it() -> None:
    async def main(doer: Doer, desk: Desk, vendor: Vendor, clock: VirtualClock) -> None:
        look, looks = vendor.resources, itertools.count()

        async def late(deployment: Any) -> Any:
            return [] if next(looks) < 2 else await look(deployment)

        vendor.resources = late  # type: ignore[method-assign]
        doer.do(EnsureVolume(JOB, DISK))
        await clock.sleep(5.0)
        assert desk.told == [VolumeReady(DISK.slot, VolumeId("v-disk"), START + 0.6151, 0.0001, DISK.name)]

    doing(main)


def test_a_disk_of_which_a_sweep_told_is_not_made_again() -> None:
    """It may be deleted by the time a lost call would be repeated, and what is made then is nobody's."""

    async def main(doer: Doer, desk: Desk, vendor: Vendor, clock: VirtualClock) -> None:
        vendor.errors["ensure_volume"] = [Unreachable("?")]
        doer.do(EnsureVolume(JOB, DISK))
        await clock.sleep(0.1)
        seen = VolumeReady(DISK.slot, VolumeId("v-seen"), START, 0.0001, DISK.name)
        desk.job = fold(desk.job, [DISK, seen, VolumeDeleted(VolumeId("v-seen"), START)])
        await clock.sleep(5.0)
        assert vendor.asked == ["ensure_volume"]
        assert desk.told == []

    doing(main)


def test_a_disk_that_cannot_be_made_is_told() -> None:
    async def main(doer: Doer, desk: Desk, vendor: Vendor, clock: VirtualClock) -> None:
        vendor.errors["ensure_volume"] = [NoCapacity("no disks")]
        doer.do(EnsureVolume(JOB, DISK))
        await clock.sleep(2.0)
        assert desk.told == [VolumeFailed(DISK.slot, "no_capacity", "no disks", DISK.name)]

    doing(main)


@pytest.mark.parametrize("at", [0.0, 0.3, 0.7, 1.1, 1.5, 2.9, 3.4, 4.1, 4.9])
def test_a_server_killed_around_a_launch_has_exactly_one_machine_in_the_end(at: float) -> None:
    launches = (LaunchScript(0.7511, first=("throttled",)), LaunchScript(2.0333, lost_answer=True))
    scripted = one_job(task(2), launches=launches)

    async def main(site: Site) -> None:
        await site.start()
        await site.clock.sleep(0.0207 + at)
        await site.kill()
        await site.clock.sleep(2.0)
        await site.revive(exclusive=True)
        await site.until(lambda: len(site.in_phase(InstancePhase.READY)) == 2)
        await site.clock.sleep(20.0)
        assert len(site.provider.machines) == 2
        assert site.controller.unknown() == []

    on_site(main, scripted, exclusive=True)


@pytest.mark.parametrize("at", [0.1, 0.5, 0.7])
def test_a_server_killed_around_the_making_of_a_disk_makes_it_once(at: float) -> None:
    scripted = one_job(task(1), shared={})

    async def main(site: Site) -> None:
        await site.start()
        await site.clock.sleep(0.0207 + at)
        await site.kill()
        await site.clock.sleep(1.0)
        await site.revive()
        await site.until(lambda: bool(site.in_phase(InstancePhase.READY)))
        assert len(site.provider.disks) == 1
        await site.ask(HERE, CancelRequested("user"))
        await site.until(lambda: any(d.deleted_at is not None for d in site.provider.disks.values()))

    on_site(main, scripted, exclusive=True)


def test_a_server_killed_while_it_deletes_a_disk_deletes_it_after_the_restart() -> None:
    scripted = one_job(task(1), shared={})

    async def main(site: Site) -> None:
        await site.start()
        await site.until(lambda: bool(site.in_phase(InstancePhase.READY)))
        await site.ask(HERE, CancelRequested("user"))
        await site.until(lambda: any(v.deleting for v in site.state().volumes.values()))
        await site.kill()
        assert all(d.deleted_at is None for d in site.provider.disks.values())
        await site.revive()
        await site.until(lambda: all(v.deleted_at is not None for v in site.state().volumes.values()))
        assert all(d.deleted_at is not None for d in site.provider.disks.values())

    on_site(main, scripted, exclusive=True)
