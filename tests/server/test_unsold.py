"""A task that nothing on sale fits is told so at once, unless it may come later."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from everstep.client.api import Client
from everstep.model.codec import to_dict
from everstep.model.errors import BadInput
from everstep.model.gang import Gang, SlotGroup
from everstep.model.offers import AcceleratorWish, MachineRequirement, MachineType, Offer
from everstep.model.task import Task
from everstep.server.planning import planned
from everstep.server.reach import Reach
from everstep.server.unsold import unsold
from tests.server import fakes
from tests.server.fakes import Rig

SMALL = MachineType("cpu.small", cpus=4, memory_gib=16)
LARGE = MachineType("gpu.large", "V100", 8, cpus=64, memory_gib=488)
ONE = MachineType("gpu.one", "H100", 1, cpus=26, memory_gib=200)


def task(**need: object) -> Task:
    return Task(name="t", run="x", gang=Gang((SlotGroup("worker", MachineRequirement(**need), 1),)))  # type: ignore[arg-type]


def sold(*machines: MachineType, zone: str = "box-a", available: int | None = 1) -> list[Offer]:
    offer = dataclasses.replace(fakes.offer(zone, available=available), provider="local", region="box")
    return [dataclasses.replace(offer, machine=m) for m in machines]


H100 = (AcceleratorWish("H100", 8),)
ALL = "on sale from local:"


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (
            task(accelerators=H100),
            "nothing on sale has H100:8; the nearest is gpu.one (H100:1, 26 CPUs, 200 GiB); "
            f"{ALL} gpu.one (H100:1), gpu.large (V100:8), cpu.small",
        ),
        (
            task(accelerators=(AcceleratorWish("A100", 8), AcceleratorWish("V100", 4)), cpus_min=8.0),
            "nothing on sale has A100:8 or V100:4, at least 8 CPUs; the nearest is gpu.large (V100:8, 64 CPUs, "
            f"488 GiB); {ALL} gpu.large (V100:8), gpu.one (H100:1), cpu.small",
        ),
        (
            task(machine_types=("gpu.larg",)),
            "nothing on sale has the type gpu.larg; the nearest is gpu.large (V100:8, 64 CPUs, 488 GiB); "
            f"{ALL} gpu.large (V100:8), cpu.small, gpu.one (H100:1)",
        ),
        (
            task(cpus_exact=8.0, memory_gib_min=32.0),
            "nothing on sale has exactly 8 CPUs, at least 32 GiB; the nearest is gpu.one (H100:1, 26 CPUs, 200 GiB); "
            f"{ALL} gpu.one (H100:1), cpu.small, gpu.large (V100:8)",
        ),
        (
            task(places=(("local", "box", "box-c"),)),
            "nothing is on sale in local/box/box-c; the nearest is local/box/box-a; on sale in local/box/box-a",
        ),
        (
            task(places=(("locall", "", ""),)),
            "nothing is on sale in locall; the nearest is local; on sale in local/box/box-a",
        ),
        (task(places=(("azurre", "", ""),)), "nothing is on sale in azurre; on sale in local/box/box-a"),
        (task(accelerators=(AcceleratorWish("v100", 8),)), ""),
        (task(), ""),
    ],
)
def test_what_is_on_sale_and_the_nearest_of_it(wanted: Task, said: str) -> None:
    assert unsold(wanted, sold(SMALL, LARGE, ONE), ()) == said


def test_a_long_list_is_cut() -> None:
    many = [MachineType(f"m{i}", cpus=i + 1, memory_gib=8) for i in range(9)]
    assert unsold(task(accelerators=H100), sold(*many), ()).endswith(
        "on sale from local: m0, m1, m2, m3, m4, m5 and 3 more (everstep offers)"
    )


def test_what_is_sold_out_is_waited_for() -> None:
    assert unsold(task(accelerators=(AcceleratorWish("H100", 1),)), sold(ONE, available=0), ()) == ""


def test_what_a_silent_provider_may_sell_is_waited_for() -> None:
    assert unsold(task(accelerators=H100), sold(SMALL), {"aws"}) == ""
    assert unsold(task(accelerators=H100, places=(("local", "", ""),)), sold(SMALL), {"aws"}) != ""
    assert unsold(task(accelerators=H100), [], ()) == "", "a market that is not there yet says nothing"


async def test_a_plan_says_it(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    async def preview(task: Task) -> dict[str, object]:
        return {"offers": [], "wait": "a machine that fits the task: local offers none"}

    monkeypatch.setattr(rig.controller, "preview", preview)
    rig.controller.market = sold(SMALL)
    plan = await planned(task(accelerators=H100), rig.controller, Reach.of({}, ""))
    assert plan["unsold"].startswith("nothing on sale has H100:8; the nearest is cpu.small")
    rig.controller.silent = {"aws"}
    plan = await planned(task(accelerators=H100), rig.controller, Reach.of({}, ""))
    assert plan["unsold"] == ""
    assert plan["wait"].endswith("local offers none; aws does not answer now, and may sell one")


async def handed_in(rig: Rig, wanted: Task) -> str:
    """What the SDK says to it: the job, or why not."""

    def work(url: str) -> str:
        with Client(url, fakes.TOKEN, timeout_s=20.0) as client:
            return client.submit(wanted)

    async with rig.served() as url:
        try:
            return await asyncio.to_thread(work, url)
        except BadInput as error:
            return str(error)


async def test_a_task_that_nothing_fits_is_refused_whoever_hands_it_in(rig: Rig) -> None:
    rig.controller.market = sold(SMALL)
    told = await handed_in(rig, task(accelerators=H100))
    assert told.startswith("resources: nothing on sale has H100:8; the nearest is cpu.small")
    assert not rig.controller.submitted
    assert not list((rig.folder / "submissions").iterdir()), "the same submission may come again"
    assert (await handed_in(rig, task(cpus_min=4.0))).startswith("j-")


async def test_a_task_is_taken_in_while_nobody_knows_all_that_is_sold(rig: Rig) -> None:
    assert (await handed_in(rig, task(accelerators=H100))).startswith("j-"), "nobody was asked yet"
    rig.controller.market, rig.controller.silent = sold(SMALL), {"aws"}
    assert (await handed_in(rig, task(accelerators=H100))).startswith("j-"), "aws may sell one"


async def test_a_market_that_changed_since_the_last_look_is_looked_at(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def offers() -> list[Offer]:
        return sold(SMALL, LARGE)

    rig.controller.market = sold(SMALL)
    monkeypatch.setattr(rig.controller, "offers", offers)
    assert (await handed_in(rig, task(accelerators=(AcceleratorWish("V100", 8),)))).startswith("j-")


async def test_what_was_taken_in_is_not_refused_when_its_answer_is_asked_for_again(rig: Rig) -> None:
    value, headers = {"task": to_dict(task(cpus_min=4.0))}, {"Idempotency-Key": "k"}
    rig.controller.market = sold(SMALL)
    async with rig.client() as client:
        first = await client.post("/api/v1/jobs", json=value, headers=headers)
        rig.controller.market = sold(dataclasses.replace(SMALL, cpus=2))
        again = await client.post("/api/v1/jobs", json=value, headers=headers)
        other = await client.post("/api/v1/jobs", json=value)
    assert first.json() == again.json() == {"job": "j-00000000"}
    assert other.status_code == 422
