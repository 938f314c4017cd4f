from __future__ import annotations

import pytest

from everstep.model.ids import InstanceId
from everstep.model.offers import Offer
from everstep.ports import OfferQuery
from everstep.providers.local import LocalProvider
from everstep.testing.provider_suite import ProviderSuite


@pytest.mark.e2e
class TestLocalProvider(ProviderSuite):
    @pytest.fixture
    async def provider(self, box: LocalProvider) -> LocalProvider:
        return box

    async def scarce_offer(self, provider: LocalProvider) -> tuple[Offer, int]:
        offers = await provider.offers(OfferQuery())
        (offer,) = [o for o in offers if o.zone == "z-b" and o.market == "spot"]
        assert offer.available == 2
        return offer, 2

    async def take_back(self, provider: LocalProvider, instance: InstanceId) -> bool:
        await provider.preempt(instance)
        return True

    async def lose(self, provider: LocalProvider, instance: InstanceId) -> bool:
        await provider.kill(instance)
        return True
