"""Many machines at once: how many calls they take."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from everstep.model.causes import InstanceEnd
from everstep.model.errors import NoCapacity
from everstep.model.ids import InstanceId
from everstep.ports import Launched, LaunchRequest
from everstep.providers.gcp import GcpProvider
from everstep.testing.gce import FakeGce, Supply
from everstep.testing.provider_suite import DEPLOYMENT

from .conftest import WORLD, MakeFake, MakeProvider
from .test_provider import INSERT, offer_of, request_of


async def requests_of(provider: GcpProvider, count: int) -> list[LaunchRequest]:
    offer = await offer_of(provider)
    return [await request_of(provider, n, offer=offer) for n in range(1, count + 1)]


async def all_ended(fake: FakeGce, provider: GcpProvider, instances: list[InstanceId]) -> None:
    """What a provider has not seen yet, since another one launched it, it cannot end: a sweep asks for that again."""
    asked = 0.0
    for _ in range(1200):
        if time.monotonic() - asked > 5.0:
            asked = time.monotonic()
            await provider.terminate(instances)
        if not any(r.alive for r in await provider.resources(DEPLOYMENT)) and fake.left() == []:
            return
        await asyncio.sleep(0.05)
    assert fake.left() == []
    pytest.fail("machines that are gone are listed as alive")


@pytest.mark.parametrize(
    "count", [pytest.param(n, marks=pytest.mark.expensive(family="gce faults")) for n in (60, 1000)]
)
async def test_many_machines_with_few_calls(make_fake: MakeFake, make_provider: MakeProvider, count: int) -> None:
    """The vendor takes one call for the end of each machine; everything else is shared."""
    fake = make_fake(stage_s=1.0, hidden_s=0.0)
    provider: Any = make_provider(fake, look_s=1.0)
    requests = await requests_of(provider, count)
    before = fake.counted()
    answers = await provider.launch(requests, all_or_nothing=False)
    instances = [a.instance for a in answers if isinstance(a, Launched)]
    assert len(set(instances)) == count
    started = fake.counted()
    listed = {r.id: r for r in await provider.resources(DEPLOYMENT)}
    assert set(listed) == set(instances)
    assert {r.launch_no for r in listed.values()} == set(range(1, count + 1))
    listing = fake.counted() - started
    assert sum(listing.values()) / count <= 0.1, listing
    assert all(listed[a.instance].started_at == a.started_at for a in answers)
    await provider.terminate(instances)
    made = fake.counted() - before
    assert sum(made.values()) / count <= 1.2, made
    await all_ended(fake, provider, instances)
    assert {r.end for r in await provider.resources(DEPLOYMENT)} == {InstanceEnd.OWNER}


async def test_of_many_those_that_lists_do_not_show_yet_and_those_that_came_to_nothing(
    make_fake: MakeFake, make_provider: MakeProvider
) -> None:
    room = {**WORLD.supplies, ("us-central1-a", "e2-standard-4"): Supply(spot_room=[(0.0, 10)])}
    fake = make_fake(replace(WORLD, supplies=room), hidden_s=60.0)
    provider: Any = make_provider(fake)
    requests = await requests_of(provider, 12)
    answers = await provider.launch(requests, all_or_nothing=False)
    assert Counter(type(a) for a in answers) == {NoCapacity: 2, Launched: 10}
    instances = [a.instance for a in answers if isinstance(a, Launched)]
    assert sorted(fake.left()) == sorted(instances)
    await provider.terminate(instances)


async def test_a_look_at_many_that_is_refused_is_told_to_all_and_the_next_try_finds_them(
    make_fake: MakeFake, make_provider: MakeProvider
) -> None:
    fake = make_fake(stage_s=3.0)
    provider: Any = make_provider(fake, look_s=1.0)
    requests = await requests_of(provider, 8)
    fake.fail("compute.instances.list", "internal", times=2)  # a read is repeated once
    answers = await provider.launch(requests, all_or_nothing=False)
    assert any(isinstance(a, Exception) for a in answers)
    again = await provider.launch(requests, all_or_nothing=False)
    instances = [a.instance for a in again if isinstance(a, Launched)]
    assert len(set(instances)) == 8
    assert len(fake.cloud.machines) == 8
    await all_ended(fake, provider, instances)


async def test_inserts_of_one_launch_are_made_together_but_not_all_at_once(
    make_fake: MakeFake, make_provider: MakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = make_fake()
    provider: Any = make_provider(fake)
    requests = [replace(r, disk_gib=20.0 + n) for n, r in enumerate(await requests_of(provider, 20))]  # none is alike
    under_way: list[int] = [0]
    call = provider.calls.call

    async def counted(service: str, method: str, *args: Any, **more: Any) -> Any:
        if (service, method) != ("instances", "insert"):
            return await call(service, method, *args, **more)
        under_way.append(under_way[-1] + 1)
        try:
            return await call(service, method, *args, **more)
        finally:
            under_way.append(under_way[-1] - 1)

    monkeypatch.setattr(provider.calls, "call", counted)
    fake.fail(INSERT, "cut", late=True, times=3)  # those are asked again by their names, and are there once
    answers = await again(provider, requests)
    assert max(under_way) == 8
    assert len({a.instance for a in answers}) == len(fake.cloud.machines) == 20
    await provider.terminate([a.instance for a in answers])


async def again(provider: GcpProvider, requests: list[LaunchRequest]) -> list[Launched]:
    async with asyncio.timeout(60):
        while True:
            answers = await provider.launch(requests, all_or_nothing=False)
            if all(isinstance(a, Launched) for a in answers):
                return [a for a in answers if isinstance(a, Launched)]
