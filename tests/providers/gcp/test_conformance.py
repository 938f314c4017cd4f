"""The provider suite over the wire: google-cloud-compute, HTTP on loopback, the strict fake."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from everstep.model.handshake import BOOT_TOKEN
from everstep.model.ids import InstanceId
from everstep.model.offers import Offer
from everstep.ports import OfferQuery
from everstep.providers.gcp import GcpProvider
from everstep.testing.gce import FakeGce
from everstep.testing.provider_suite import ProviderSuite


class TestGcpProvider(ProviderSuite):
    poll_s = 0.1
    user_data = {BOOT_TOKEN: "one-time"}  # noqa: RUF012 (with one, machines that are alike are made by one call)

    @pytest.fixture
    async def provider(self, fake: FakeGce, make_provider: Any) -> Any:
        yield make_provider(fake)
        # Nothing is refused for its form: every request fits the vendor's own description of the API.
        assert [r for r in fake.server.refused if r[2] in ("badRequest", "required", "parseError")] == []
        for _ in range(100):  # a machine that is over is being deleted, and that takes a moment
            if not fake.left():
                break
            await asyncio.sleep(0.05)
        assert fake.left() == []

    async def scarce_offer(self, provider: GcpProvider) -> tuple[Offer, int]:
        offers = await provider.offers(OfferQuery())
        (offer,) = [o for o in offers if o.zone == "us-central1-b" and o.market == "spot"]
        return offer, 2

    async def take_back(self, provider: Any, instance: InstanceId) -> bool:
        while provider.fake.machine(instance).status(provider.fake.cloud.now()) != "RUNNING":
            await asyncio.sleep(0.02)
        provider.fake.preempt(instance)
        return True

    async def lose(self, provider: Any, instance: InstanceId) -> bool:
        provider.fake.lose(instance)
        return True
