"""Gangs that the real controller launches on each cloud: how many calls that takes, what a zone without room costs."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from everstep.control.controller import Controller
from everstep.control.options import Options
from everstep.model.events import JobSubmitted
from everstep.model.gang import Gang, SlotGroup, ZoneRule
from everstep.model.ids import DeploymentId, JobId
from everstep.model.job import InstanceState, JobState
from everstep.model.offers import AcceleratorWish, MachineRequirement, Market
from everstep.model.task import Task
from everstep.store.memory import MemoryStore
from everstep.testing.fault_runs.run import START
from everstep.testing.fault_runs.weather import Weather, run_in_weather
from everstep.testing.scripted_run import DEPLOYMENT, EmptyVault
from everstep.testing.virtual import VirtualClock
from tests.providers.test_fault_runs import VENDORS, side, vendor

JOB = JobId("j-1")
ONE = {"ec2": "RunInstances", "gce": "compute.instances.insert"}
MANY = "compute.instances.bulkInsert"
T4_OR_L4 = MachineRequirement((AcceleratorWish("T4", 1), AcceleratorWish("L4", 1)))


class Site:
    """A server on a fake cloud whose machines see one folder, or have disks of their own; its agents never come."""

    def __init__(self, cloud: str, clock: VirtualClock, *, shared: bool) -> None:
        self.vendor: Any = vendor(cloud)
        self.vendor.start(clock)
        self.clock = clock
        self.store = MemoryStore(wall=clock.now)
        provider = self.vendor.provider(Random(1))
        if shared:
            provider.shared_folder = lambda zone: "/shared"
        self.controller = Controller(
            store=self.store,
            providers={provider.name: provider},
            deployment=DeploymentId(DEPLOYMENT),
            key=b"scripted",
            server_url=lambda: "http://127.0.0.1:1",
            vault=EmptyVault(),
            clock=clock,
            options=Options(offers_s=30.0),
        )

    async def launched(self, nodes: int) -> list[InstanceState]:
        """Submits a gang; its machines once all of them have started."""
        gang = Gang((SlotGroup("worker", T4_OR_L4, nodes, zones=ZoneRule.SAME_ZONE),))
        task = Task(name="t", run="true", gang=gang)
        await self.controller.start()
        await self.controller.put(JOB, JobSubmitted(JOB, task, "user", "default"))
        end = self.clock.now() + 200.0
        while len(found := [m for m in self.state.instances.values() if m.instance and m.alive]) < nodes:
            assert self.clock.now() < end, self.state
            await self.clock.sleep(0.5)
        return found

    @property
    def state(self) -> JobState:
        return self.controller.states[JOB]

    @property
    def counted(self) -> Any:
        return self.vendor._fake.counted()


def on_site(cloud: str, main: Callable[[Site], Any], *, shared: bool = True) -> None:
    weather = Weather(Random(1), lambda call: ())
    weather.calm = True

    async def run(clock: VirtualClock) -> None:
        site = Site(cloud, clock, shared=shared)
        try:
            await main(site)
        finally:
            await site.controller.stop()
            site.vendor.stop()

    run_in_weather(run, weather, start=START)


def test_a_gang_on_compute_engine_is_one_call() -> None:
    async def main(site: Site) -> None:
        machines = await site.launched(4)
        counts = site.counted
        assert (counts[MANY], counts[ONE["gce"]]) == (1, 0)
        assert len({m.instance for m in machines}) == 4
        # Of what is asked about single machines there is nothing: they are seen together.
        assert (counts["compute.instances.list"], counts["compute.instances.get"]) == (1, 0)

    on_site("gce", main)


def test_a_gang_on_ec2_is_one_call_for_each_machine() -> None:
    async def main(site: Site) -> None:
        await site.launched(4)
        assert site.counted[ONE["ec2"]] == 4

    on_site("ec2", main)


@pytest.mark.parametrize("cloud", VENDORS)
def test_a_gang_with_disks_starts_at_one_instant_once_all_of_them_are_there(cloud: str) -> None:
    async def main(site: Site) -> None:
        machines = await site.launched(4)
        disks = list(site.state.volumes.values())
        assert len(disks) == 4
        assert sorted(str(m.volume) for m in machines) == sorted(str(d.volume) for d in disks)
        assert len({m.intended_at for m in machines}) == 1
        assert all(m.intended_at >= d.created_at for m in machines for d in disks if d.created_at is not None)

    on_site(cloud, main, shared=False)


@pytest.mark.parametrize("cloud", VENDORS)
def test_a_zone_with_room_for_four_of_five_gives_none_and_the_gang_goes_elsewhere(cloud: str) -> None:
    async def main(site: Site) -> None:
        zone = min(z for z, _ in side(cloud).WORLD.supplies)
        machines = await site.launched(5)
        dry = (zone, Market.SPOT)
        assert dry not in {(m.offer.zone, m.offer.market) for m in machines}
        refused = [m for m in site.state.instances.values() if m.failure]
        assert len(refused) == 5
        assert all((m.offer.zone, m.offer.market) == dry and m.failure.startswith("no_capacity") for m in refused)
        failed = [r for r in await site.store.read(limit=1000) if r.kind == "LaunchFailed"]
        assert len({r.at for r in failed}) == 1, "one answer, one instant from which the pool cools down"
        await site.clock.sleep(60.0)
        alive = [m for m in site.vendor.machines() if not m.over]
        assert sorted(m.instance for m in alive) == sorted(str(m.instance) for m in machines)
        # What was started there and taken back at once: nothing on Compute Engine, EC2's least charge on EC2.
        ids = {m.instance for m in site.vendor.machines()} - {m.instance for m in alive}
        charged = sum(bill.usd for key, bill in site.vendor.charges().items() if key in ids)
        assert charged <= {"ec2": 4 * 0.17 / 60.0 + 1e-6, "gce": 0.0}[cloud]

    on_site(cloud, main)


@pytest.mark.parametrize("cloud", VENDORS)
def test_a_gang_with_disks_comes_whole_too_and_leaves_no_disk_where_it_was_refused(cloud: str) -> None:
    async def main(site: Site) -> None:
        zone = min(z for z, _ in side(cloud).WORLD.supplies)
        machines = await site.launched(5)
        assert {m.offer.zone for m in machines} != {zone} or {m.offer.market for m in machines} == {Market.ON_DEMAND}
        await site.clock.sleep(60.0)
        alive = [m for m in site.vendor.machines() if not m.over]
        assert sorted(m.instance for m in alive) == sorted(str(m.instance) for m in machines)
        there = [d for d in site.state.volumes.values() if d.deleted_at is None]
        assert len({d.zone for d in there} | {m.offer.zone for m in machines}) == 1
        assert sorted(str(m.volume) for m in machines) == sorted(str(d.volume) for d in there)

    on_site(cloud, main, shared=False)
