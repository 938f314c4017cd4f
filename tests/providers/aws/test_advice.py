"""Offers with what EC2 thinks of them, and without what the account may not hold."""

from __future__ import annotations

import time
from dataclasses import replace

from everstep.model.offers import Market, Offer
from everstep.ports import OfferQuery
from everstep.providers.aws import AwsProvider
from everstep.testing.ec2 import Supply, World
from tests.providers.aws.conftest import WORLD, MakeFake, MakeProvider
from tests.providers.aws.test_policy import actions

THREE = World(
    supplies={
        ("us-east-1a", "g4dn.xlarge"): Supply([(0.0, 0.17)], spot_room=[(0.0, 2)]),
        ("us-east-1a", "g4dn.2xlarge"): Supply([(0.0, 0.25)], spot_room=[(0.0, 0)]),
        ("us-east-1b", "g4dn.4xlarge"): Supply([(0.0, 0.5)]),
        ("us-east-1b", "m5.large"): Supply([(0.0, 0.04)]),
    },
    on_demand_usd_per_h={"g4dn.xlarge": 0.526, "g4dn.2xlarge": 0.752, "g4dn.4xlarge": 1.204, "m5.large": 0.096},
)


async def offers(provider: AwsProvider) -> dict[tuple[str, str, Market], Offer]:
    return {(o.zone, o.machine.name, o.market): o for o in await provider.offers(OfferQuery())}


async def test_scores_of_zones(make_fake: MakeFake, make_provider: MakeProvider) -> None:
    later = [time.time()]
    fake = make_fake(THREE)
    provider = make_provider(fake, now=lambda: later[0])
    found = await offers(provider)
    t4 = found["us-east-1a", "g4dn.xlarge", Market.SPOT]
    assert (t4.advice, t4.advice_as_of) == (0.5, later[0])  # room for two of four
    assert found["us-east-1b", "g4dn.4xlarge", Market.SPOT].advice == 1.0
    # Of one or two types the score "will always be low": not asked for; and it is about spot alone.
    assert found["us-east-1b", "m5.large", Market.SPOT].advice is None
    assert found["us-east-1a", "g4dn.xlarge", Market.ON_DEMAND].advice is None
    asked = fake.counted()
    assert (asked["GetSpotPlacementScores"], asked["DescribeAvailabilityZones"]) == (1, 1)
    later[0] += 5 * 3600
    await offers(provider)
    assert fake.counted()["GetSpotPlacementScores"] == 1
    later[0] += 2 * 3600
    await offers(provider)
    assert (fake.counted() - asked)["GetSpotPlacementScores"] == 1
    assert fake.counted()["DescribeAvailabilityZones"] == 1


async def test_what_the_quota_cannot_hold(make_fake: MakeFake, make_provider: MakeProvider) -> None:
    later = [time.time()]
    fake = make_fake(replace(THREE, spot_vcpus=4, on_demand_vcpus=16))
    provider = make_provider(fake, now=lambda: later[0])
    found = await offers(provider)
    held = {(name, market): (o.available, o.bound) for (_, name, market), o in found.items()}
    assert held["g4dn.xlarge", Market.SPOT] == (None, "")
    assert held["g4dn.2xlarge", Market.SPOT] == (0, "quota G and VT, spot: 4 vCPUs")
    assert held["g4dn.4xlarge", Market.SPOT] == (0, "quota G and VT, spot: 4 vCPUs")
    assert {held[name, Market.ON_DEMAND] for name in ("g4dn.2xlarge", "g4dn.4xlarge")} == {(None, "")}
    fake.cloud.world = replace(THREE, spot_vcpus=8)  # the vendor has given more
    later[0] += 3601
    assert (await offers(provider))["us-east-1a", "g4dn.2xlarge", Market.SPOT].bound == ""


async def test_without_the_right_to_look_there_are_offers_all_the_same(
    make_fake: MakeFake, make_provider: MakeProvider
) -> None:
    fake = make_fake(replace(THREE, spot_vcpus=4), allowed=frozenset(actions()))
    found = await offers(make_provider(fake))
    assert len(found) == 8
    assert {(o.bound, o.advice) for o in found.values()} == {("", None)}
    fake = make_fake(WORLD)
    fake.fail("ListServiceQuotas", "throttle", times=20)
    assert await offers(make_provider(fake))
