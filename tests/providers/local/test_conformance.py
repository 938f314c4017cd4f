from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest

from everstep.model.ids import InstanceId, LaunchToken, VolumeId
from everstep.model.offers import Offer
from everstep.ports import Launched, LaunchRequest, OfferQuery, ProviderResource, VolumeSpec
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


_NUMBERS = itertools.count()


class Broken(LocalProvider):
    """A box whose promises are broken one by one."""

    fault = ""

    async def offers(self, query: OfferQuery) -> Sequence[Offer]:
        offers = await super().offers(query)
        if self.fault == "dear spot":
            return [replace(o, price_usd_per_h=o.on_demand_usd_per_h * 2) for o in offers]
        return offers

    async def launch(
        self, requests: Sequence[LaunchRequest], *, all_or_nothing: bool
    ) -> Sequence[Launched | Exception]:
        if self.fault == "tokens ignored":
            requests = [replace(r, token=LaunchToken(f"{next(_NUMBERS)}")) for r in requests]
        return await super().launch(requests, all_or_nothing=all_or_nothing and self.fault != "some will do")

    async def resources(self, deployment: str) -> Sequence[ProviderResource]:  # type: ignore[override]
        found = await super().resources(deployment)  # type: ignore[arg-type]
        return [r for r in found if r.alive] if self.fault == "forgetful" else found

    async def ensure_volume(self, spec: VolumeSpec) -> VolumeId:
        name = f"v{next(_NUMBERS)}" if self.fault == "disks doubled" else spec.name
        return await super().ensure_volume(replace(spec, name=name))


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("fault", "test"),
    [
        ("dear spot", "test_offers_are_sane"),
        ("tokens ignored", "test_the_same_token_gives_the_same_machine"),
        ("tokens ignored", "test_twenty_calls_at_once_with_one_token_give_one_machine"),
        ("some will do", "test_all_or_nothing_starts_nothing_when_one_fails"),
        ("forgetful", "test_terminate_ends_and_is_remembered"),
        ("disks doubled", "test_ensure_volume_is_idempotent_by_name"),
    ],
)
async def test_the_suite_catches_a_provider_that_breaks_its_promises(box: LocalProvider, fault: str, test: str) -> None:
    await box.status()
    broken = Broken(box.home)
    await getattr(ProviderSuite(), test)(broken)
    await box.stop()
    await box.status()
    broken = Broken(box.home)
    broken.fault = fault
    suite = ProviderSuite()
    suite.settle_s = 2.0
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        await getattr(suite, test)(broken)
