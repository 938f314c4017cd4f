"""Cluster placement groups: made for gangs, in the vendor's bounds, and gone when nobody is in them."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Any

import pytest

from everstep.model.errors import NoCapacity
from everstep.model.ids import InstanceId
from everstep.ports import LaunchRequest, OfferQuery
from everstep.providers.aws import AwsProvider
from everstep.testing.ec2 import FakeEc2, Supply, World
from everstep.testing.provider_suite import DEPLOYMENT
from tests.providers.aws.conftest import WORLD, MakeFake, MakeProvider
from tests.providers.aws.test_provider import offer_of, request_for, start

SUPPLY = WORLD.supplies["us-east-1a", "g4dn.xlarge"]


def tight(room: int) -> World:
    supplies = {**WORLD.supplies, ("us-east-1a", "g4dn.xlarge"): replace(SUPPLY, cluster_room=room)}
    return replace(WORLD, supplies=supplies)


async def gang_of(provider: AwsProvider, size: int = 2, **more: Any) -> list[LaunchRequest]:
    offer = await offer_of(provider)
    return [replace(request_for(offer, n), gang=size, **more) for n in range(1, size + 1)]


def groups(fake: FakeEc2) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = fake.cloud.paper.describe_placement_groups("us-east-1", {})["PlacementGroups"]
    return found


async def until_gone(provider: AwsProvider, fake: FakeEc2) -> None:
    async with asyncio.timeout(60):
        while groups(fake):
            await provider.resources(DEPLOYMENT)
            await asyncio.sleep(0.05)


async def test_a_gang_is_in_one_group_that_goes_with_it(fake: FakeEc2, provider: AwsProvider) -> None:
    made = await start(provider, *await gang_of(provider))
    (group,) = groups(fake)
    assert {m.placement_group for m in fake.cloud.machines.values()} == {group["GroupName"]}
    tags = {t["Key"]: t["Value"] for t in group["Tags"]}
    assert tags["everstep:deployment"] == DEPLOYMENT
    listed = [r for r in await provider.resources(DEPLOYMENT) if r.kind == "group"]
    assert [(r.id, r.alive) for r in listed] == [(group["GroupName"], True)]
    await provider.terminate([m.instance for m in made])
    await provider.resources(DEPLOYMENT)  # machines that are on their way out are in it
    await until_gone(provider, fake)
    assert fake.counted()["CreatePlacementGroup"] == 1


async def test_one_machine_alone_has_none_nor_has_who_wants_none(fake: FakeEc2, make_provider: MakeProvider) -> None:
    provider = make_provider(fake)
    await start(provider, *await gang_of(provider, 1))
    without = make_provider(fake, placement_groups=False)
    offer = await offer_of(without)
    await start(without, *[replace(request_for(offer, n), gang=2) for n in (11, 12)])
    assert fake.counted()["CreatePlacementGroup"] == 0


async def test_a_group_without_room_is_no_capacity_and_leaves_nothing(
    make_fake: MakeFake, make_provider: MakeProvider
) -> None:
    fake = make_fake(tight(1))
    provider = make_provider(fake)
    with pytest.raises(NoCapacity, match="placement group"):
        await start(provider, *await gang_of(provider))
    await until_gone(provider, fake)
    assert fake.left() == []


async def test_a_type_without_groups_and_a_missing_permission_are_told_once_and_gangs_start_all_the_same(
    make_fake: MakeFake, make_provider: MakeProvider, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    world = World({("us-east-1a", "t3.large"): Supply([(0.0, 0.03)])}, {"t3.large": 0.08})
    fake = make_fake(world)
    provider = make_provider(fake, types=["t3.*"])
    (offer,) = [o for o in await provider.offers(OfferQuery()) if o.market == "spot"]
    await start(provider, *[replace(request_for(offer, n), gang=2) for n in (1, 2)])
    assert [r.message for r in caplog.records] == [
        "t3.large: EC2 has no cluster placement group for it, gangs start without"
    ]
    caplog.clear()
    fake = make_fake()
    fake.fail("CreatePlacementGroup", "permission", times=2)
    provider = make_provider(fake)
    assert len(await start(provider, *await gang_of(provider))) == 2
    assert ["without a placement group" in r.message for r in caplog.records] == [True]
    assert groups(fake) == []


@pytest.mark.parametrize("late", [False, True])
async def test_the_group_of_a_dead_process_is_found_used_and_deleted_by_the_next(
    fake: FakeEc2, make_provider: MakeProvider, late: bool
) -> None:
    first = make_provider(fake)
    requests = await gang_of(first)
    fake.fail("RunInstances", "cut", late=late)
    with pytest.raises(Exception, match="run_instances"):
        await start(first, requests[0])
    (group,) = groups(fake)
    second = make_provider(fake)
    made = await start(second, *requests)
    assert [g["GroupName"] for g in groups(fake)] == [group["GroupName"]]
    assert len(fake.cloud.machines) == 2
    third = make_provider(fake)
    async with asyncio.timeout(60):
        while fake.left():  # to a process that did not start them, machines that do not show yet are unknown
            await third.terminate([InstanceId(m.instance) for m in made])
            await asyncio.sleep(0.05)
    await until_gone(third, fake)
    assert fake.left() == []


async def test_a_group_that_was_swept_while_it_was_launched_into_is_made_again(
    fake: FakeEc2, provider: AwsProvider
) -> None:
    requests = await gang_of(provider)
    (one,) = await start(provider, requests[0])
    await provider.terminate([one.instance])
    await until_gone(provider, fake)
    provider._launching._groups._made.add(("us-east-1", fake.cloud.machines[one.instance].placement_group))
    async with asyncio.timeout(60):
        while True:
            try:
                made = await start(provider, requests[1])
                break
            except Exception:
                await asyncio.sleep(0.02)
    assert fake.cloud.machines[made[0].instance].placement_group in {g["GroupName"] for g in groups(fake)}
