"""Each call of a job's life fails once in each way; nothing may be left, and nothing may be there twice.

The driver below does what the controller does: the same call with the same token after Throttled and Unreachable,
another launch after any other refusal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from everstep.model.errors import ProviderError, Throttled, Unreachable
from everstep.model.ids import InstanceId, VolumeId
from everstep.model.offers import Offer
from everstep.ports import Launched, LaunchRequest, VolumeSpec
from everstep.providers.aws import AwsProvider
from everstep.testing.ec2 import FakeEc2
from everstep.testing.provider_suite import DEPLOYMENT, JOB
from tests.providers.aws.conftest import QUICK, MakeFake, MakeProvider
from tests.providers.aws.test_provider import offer_of, request_for

T = TypeVar("T")
OPERATIONS = [
    "RunInstances",
    "CreateVolume",
    "AttachVolume",
    "TerminateInstances",
    "DeleteVolume",
    "DescribeInstances",
    "DescribeVolumes",
    "DescribeSpotInstanceRequests",
    "DescribeSpotPriceHistory",
    "DescribeInstanceTypes",
    "GetProducts",
    "CreatePlacementGroup",
    "DeletePlacementGroup",
    "DescribePlacementGroups",
]
SEVERAL_TIMES = {"RunInstances", "AttachVolume", "TerminateInstances", "DescribeInstances", "DescribeVolumes"}
WAYS = [
    ("throttle", False),
    ("internal", False),
    ("internal", True),
    ("cut", False),
    ("cut", True),
    ("stock_out", False),
    ("quota", False),
    ("permission", False),
]


async def known(call: Callable[[], Awaitable[T]]) -> T:
    """Repeats until the outcome is known."""
    for _ in range(60):
        try:
            return await call()
        except (Throttled, Unreachable):
            await asyncio.sleep(0.02)
    raise AssertionError("no answer in 60 tries")


async def settled(call: Callable[[], Awaitable[T]]) -> T:
    """As a sweep does: also after a refusal, again later."""
    for _ in range(5):
        try:
            return await known(call)
        except ProviderError:
            await asyncio.sleep(0.02)
    return await known(call)


class Job:
    """One slot with a disk and one without, a preemption, the end."""

    def __init__(self, provider: AwsProvider, fake: FakeEc2) -> None:
        self.provider, self.fake = provider, fake
        self.number = 0
        self.asked: dict[str, LaunchRequest] = {}

    async def machine(self, offer: Offer, volume: VolumeId | None) -> Launched:
        for _ in range(3):
            self.number += 1
            request = request_for(offer, self.number, volume=volume, gang=2)
            self.asked[request.token] = request

            async def launch(request: LaunchRequest = request) -> Launched:
                (answer,) = await self.provider.launch([request], all_or_nothing=True)
                assert isinstance(answer, Launched)
                return answer

            try:
                return await known(launch)
            except ProviderError:
                continue
        raise AssertionError("three launches were refused for one fault")

    async def run(self) -> None:
        provider = self.provider
        offer = await settled(lambda: offer_of(provider))
        spec = VolumeSpec(DEPLOYMENT, JOB, "slot-0", offer.zone, 8.0)
        disk = await settled(lambda: provider.ensure_volume(spec))
        assert await settled(lambda: provider.ensure_volume(spec)) == disk
        first, other = await self.machine(offer, disk), await self.machine(offer, None)
        await settled(lambda: provider.resources(DEPLOYMENT))
        self.fake.interrupt(first.instance, notice_s=0.0)
        await settled(lambda: provider.notices(DEPLOYMENT))
        second = await self.machine(offer, disk)
        held = self.fake.cloud.disks[disk].attachment
        assert held is not None
        assert held.machine == second.instance
        await asyncio.sleep(QUICK.hidden_s)
        found = await settled(lambda: provider.resources(DEPLOYMENT))
        assert {r.id for r in found if r.alive and r.kind != "group"} == {second.instance, other.instance, disk}
        await settled(lambda: provider.terminate([InstanceId(second.instance), other.instance]))
        await settled(lambda: provider.delete_volume(disk))
        await asyncio.sleep(self.fake.cloud.timing.shut_down_s)
        for _ in range(3):  # a group goes with the first look after the last machine
            await settled(lambda: provider.resources(DEPLOYMENT))

    def check(self) -> None:
        """Nothing left, nothing twice."""
        assert self.fake.left() == []
        assert self.fake.cloud.paper.describe_placement_groups("us-east-1", {}) == {"PlacementGroups": []}
        assert [v.id for v in self.fake.cloud.disks.values() if v.deleted_at is None and not v.attachment] == []
        tokens = [m.token for m in self.fake.cloud.machines.values()]
        assert len(tokens) == len(set(tokens))
        assert {t[:50] for t in tokens} <= set(self.asked)
        assert self.fake.server.crashes == []


@pytest.mark.parametrize(
    ("operation", "kind", "late", "number"),
    [
        pytest.param(operation, kind, late, number, marks=pytest.mark.expensive(family="ec2-faults"))
        for operation in OPERATIONS
        for kind, late in WAYS
        for number in ((1, 2) if operation in SEVERAL_TIMES else (1,))
    ],
)
async def test_a_fault_leaves_nothing_behind(
    make_fake: MakeFake, make_provider: MakeProvider, operation: str, kind: str, late: bool, number: int
) -> None:
    fake = make_fake(hidden_s=0.05, boot_s=0.05, shut_down_s=0.1)
    provider = make_provider(fake, look_s=0.02)

    async def no_sleep(seconds: float) -> None:
        await asyncio.sleep(0)

    provider.calls._sleep = no_sleep
    if number > 1:
        fake.fail(operation)  # the first call goes well
    fake.fail(operation, kind, late=late)
    job = Job(provider, fake)
    await job.run()
    job.check()


@pytest.mark.parametrize(
    "count", [pytest.param(n, marks=pytest.mark.expensive(family="ec2-scale")) for n in (100, 1000)]
)
async def test_many_machines_with_few_calls(make_fake: MakeFake, make_provider: MakeProvider, count: int) -> None:
    fake = make_fake(hidden_s=0.0)
    provider: Any = make_provider(fake)
    offer = await offer_of(provider)
    before = fake.counted()
    answers = await provider.launch([request_for(offer, n) for n in range(count)], all_or_nothing=False)
    assert all(isinstance(a, Launched) for a in answers)
    started = fake.counted()
    listed = [r for r in await provider.resources(DEPLOYMENT) if r.kind == "instance"]
    assert {r.id for r in listed} == {a.instance for a in answers if isinstance(a, Launched)}
    assert {r.launch_no for r in listed} == set(range(count))
    listing = fake.counted() - started
    await provider.terminate([InstanceId(r.id) for r in listed])
    assert fake.left() == []
    made = fake.counted() - before
    assert sum(listing.values()) / count <= 0.1, listing
    assert sum(made.values()) / count <= 1.2, made


async def test_throttled_at_the_documented_rate_nothing_is_lost_or_doubled(
    make_fake: MakeFake, make_provider: MakeProvider
) -> None:
    clock = [1_900_000_000.0]
    fake = make_fake(throttle=True, now=lambda: clock[0])
    provider: Any = make_provider(fake, now=lambda: clock[0])

    async def sleep(seconds: float) -> None:
        clock[0] += seconds

    provider.calls._sleep = sleep
    offer = await offer_of(provider)
    requests = [request_for(offer, n) for n in range(60)]
    for request in requests:
        await known(lambda r=request: provider.launch([r], all_or_nothing=True))  # type: ignore[misc]
    assert "RequestLimitExceeded" in {code for code, _ in fake.server.refused}
    assert len(fake.left()) == len(requests)
    clock[0] += 60
    listed = [r for r in await provider.resources(DEPLOYMENT) if r.alive]
    assert sorted(r.launch_no for r in listed) == list(range(60))
    await provider.terminate([InstanceId(r.id) for r in listed])
    assert fake.left() == []
