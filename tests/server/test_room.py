from __future__ import annotations

import dataclasses

import pytest

from everstep.model.codec import to_dict
from everstep.model.gang import Gang, SlotGroup, ZoneRule
from everstep.model.job import InstancePhase
from everstep.model.offers import MachineRequirement, Market, Offer
from everstep.model.task import SpotMode, Task
from everstep.server.room import too_small
from tests.server import fakes
from tests.server.fakes import Rig


def task(count: int, *, zones: ZoneRule = ZoneRule.ANY, spot: SpotMode = SpotMode.AUTO, types: str = "m1") -> Task:
    machine = MachineRequirement(machine_types=(types,))
    return Task(name="t", run="x", spot=spot, gang=Gang((SlotGroup("worker", machine, count, zones=zones),)))


def static(zone: str = "here", available: int | None = 1) -> Offer:
    return fakes.offer(zone, market=Market.STATIC, available=available)


HERE_AND_THERE = [static(), static("there")]
TWO_CLOUDS = [static(), dataclasses.replace(static(), provider="b")]


@pytest.mark.parametrize(
    ("wanted", "offers", "said"),
    [
        (task(2), [static()], "needs 2 machines at once; this cloud has room for 1"),
        (task(2), HERE_AND_THERE, ""),
        (task(3), HERE_AND_THERE, "needs 3 machines at once; this cloud has room for 2"),
        (task(2, zones=ZoneRule.SAME_ZONE), HERE_AND_THERE, "needs 2 machines at once; this cloud has room for 1"),
        (task(2, zones=ZoneRule.SAME_REGION), HERE_AND_THERE, ""),
        (task(2), [static(available=None)], ""),
        (task(5), [fakes.offer()], "needs 5 machines at once; this cloud has room for 3 now"),
        (task(5), [fakes.offer(), static()], "needs 5 machines at once; this cloud has room for 4 now"),
        (
            task(5, spot=SpotMode.FALSE),
            [fakes.offer(), static()],
            "needs 5 machines at once; this cloud has room for 1",
        ),
        (task(3), TWO_CLOUDS, "needs 3 machines at once; the clouds here have room for 2"),
        (task(2, types="other"), [static()], ""),
        (task(1), [], ""),
    ],
)
def test_a_gang_that_does_not_fit_is_told_so(wanted: Task, offers: list[Offer], said: str) -> None:
    assert too_small(wanted, offers, []) == said


def test_what_our_own_jobs_hold_will_be_free_again() -> None:
    ours = dataclasses.replace(fakes.machine("i-1"), offer=static())
    gone = dataclasses.replace(fakes.machine("i-2", phase=InstancePhase.ENDED), offer=static())
    offers = [static(available=1)]
    assert too_small(task(2), offers, [fakes.job("j-1", ours)]) == ""
    assert too_small(task(2), offers, [fakes.job("j-1", gone)]) != ""


async def test_the_plan_says_it(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    async def dry(_: Task) -> dict[str, object]:
        return {"offers": [], "wait": "no capacity (1 pool looked at)"}

    monkeypatch.setattr(rig.controller, "preview", dry)
    rig.controller.market = [static()]
    async with rig.client() as client:
        small = await client.post("/api/v1/plan", json={"task": to_dict(task(2))})
        fits = await client.post("/api/v1/plan", json={"task": to_dict(task(1))})
    assert small.json()["wait"] == "needs 2 machines at once; this cloud has room for 1"
    assert fits.json()["wait"] == "no capacity (1 pool looked at)"
