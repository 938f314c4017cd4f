"""Offers with what Compute Engine thinks of them, and without what the project may not hold."""

from __future__ import annotations

import time
from dataclasses import replace

from everstep.model.offers import Market, Offer
from everstep.ports import OfferQuery
from everstep.providers.gcp import GcpProvider, doctor
from tests.providers.gcp.conftest import WORLD, MakeFake, MakeProvider

ASKED = "compute.advice.capacity"


async def offers(provider: GcpProvider) -> dict[tuple[str, str, Market], Offer]:
    return {(o.zone, o.machine.name, o.market): o for o in await provider.offers(OfferQuery())}


async def test_obtainability(make_fake: MakeFake, make_provider: MakeProvider) -> None:
    later = [time.time()]
    fake = make_fake()
    provider = make_provider(fake, now=lambda: later[0])
    found = await offers(provider)
    half = found["us-central1-b", "n1-standard-8+T4:1", Market.SPOT]
    assert (half.advice, half.advice_as_of) == (0.5, later[0])  # room for two of four
    assert found["us-central1-a", "n1-standard-8+T4:1", Market.SPOT].advice == 1.0
    assert found["us-central1-b", "n1-standard-8+T4:1", Market.ON_DEMAND].advice is None
    pools = sum(o.market is Market.SPOT for o in found.values())
    assert fake.counted()[ASKED] == pools
    later[0] += 5 * 3600
    await offers(provider)
    assert fake.counted()[ASKED] == pools
    later[0] += 2 * 3600
    await offers(provider)
    assert fake.counted()[ASKED] == 2 * pools


async def test_what_the_quota_cannot_hold(make_fake: MakeFake, make_provider: MakeProvider) -> None:
    here = "us-central1"
    limits = {(here, "PREEMPTIBLE_NVIDIA_T4_GPUS"): 0, (here, "NVIDIA_T4_GPUS"): 1, (here, "CPUS"): 6}
    found = await offers(make_provider(make_fake(replace(WORLD, quotas=limits))))
    held = {(name, market): (o.available, o.bound) for (_, name, market), o in found.items()}
    assert held["n1-standard-8+T4:1", Market.SPOT] == (0, "quota PREEMPTIBLE_NVIDIA_T4_GPUS: 0")
    assert held["n1-standard-8+T4:1", Market.ON_DEMAND] == (0, "quota CPUS: 6")
    assert held["e2-standard-4", Market.SPOT] == (None, "")


async def test_without_the_right_to_ask_there_are_offers_all_the_same(
    make_fake: MakeFake, make_provider: MakeProvider
) -> None:
    found = await offers(make_provider(make_fake(allowed=frozenset(doctor.PERMISSIONS))))
    assert found
    assert {o.advice for o in found.values()} == {None}
