"""The provider suite over the wire: boto3, HTTP on loopback, the strict fake."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from everstep.model.ids import InstanceId
from everstep.model.offers import Offer
from everstep.ports import OfferQuery
from everstep.providers.aws import AwsProvider
from everstep.testing.ec2 import FakeEc2
from everstep.testing.provider_suite import ProviderSuite


class TestAwsProvider(ProviderSuite):
    poll_s = 0.1

    @pytest.fixture
    async def provider(self, fake: FakeEc2, make_provider: Any) -> Any:
        yield make_provider(fake)
        # Nothing is refused for its form: every request fits botocore's own model of EC2.
        assert [r for r in fake.server.refused if r[0] in ("UnknownParameter", "InvalidAction")] == []
        assert fake.left() == []

    async def scarce_offer(self, provider: AwsProvider) -> tuple[Offer, int]:
        offers = await provider.offers(OfferQuery())
        (offer,) = [o for o in offers if o.zone == "us-east-1b" and o.market == "spot"]
        return offer, 2

    async def take_back(self, provider: Any, instance: InstanceId) -> bool:
        # EC2 does not take back what it does not show yet.
        while time.time() < provider.fake.cloud.machines[instance].visible_at:
            await asyncio.sleep(0.02)
        provider.fake.interrupt(instance)
        return True

    async def lose(self, provider: Any, instance: InstanceId) -> bool:
        provider.fake.lose(instance)
        return True
