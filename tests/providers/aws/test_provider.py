"""What the suite of all providers does not ask: prices, tags, faults, restarts, few calls, no secrets."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from everstep.model.errors import (
    BadRequest,
    NoCapacity,
    PriceAboveMax,
    ProviderError,
    QuotaExceeded,
    Throttled,
    Unauthorized,
    Unreachable,
)
from everstep.model.ids import InstanceId, launch_token
from everstep.model.offers import Market, Offer, Pool
from everstep.ports import AnswersInPart, HistoryQuery, Launched, LaunchRequest, OfferQuery, VolumeSpec
from everstep.providers.aws import AwsProvider, tags
from everstep.testing.ec2 import FakeEc2, Supply, World
from everstep.testing.provider_suite import DEPLOYMENT, JOB
from tests.providers.aws.conftest import QUICK, WORLD, MakeFake, MakeProvider

BOOT = {"EVERSTEP_SERVER": "https://10.0.0.1:8443", "EVERSTEP_TOKEN": "one-time"}


async def offer_of(provider: AwsProvider, zone: str = "us-east-1a", market: Market = Market.SPOT) -> Offer:
    offers = await provider.offers(OfferQuery(machine_types=("g4dn.xlarge",)))
    (offer,) = [o for o in offers if o.zone == zone and o.market is market]
    return offer


def request_for(offer: Offer, number: int = 1, **more: Any) -> LaunchRequest:
    token = launch_token(DEPLOYMENT, JOB, number, offer.key)
    return LaunchRequest(token, DEPLOYMENT, JOB, number, offer, None, BOOT, **more)


async def start(provider: AwsProvider, *requests: LaunchRequest) -> list[Launched]:
    answers = await provider.launch(requests, all_or_nothing=True)
    return [a for a in answers if isinstance(a, Launched)]


async def alive(provider: AwsProvider) -> list[str]:
    return [r.id for r in await provider.resources(DEPLOYMENT) if r.alive]


async def end_all(provider: Any) -> None:
    for _ in range(100):
        left = await provider.resources(DEPLOYMENT)
        await provider.terminate([InstanceId(r.id) for r in left if r.alive and r.kind == "instance"])
        for disk in [r for r in left if r.alive and r.kind == "volume" and r.attached_to is None]:
            await provider.delete_volume(disk.id)
        if provider.fake.left() == []:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(provider.fake.left())


# --- offers and history ----------------------------------------------------------------------------------------------


async def test_offers_say_what_ec2_says(provider: AwsProvider) -> None:
    spot, fixed = await offer_of(provider), await offer_of(provider, market=Market.ON_DEMAND)
    assert (spot.price_usd_per_h, spot.on_demand_usd_per_h, fixed.price_usd_per_h) == (0.17, 0.526, 0.526)
    assert (spot.machine.accelerator, spot.machine.accelerator_count, spot.machine.cpus) == ("T4", 1, 4)
    assert spot.machine.memory_gib == 16
    assert (spot.billing.minimum_s, spot.billing.free_if_reclaimed_within_s, spot.notice_s) == (60, 3600, 120)
    assert fixed.billing.free_if_reclaimed_within_s == 0
    assert (spot.price_source, fixed.price_source) == ("EC2 spot price history", "AWS price list")


async def test_offers_are_kept(make_fake: MakeFake, make_provider: MakeProvider) -> None:
    later = [time.time()]
    fake = make_fake(
        replace(WORLD, supplies={("us-east-1a", "g4dn.xlarge"): Supply([(0.0, 0.2), (later[0] + 1, 0.3)])})
    )
    provider = make_provider(fake, now=lambda: later[0])
    first = await provider.offers(OfferQuery())
    asked = fake.counted()
    assert sum(asked.values()) <= 7, asked
    assert await provider.offers(OfferQuery()) == first
    assert fake.counted() == asked
    later[0] += 301
    await asyncio.sleep(1.1)
    await provider.offers(OfferQuery())
    assert fake.counted() - asked == {"DescribeSpotPriceHistory": 1}


async def test_spot_dearer_than_on_demand_is_not_offered(make_fake: MakeFake, make_provider: MakeProvider) -> None:
    fake = make_fake(World({("us-east-1a", "g4dn.xlarge"): Supply([(0.0, 0.6)])}, {"g4dn.xlarge": 0.526}))
    assert [o.market for o in await make_provider(fake).offers(OfferQuery())] == [Market.ON_DEMAND]


async def test_a_region_in_trouble_does_not_hide_the_others(make_fake: MakeFake, make_provider: MakeProvider) -> None:
    fake = make_fake(replace(WORLD, supplies={**WORLD.supplies, ("us-west-2a", "m5.large"): Supply([(0.0, 0.05)])}))
    provider = make_provider(fake, regions=["us-east-1", "us-west-2"])
    fake.fail("DescribeInstanceTypes", "permission")
    assert isinstance(provider, AnswersInPart)
    found = {o.region for o in await provider.offers(OfferQuery())}
    assert len(found) == 1
    assert {*found, *provider.unanswered} == {"us-east-1", "us-west-2"}
    assert len({o.region for o in await provider.offers(OfferQuery())}) == 2
    assert not provider.unanswered


async def test_history_tells_changes(make_fake: MakeFake, make_provider: MakeProvider) -> None:
    now = float(int(time.time()))
    steps = [(now - 9000, 0.1), (now - 3000, 0.2), (now - 1000, 0.15)]
    fake = make_fake(World({("us-east-1a", "g4dn.xlarge"): Supply(steps)}, {"g4dn.xlarge": 0.526}))
    provider = make_provider(fake)
    spot = Pool("aws", "us-east-1a", "g4dn.xlarge", Market.SPOT)
    fixed = replace(spot, market=Market.ON_DEMAND)
    points = await provider.history(HistoryQuery((spot, fixed), now - 5000))
    assert [(p.at, p.price_usd_per_h, p.available) for p in points] == [
        (now - 5000, 0.1, None),
        (now - 3000, 0.2, None),
        (now - 1000, 0.15, None),
    ]


# --- launch ----------------------------------------------------------------------------------------------------------


async def test_everything_carries_the_tags(fake: FakeEc2, provider: AwsProvider) -> None:
    request = request_for(await offer_of(provider), 3, disk_gib=49.5)
    (launched,) = await start(provider, request)
    machine = fake.cloud.machines[launched.instance]
    assert machine.spot is not None
    (own,) = [fake.cloud.disks[name] for name in machine.disks]
    assert own.size_gib == 50
    for found in (machine.tags, machine.spot.tags, own.tags):
        assert {k: v for k, v in found.items() if k in (tags.DEPLOYMENT, tags.JOB, tags.LAUNCH, tags.TOKEN)} == {
            tags.DEPLOYMENT: DEPLOYMENT,
            tags.JOB: JOB,
            tags.LAUNCH: "3",
            tags.TOKEN: request.token,
        }
    assert machine.metadata_tokens == "required"
    await end_all(provider)


async def test_user_data_holds_the_boot_variables_and_no_credential(fake: FakeEc2, provider: AwsProvider) -> None:
    (launched,) = await start(provider, request_for(await offer_of(provider)))
    text = fake.cloud.machines[launched.instance].user_data
    assert "one-time" in text
    assert "planted-secret" not in text
    assert "AKIATEST" not in text
    await end_all(provider)


async def test_a_server_whose_address_changed_finds_its_machine(fake: FakeEc2, provider: AwsProvider) -> None:
    request = request_for(await offer_of(provider))
    (first,) = await start(provider, request)
    moved = replace(request, user_data={**BOOT, "EVERSTEP_SERVER": "https://10.0.0.1:9999"})
    assert await start(provider, moved) == [first]
    await end_all(provider)


async def test_another_process_goes_on_from_a_lost_answer(
    fake: FakeEc2, provider: AwsProvider, make_provider: MakeProvider
) -> None:
    request = request_for(await offer_of(provider))
    fake.fail("RunInstances", "cut", late=True)
    with pytest.raises(Unreachable):
        await start(provider, request)
    (found,) = await start(make_provider(fake), request)
    assert fake.left() == [found.instance]
    await end_all(provider)


@pytest.mark.parametrize("refuses_dead", [True, False])
@pytest.mark.parametrize("restarted", [True, False])
async def test_a_gang_that_was_taken_back_can_be_asked_for_again(
    fake: FakeEc2, provider: AwsProvider, make_provider: MakeProvider, restarted: bool, refuses_dead: bool
) -> None:
    fake.cloud.launches.refuses_dead = refuses_dead
    offer = await offer_of(provider)
    gang = [request_for(offer, n) for n in (1, 2)]
    fake.fail("RunInstances", "stock_out")
    fake.fail("RunInstances", "stock_out")
    gang[1] = replace(gang[1], offer=await offer_of(provider, "us-east-1b"))
    with pytest.raises(NoCapacity):
        await start(provider, *gang)
    assert fake.left() == []
    fake.fail("RunInstances", "stock_out", zone="us-east-1b")
    with pytest.raises(NoCapacity):
        await start(provider, *gang)
    assert fake.left() == []
    assert await alive(provider) == []
    # The same tokens, from this process and from one that remembers nothing: live machines, not the dead ones.
    await asyncio.sleep(QUICK.hidden_s + QUICK.shut_down_s)
    both = await start(make_provider(fake) if restarted else provider, *gang)
    assert sorted(m.instance for m in both) == sorted(fake.left())
    assert len(both) == 2
    await end_all(provider)


async def test_what_was_taken_back_is_marked_also_when_the_call_that_ends_it_was_lost(
    make_fake: MakeFake, make_provider: MakeProvider
) -> None:
    fake = make_fake(hidden_s=0.0)
    provider = make_provider(fake)
    gang = [request_for(await offer_of(provider, zone), n) for n, zone in enumerate(("us-east-1a", "us-east-1b"))]
    fake.fail("RunInstances", "stock_out", zone="us-east-1b")
    fake.fail("CreateTags", "unavailable")
    fake.fail("TerminateInstances", "unavailable")
    with pytest.raises(Unreachable):
        await start(provider, *gang)
    (first,) = fake.cloud.machines.values()
    assert tags.VOID in first.tags
    # A process that remembers nothing: without the mark it would take the first machine for the answer.
    both = await start(make_provider(fake), *gang)
    assert first.id not in {m.instance for m in both}
    assert len(both) == 2
    await end_all(provider)


async def test_a_disk_that_somebody_else_took_costs_no_machine(fake: FakeEc2, provider: AwsProvider) -> None:
    offer = await offer_of(provider)
    disk = await provider.ensure_volume(VolumeSpec(DEPLOYMENT, JOB, "slot-0", offer.zone, 8.0))
    fake.fail("AttachVolume", "bad_parameter")
    with pytest.raises(BadRequest):
        await start(provider, request_for(offer, volume=disk))
    assert fake.left() == [disk]
    await end_all(provider)


async def test_a_throttled_attachment_ends_no_machine(fake: FakeEc2, provider: AwsProvider) -> None:
    offer = await offer_of(provider)
    disk = await provider.ensure_volume(VolumeSpec(DEPLOYMENT, JOB, "slot-0", offer.zone, 8.0))

    async def sleep(seconds: float) -> None:
        del seconds

    provider.calls._sleep = sleep
    fake.fail("AttachVolume", "throttle", times=6)
    with pytest.raises(Throttled):
        await start(provider, request_for(offer, volume=disk))
    (made,) = [m for m in fake.cloud.machines.values()]
    (again,) = await start(provider, request_for(offer, volume=disk))
    assert again.instance == made.id
    await end_all(provider)


async def test_what_there_is_is_seen_where_nobody_tells_what_it_costs(
    make_fake: MakeFake, make_provider: MakeProvider
) -> None:
    fake = make_fake(hidden_s=0.0)
    late_s = 0.0
    provider = make_provider(fake, now=lambda: time.time() + late_s)
    offer = await offer_of(provider)
    disk = await provider.ensure_volume(VolumeSpec(DEPLOYMENT, JOB, "slot-0", offer.zone, 8.0))
    (before,) = [r for r in await provider.resources(DEPLOYMENT) if r.id == disk]
    late_s = 25 * 3600.0
    fake.fail("GetProducts", "permission", times=99)
    (now,) = [r for r in await provider.resources(DEPLOYMENT) if r.id == disk]
    assert now.price_usd_per_h == before.price_usd_per_h > 0
    await provider.delete_volume(disk)


async def test_a_disk_goes_from_a_preempted_machine_to_the_next(fake: FakeEc2, provider: AwsProvider) -> None:
    offer = await offer_of(provider)
    disk = await provider.ensure_volume(VolumeSpec(DEPLOYMENT, JOB, "slot-0", offer.zone, 8.0))
    (first,) = await start(provider, request_for(offer, 1, volume=disk))
    assert (await start(provider, request_for(offer, 1, volume=disk)))[0] == first, "a repeat attaches nothing twice"
    fake.interrupt(first.instance, notice_s=0.0)
    (second,) = await start(provider, request_for(offer, 2, volume=disk))
    held = fake.cloud.disks[disk].attachment
    assert held is not None
    assert held.machine == second.instance
    await end_all(provider)


async def test_a_disk_of_a_machine_on_its_way_out_is_deleted(fake: FakeEc2, provider: AwsProvider) -> None:
    offer = await offer_of(provider)
    disk = await provider.ensure_volume(VolumeSpec(DEPLOYMENT, JOB, "slot-0", offer.zone, 8.0))
    (first,) = await start(provider, request_for(offer, volume=disk))
    await provider.terminate([first.instance])
    await provider.delete_volume(disk)
    assert fake.left() == []


async def test_ends_survive_a_restart(fake: FakeEc2, provider: AwsProvider, make_provider: MakeProvider) -> None:
    offer = await offer_of(provider)
    owner, taken, lost = await start(provider, *(request_for(offer, n) for n in (1, 2, 3)))
    await asyncio.sleep(QUICK.hidden_s)
    await provider.terminate([owner.instance])
    deadline = fake.interrupt(taken.instance, notice_s=0.0)
    fake.lose(lost.instance)
    await asyncio.sleep(QUICK.shut_down_s + 0.1)
    found = {r.id: r for r in await make_provider(fake).resources(DEPLOYMENT) if r.kind == "instance"}
    ends = [found[m.instance].end for m in (owner, taken, lost)]
    assert ends == ["owner", "preempted", "lost"]
    assert found[taken.instance].ended_at == deadline
    assert found[taken.instance].price_usd_per_h == 0.17
    assert not any(r.alive for r in found.values())


async def test_a_machine_that_had_ended_before_is_not_ended_by_us(fake: FakeEc2, provider: AwsProvider) -> None:
    """Where the list does not show it yet, our own memory must not make up an end that the bill would keep."""
    offer = await offer_of(provider)
    taken, ours = await start(provider, request_for(offer, 1), request_for(offer, 2))
    await asyncio.sleep(QUICK.hidden_s)
    fake.interrupt(taken.instance, notice_s=0.0)
    await provider.terminate([taken.instance, ours.instance])
    pages = provider.calls.pages

    async def blind(region: str, method: str, *arguments: Any, **more: Any) -> Any:
        return [] if method == "describe_instances" else await pages(region, method, *arguments, **more)

    provider.calls.pages = blind  # type: ignore[method-assign]
    found = {r.id: r for r in await provider.resources(DEPLOYMENT)}
    assert found[taken.instance].alive
    assert found[ours.instance].end == "owner"


# --- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "meaning"),
    [
        ("stock_out", NoCapacity),
        ("quota", QuotaExceeded),
        ("spot_quota", QuotaExceeded),
        ("price", PriceAboveMax),
        ("permission", Unauthorized),
        ("credentials", Unauthorized),
        ("bad_parameter", BadRequest),
        ("internal", Unreachable),
        ("unavailable", Unreachable),
        ("cut", Unreachable),
    ],
)
async def test_the_vendors_codes_have_meanings(
    fake: FakeEc2, provider: AwsProvider, kind: str, meaning: type[ProviderError]
) -> None:
    offer = await offer_of(provider)
    fake.fail("RunInstances", kind)
    with pytest.raises(meaning) as caught:
        await start(provider, request_for(offer))
    assert type(caught.value) is meaning
    assert "run_instances in us-east-1" in str(caught.value)
    assert fake.left() == []


async def test_throttling_is_waited_out_with_jitter(fake: FakeEc2, make_provider: MakeProvider) -> None:
    provider = make_provider(fake)
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    provider.calls._sleep = sleep
    provider.calls._rng = Random(7)
    offer = await offer_of(provider)
    fake.fail("RunInstances", "throttle", times=4)
    await start(provider, request_for(offer))
    assert len(fake.left()) == 1
    assert len(pauses) == 4
    assert all(0 <= pause <= 0.5 * 2**n for n, pause in enumerate(pauses))
    assert len(set(pauses)) == 4
    fake.fail("TerminateInstances", "throttle", times=99)
    await asyncio.sleep(QUICK.hidden_s)
    with pytest.raises(Throttled):
        await provider.terminate([InstanceId(fake.left()[0])])


async def test_without_credentials_it_says_so(
    fake: FakeEc2, make_provider: MakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(Unauthorized, match=r"Unable to locate credentials; see 'Credentials' in docs/aws\.md"):
        await make_provider(fake).offers(OfferQuery())


async def test_no_secret_is_told(fake: FakeEc2, provider: AwsProvider, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="everstep")
    offer = await offer_of(provider)
    texts = []
    for kind in ("credentials", "permission", "bad_parameter", "cut"):
        fake.fail("RunInstances", kind)
        with pytest.raises(ProviderError) as caught:
            await start(provider, request_for(offer))
        texts.append(str(caught.value))
    everything = "\n".join([*texts, *(r.getMessage() for r in caplog.records if r.name.startswith("everstep"))])
    assert "planted-secret" not in everything
    assert "one-time" not in everything


async def test_a_star_in_the_name_of_a_disk_is_a_star(provider: AwsProvider) -> None:
    zone = (await offer_of(provider)).zone
    old = await provider.ensure_volume(VolumeSpec(DEPLOYMENT, JOB, "data-old", zone, 8.0))
    assert await provider.ensure_volume(VolumeSpec(DEPLOYMENT, JOB, "data*", zone, 8.0)) != old
    assert await provider.ensure_volume(VolumeSpec(DEPLOYMENT, JOB, "data-old", zone, 8.0)) == old
    await end_all(provider)
