"""Launches that are decided together are one call, all or nothing, whenever the server dies; each has its outcome."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from everstep.control import doer as doer_module
from everstep.control.doer import Doer
from everstep.model.effects import Launch
from everstep.model.errors import NoCapacity, Throttled, Unreachable
from everstep.model.events import CancelRequested, Event, LaunchFailed, LaunchIntended, LaunchSucceeded
from everstep.model.gang import Slot
from everstep.model.ids import InstanceId, LaunchToken
from everstep.model.job import InstancePhase
from everstep.model.offers import Market
from everstep.testing.scripted import LaunchScript
from everstep.testing.scripted_run import START
from everstep.testing.virtual import VirtualClock, run_virtual
from tests.brain.making import DEPLOYMENT, JOB, fold, fresh, offer
from tests.control.site import JOB as HERE
from tests.control.site import Site, on_site, one_job
from tests.control.test_doer import Desk, Vendor
from tests.parity.worlds import task


def intent(n: int, zone: str = "a") -> LaunchIntended:
    there = replace(offer(), zone=zone)
    return LaunchIntended(LaunchToken(f"t-{n}"), n, Slot(0, n - 1), there, 3.0, "/shared")


def succeeded(n: int) -> LaunchSucceeded:
    return LaunchSucceeded(LaunchToken(f"t-{n}"), InstanceId(f"i-{n}"), START + 0.5, 1.0)


class Gangs(Vendor):
    """Keeps which tokens came together."""

    def __init__(self, clock: VirtualClock, *launches: LaunchScript) -> None:
        super().__init__(clock, *launches)
        self.together: list[list[str]] = []

    async def launch(self, requests: Any, *, all_or_nothing: bool) -> Any:
        assert all_or_nothing
        self.together.append([str(r.token) for r in requests])
        return await super().launch(requests, all_or_nothing=all_or_nothing)


def doing(main: Any, intents: list[LaunchIntended], *launches: LaunchScript) -> None:
    async def run(clock: VirtualClock) -> None:
        desk, vendor = Desk(), Gangs(clock, *launches)
        desk.job = fold(fresh(3), intents)
        doer = Doer(deployment=DEPLOYMENT, providers={"box": vendor}, clock=clock, doings=desk)
        await main(doer, desk, vendor, clock)
        await doer.close()

    run_virtual(run, start=START)


GANG = [intent(1), intent(2), intent(3)]


def launches(intents: list[LaunchIntended]) -> list[Launch]:
    return [Launch(JOB, e) for e in intents]


def told(events: list[Event], kind: type[Event]) -> list[str]:
    assert {type(e) for e in events} <= {kind}
    return [str(getattr(e, "token", "")) for e in events]


def test_launches_into_one_pool_are_one_call_and_each_has_its_outcome() -> None:
    async def main(doer: Doer, desk: Desk, vendor: Gangs, clock: VirtualClock) -> None:
        doer.do(*launches(GANG))
        doer.do(*launches(GANG))  # is under way
        await clock.sleep(5.0)
        assert vendor.together == [["t-1", "t-2", "t-3"]]
        assert told(desk.told, LaunchSucceeded) == ["t-1", "t-2", "t-3"]
        assert len(vendor.machines) == 3

    doing(main, GANG)


def test_each_pool_has_a_call_of_its_own_so_that_a_refusal_is_the_pools() -> None:
    spread = [intent(1, "a"), intent(2, "b"), intent(3, "a")]

    async def main(doer: Doer, desk: Desk, vendor: Gangs, clock: VirtualClock) -> None:
        doer.do(*launches(spread))
        await clock.sleep(5.0)
        assert vendor.together == [["t-1", "t-3"], ["t-2"]]

    doing(main, spread)


def test_a_gang_that_is_not_to_be_had_whole_is_refused_whole_and_once() -> None:
    async def main(doer: Doer, desk: Desk, vendor: Gangs, clock: VirtualClock) -> None:
        doer.do(*launches(GANG))
        await clock.sleep(100.0)
        text = "scripted: no_capacity"
        assert desk.told == [LaunchFailed(e.token, NoCapacity.kind, text) for e in GANG]
        assert len(vendor.together) == 1
        assert vendor.machines == {}

    doing(main, GANG, LaunchScript(), LaunchScript(error="no_capacity"))


def test_one_that_a_sweep_told_of_is_not_asked_for_again_nor_its_outcome_changed() -> None:
    async def main(doer: Doer, desk: Desk, vendor: Gangs, clock: VirtualClock) -> None:
        vendor.errors["launch"] = [Unreachable("?"), Throttled("?")]
        doer.do(*launches(GANG))
        await asyncio.sleep(0)
        desk.job = fold(desk.job, [succeeded(2)])
        await clock.sleep(5.0)
        assert vendor.together == [["t-1", "t-2", "t-3"], ["t-1", "t-3"], ["t-1", "t-3"]]
        assert told(desk.told, LaunchSucceeded) == ["t-1", "t-3"]

    doing(main, GANG)


def test_after_a_restart_the_call_is_the_same_but_for_outcomes_that_were_written() -> None:
    async def main(doer: Doer, desk: Desk, vendor: Gangs, clock: VirtualClock) -> None:
        doer.resume(desk.job)
        await clock.sleep(5.0)
        desk.told.clear()
        desk.job = fold(fresh(3), [*GANG, succeeded(2)])
        doer.resume(desk.job)
        await clock.sleep(5.0)
        assert vendor.together == [["t-1", "t-2", "t-3"], ["t-1", "t-3"]]
        assert told(desk.told, LaunchSucceeded) == ["t-1", "t-3"]
        assert len(vendor.machines) == 3

    doing(main, GANG)


def test_of_two_decisions_each_is_a_call_again_after_a_restart() -> None:
    async def main(doer: Doer, desk: Desk, vendor: Gangs, clock: VirtualClock) -> None:
        later = {t: replace(m, intended_at=m.intended_at + 9.0) if t == "t-3" else m
                 for t, m in desk.job.instances.items()}  # fmt: skip
        desk.job = replace(desk.job, instances=later)
        doer.resume(desk.job)
        await clock.sleep(5.0)
        assert vendor.together == [["t-1", "t-2"], ["t-3"]]

    doing(main, GANG)


@pytest.mark.parametrize("point", ["launch.before", "launch.after"])
def test_a_server_killed_on_either_side_of_the_call_has_each_machine_once(
    point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    struck: list[str] = []

    def reach(name: str) -> None:
        if name == point and not struck:
            struck.append(name)
            raise asyncio.CancelledError  # nothing of this call goes on

    monkeypatch.setattr(doer_module, "reach", reach)

    async def main(site: Site) -> None:
        await site.start()
        await site.clock.sleep(1.9)
        assert struck
        assert site.in_phase(InstancePhase.LAUNCHING) == [""] * 4
        await site.kill()
        await site.revive(exclusive=True)
        await site.until(lambda: len(site.in_phase(InstancePhase.READY)) == 4)
        await site.clock.sleep(20.0)
        assert len(site.provider.machines) == len({m.request.token for m in site.provider.machines.values()}) == 4
        assert site.controller.unknown() == []

    on_site(main, one_job(task(4)), exclusive=True)


def test_a_job_cancelled_while_its_gang_is_launched_keeps_nothing_of_it() -> None:
    slow = tuple(LaunchScript(3.0, lost_answer=n == 1) for n in range(3))

    async def main(site: Site) -> None:
        await site.start()
        await site.clock.sleep(1.0)
        await site.ask(HERE, CancelRequested("user"))
        await site.until(lambda: len(site.provider.machines) == 3)
        await site.until(lambda: not any(m.alive for m in site.provider.machines.values()))
        await site.until(lambda: len(site.in_phase(InstancePhase.ENDED)) == 3)

    on_site(main, one_job(task(3), launches=slow))


def test_a_gang_that_one_pool_refuses_goes_to_another_whole_and_the_pool_cools_down() -> None:
    async def main(site: Site) -> None:
        await site.start()
        await site.until(lambda: len(site.in_phase(InstancePhase.READY)) == 4)
        found = [m.offer for m in site.state().instances.values() if m.instance]
        assert {(o.zone, o.market) for o in found} == {("b", Market.SPOT)}
        assert len(site.provider.machines) == 4, "nothing was leased where there was no room for all"
        refused = [m for m in site.state().instances.values() if m.phase is InstancePhase.REFUSED]
        assert [m.offer.zone for m in refused] == ["a"] * 4
        kinds = await site.kinds()
        assert kinds.count("LaunchIntended") == 8

    on_site(main, one_job(task(4), launches=(LaunchScript(), LaunchScript(error="no_capacity"))))
