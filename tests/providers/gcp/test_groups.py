"""Compact placement policies: made for gangs, in the vendor's bounds, and gone when nobody is in them."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import pytest

from everstep.model.errors import NoCapacity, Throttled, Unreachable
from everstep.model.ids import InstanceId
from everstep.model.offers import Market
from everstep.ports import LaunchRequest, ResourceKind
from everstep.providers.gcp import GcpProvider, groups
from everstep.testing.gce import FakeGce, World
from everstep.testing.gce.policies import Policy
from everstep.testing.provider_suite import DEPLOYMENT, JOB, OTHER_DEPLOYMENT

from .conftest import WORLD, MakeFake, MakeProvider
from .test_provider import INSERT, launch, offer_of, request_of

MAKE, DELETE, LIST = (f"compute.resourcePolicies.{verb}" for verb in ("insert", "delete", "aggregatedList"))
G2 = "g2-standard-8"


def tight(room: int) -> World:
    supply = replace(WORLD.supplies["us-central1-a", G2], compact_room=room)
    return replace(WORLD, supplies={**WORLD.supplies, ("us-central1-a", G2): supply})


async def gang_of(provider: GcpProvider, size: int = 2, *, kind: str = G2, first: int = 1) -> list[LaunchRequest]:
    offer = await offer_of(provider, kind)
    return [await request_of(provider, first + n, offer=offer, gang=size) for n in range(size)]


def policies(fake: FakeGce) -> list[Policy]:
    return list(fake.cloud.policies.values())


def placed(fake: FakeGce) -> set[str]:
    return {m.policy for m in fake.cloud.machines.values()}


async def until_gone(provider: GcpProvider, fake: FakeGce) -> None:
    async with asyncio.timeout(60):
        while policies(fake):
            await provider.resources(DEPLOYMENT)
            await asyncio.sleep(0.05)


async def test_a_gang_is_in_one_policy_that_goes_with_it(fake: FakeGce, provider: GcpProvider) -> None:
    made = await launch(provider, *await gang_of(provider, 3))
    (policy,) = policies(fake)
    assert placed(fake) == {policy.name}
    listed = [r for r in await provider.resources(DEPLOYMENT) if r.kind is ResourceKind.GROUP]
    assert [(r.id, r.job, r.zone, r.alive) for r in listed] == [(policy.name, JOB, "us-central1", True)]
    assert [r for r in await provider.resources(OTHER_DEPLOYMENT) if r.kind is ResourceKind.GROUP] == []
    await provider.terminate(made)
    await provider.resources(DEPLOYMENT)  # machines that are on their way out are in it
    await until_gone(provider, fake)
    assert fake.counted()[MAKE] == 1
    while any(r.kind is ResourceKind.GROUP for r in await provider.resources(DEPLOYMENT)):
        await asyncio.sleep(0.05)
    asked = fake.counted()[LIST]
    await provider.resources(DEPLOYMENT)
    assert fake.counted()[LIST] == asked, "where there are none, nobody asks"


async def test_machines_that_are_alone_or_not_wanted_close_or_of_a_series_that_is_not_placed_have_none(
    fake: FakeGce, make_provider: MakeProvider, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    provider = make_provider(fake)
    await launch(provider, *await gang_of(provider, 1))
    await launch(provider, *await gang_of(provider, kind="e2-standard-4"))
    await launch(provider, *await gang_of(provider, kind="n1-standard-8+T4:1"))
    without = make_provider(fake, compact_placement=False)
    await launch(without, *await gang_of(without, first=11))
    assert fake.counted()[MAKE] == 0
    assert caplog.records == []


async def test_a_placed_machine_is_not_moved_by_the_vendor(fake: FakeGce, provider: GcpProvider) -> None:
    offer = await offer_of(provider, G2, Market.ON_DEMAND)
    # As of a machine without accelerators, which the vendor could move, and which is refused if it should be.
    bare = replace(offer, machine=replace(offer.machine, accelerator="", accelerator_count=0))
    requests = [await request_of(provider, n, offer=bare, gang=2) for n in (1, 2)]
    made = await launch(provider, *requests)
    assert {fake.machine(i).scheduling["onHostMaintenance"] for i in made} == {"TERMINATE"}
    assert len(policies(fake)) == 1


async def test_a_series_that_the_vendor_does_not_place_either_is_learnt(
    fake: FakeGce, provider: GcpProvider, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(groups, "NOT_PLACED", frozenset())
    assert len(await launch(provider, *await gang_of(provider, kind="e2-standard-4"))) == 2
    assert [r.message.partition(": ")[0] for r in caplog.records] == ["gangs start without compact placement"]
    assert "not applicable to machine type e2-standard-4" in caplog.text
    assert placed(fake) == {""}
    refused = len(fake.server.refused)
    await launch(provider, *await gang_of(provider, kind="e2-standard-4", first=5))
    assert len(fake.server.refused) == refused
    await until_gone(provider, fake)


@pytest.mark.parametrize("kind", ["permission", "quota_at_once", "quota"])
async def test_a_gang_that_gets_no_policy_starts_all_the_same(
    fake: FakeGce, provider: GcpProvider, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    caplog.set_level(logging.WARNING)
    fake.fail(MAKE, kind, times=2)
    assert len(await launch(provider, *await gang_of(provider))) == 2
    assert ["without compact placement" in r.message for r in caplog.records] == [True]
    assert policies(fake) == []


async def test_no_room_close_by_is_no_capacity_and_leaves_nothing(
    make_fake: MakeFake, make_provider: MakeProvider
) -> None:
    fake = make_fake(tight(1))
    provider = make_provider(fake)
    with pytest.raises(NoCapacity):
        await launch(provider, *await gang_of(provider))
    await until_gone(provider, fake)
    assert fake.left() == []


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("call", [MAKE, INSERT])
async def test_the_policy_of_a_dead_process_is_found_used_and_deleted_by_the_next(
    fake: FakeGce, make_provider: MakeProvider, call: str, late: bool
) -> None:
    first = make_provider(fake)
    requests = await gang_of(first)
    fake.fail(call, "cut", late=late)
    with pytest.raises(Unreachable):
        await launch(first, requests[0])
    second = make_provider(fake)
    made = await again(second, *requests)
    there = [m for m in fake.cloud.machines.values() if m.fails_at is None]
    assert (len(policies(fake)), len(placed(fake)), len(there)) == (1, 1, 2)
    third = make_provider(fake)
    async with asyncio.timeout(60):
        while fake.left():  # to a process that did not start them, machines that do not show yet are unknown
            await third.terminate(made)
            await asyncio.sleep(0.05)
    await until_gone(third, fake)


async def test_a_policy_that_was_deleted_while_it_was_launched_into_is_made_again(
    fake: FakeGce, provider: GcpProvider
) -> None:
    requests = await gang_of(provider)
    (one,) = await launch(provider, requests[0])
    name = fake.machine(one).policy
    await provider.terminate([one])
    await until_gone(provider, fake)
    provider._launching._groups._ready.add(("us-central1", name))
    (two,) = await again(provider, requests[1])
    assert fake.machine(two).policy == name
    assert [p.name for p in policies(fake)] == [name]


async def test_a_policy_whose_deletion_is_refused_is_deleted_later(fake: FakeGce, provider: GcpProvider) -> None:
    made = await launch(provider, *await gang_of(provider))
    await provider.terminate(made)
    while fake.left():
        await asyncio.sleep(0.05)
    fake.fail(DELETE, "permission")
    listed = [r for r in await provider.resources(DEPLOYMENT) if r.kind is ResourceKind.GROUP]
    assert [r.id for r in listed] == [p.name for p in policies(fake)]
    await until_gone(provider, fake)


async def again(provider: GcpProvider, *requests: LaunchRequest) -> list[InstanceId]:
    """As the controller does it: the same call until the outcome is known."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await launch(provider, *requests)
            except (Throttled, Unreachable):
                await asyncio.sleep(0.05)
