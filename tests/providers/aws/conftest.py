from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any

import pytest

from everstep.model.ids import DeploymentId
from everstep.providers.aws import AwsProvider
from everstep.providers.aws.tags import DEPLOYMENT
from everstep.testing.ec2 import FakeEc2, Supply, Timing, World
from tests.vendors import AWS_KEY, fakes

QUICK = Timing(notice_s=2.0, boot_s=0.1, shut_down_s=0.2, hidden_s=0.15)
WORLD = World(
    supplies={
        ("us-east-1a", "g4dn.xlarge"): Supply([(0.0, 0.17)]),
        ("us-east-1b", "g4dn.xlarge"): Supply([(0.0, 0.19)], spot_room=[(0.0, 2)]),
        ("us-east-1a", "m5.large"): Supply([(0.0, 0.04)]),
    },
    on_demand_usd_per_h={"g4dn.xlarge": 0.526, "m5.large": 0.096},
)

MakeProvider = Callable[..., AwsProvider]
MakeFake = Callable[..., FakeEc2]


class MeteredAws(AwsProvider):
    """With the fake's own meter, so that the suite compares the two."""

    fake: FakeEc2

    async def meter(self, deployment: DeploymentId) -> Sequence[Mapping[str, Any]]:
        return self.fake.meter(tag=(DEPLOYMENT, deployment))


@pytest.fixture
def make_fake() -> Iterator[MakeFake]:
    with fakes(partial(FakeEc2, access_keys=frozenset({AWS_KEY})), WORLD, QUICK) as make:
        yield make


@pytest.fixture
def fake(make_fake: MakeFake) -> FakeEc2:
    return make_fake()


@pytest.fixture
async def make_provider() -> AsyncIterator[MakeProvider]:
    made: list[AwsProvider] = []

    def make(fake: FakeEc2, *, regions: Sequence[str] = ("us-east-1",), **options: Any) -> AwsProvider:
        given: dict[str, Any] = {"types": ["g4dn.*", "m5.large"], "look_s": 0.05, "notice_s": QUICK.notice_s}
        provider = MeteredAws(regions, endpoint_url=fake.url, rng=Random(1), **{**given, **options})
        provider.fake = fake
        made.append(provider)
        return provider

    yield make
    for provider in made:
        provider.close()


@pytest.fixture
def provider(fake: FakeEc2, make_provider: MakeProvider) -> AwsProvider:
    return make_provider(fake)
