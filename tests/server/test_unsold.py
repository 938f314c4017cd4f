"""A task that nothing on sale fits is told so at once, unless it may come later."""

from __future__ import annotations

import dataclasses

import pytest

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
    rig.controller.troubles = {"aws": "no credentials"}
    plan = await planned(task(accelerators=H100), rig.controller, Reach.of({}, ""))
    assert plan["unsold"] == ""
    assert plan["wait"].endswith("local offers none; aws does not answer now, and may sell one")
