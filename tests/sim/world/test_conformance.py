"""The simulated cloud is a provider like any other: it passes the suite, in the time of an ordinary loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from everstep.model.causes import InstanceEnd
from everstep.model.ids import InstanceId
from everstep.model.offers import Market, Offer
from everstep.ports import OfferQuery
from everstep.sim.world.cloud import SimulatedCloud
from everstep.sim.world.conditions import Conditions
from everstep.sim.world.supply import Lot
from everstep.testing.provider_suite import ProviderSuite
from tests.sim.world.made import V100, supply


class RealStage:
    """Real time, for a suite that waits in real time."""

    def now(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def after(self, delay_s: float, act: Callable[[], object]) -> Callable[[], None]:
        return asyncio.get_running_loop().call_later(delay_s, act).cancel

    def spawn(self, work: Coroutine[Any, Any, None], name: str = "") -> object:
        return asyncio.get_running_loop().create_task(work)


class TestSimulatedCloud(ProviderSuite):
    settle_s = 5.0

    @pytest.fixture
    async def provider(self) -> SimulatedCloud:
        began = time.time() - 1800.0
        lots = [
            Lot("z-a", "r1", V100, 3.0, supply([9, 8, 8, 7, 7], begins_at=began)),
            Lot("z-b", "r2", V100, 3.0, supply([2], price=1.5, begins_at=began)),
        ]
        return SimulatedCloud(lots, RealStage(), conditions=Conditions(answer_s=0.01, end_s=0.01, notice_s=0.1))

    async def scarce_offer(self, provider: SimulatedCloud) -> tuple[Offer, int]:
        offers = await provider.offers(OfferQuery())
        (offer,) = [o for o in offers if o.zone == "z-b" and o.market is Market.SPOT]
        assert offer.available == 2
        return offer, 2

    async def take_back(self, provider: SimulatedCloud, instance: InstanceId) -> bool:
        provider.take_back(provider.machines[instance])
        return True

    async def lose(self, provider: SimulatedCloud, instance: InstanceId) -> bool:
        provider.end(provider.machines[instance], InstanceEnd.LOST)
        return True
