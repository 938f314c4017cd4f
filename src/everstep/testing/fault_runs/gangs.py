"""All-or-nothing launches in bad weather, by a caller that repeats them, dies in the middle, and repeats them again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, TypeVar

from everstep.model.errors import NoCapacity, ProviderError, Throttled, Unreachable
from everstep.model.ids import InstanceId, JobId, launch_token
from everstep.model.offers import Market, Offer
from everstep.ports import Launched, LaunchRequest, OfferQuery
from everstep.testing.fault_runs.run import START, Vendor
from everstep.testing.fault_runs.weather import Sure, Weather, run_in_weather
from everstep.testing.scripted_run import DEPLOYMENT
from everstep.testing.virtual import VirtualClock

T = TypeVar("T")
_SIZE = 3
_PATIENCE_S = 1200.0


def play_gangs(vendor: Vendor, seed: int, *, sure: Sure | None = None) -> list[str]:
    """Gangs of three in a zone that has room for four, two at a time. Returns what is wrong in the end.

    Args:
        vendor: a fresh one.
        seed: of the weather and of when the caller dies.
        sure: a fault that is certain to be met; that it was not is wrong, too.
    """
    rng = Random(seed)
    weather = Weather(Random(rng.getrandbits(64)), vendor.kinds, sure=sure, share=0.12)

    async def main(clock: VirtualClock) -> list[str]:
        vendor.start(clock)
        vendor.faults.weather = weather.meets
        try:
            callers = [_Caller(vendor, clock, rng, number) for number in (1, 2)]
            await asyncio.gather(*(caller.run() for caller in callers))
            weather.calm = True
            await clock.sleep(200.0)  # what was asked for and comes late is there by now
            for _ in range(2):  # machines first, then the groups that they were in
                for caller in callers:
                    await caller.sweep()
                await clock.sleep(60.0)
            wrong = [problem for caller in callers for problem in caller.problems]
            if sure is not None and not weather.met[sure.call, sure.kind, sure.late]:
                wrong.append(f"never met: {sure}")
            return [*wrong, *vendor.trouble(), *(f"left behind: {one}" for one in sorted(vendor.left()))]
        finally:
            vendor.stop()

    return run_in_weather(main, weather, start=START)


class _Caller:
    """Does what the controller does with a gang, and ends what it got."""

    def __init__(self, vendor: Vendor, clock: VirtualClock, rng: Random, number: int) -> None:
        self.problems: list[str] = []
        self._vendor = vendor
        self._clock = clock
        self._rng = rng
        self._job = JobId(f"g-{number}")
        self._tokens: set[str] = set()
        self._held: set[str] = set()
        self._provider: Any = vendor.provider(Random(rng.getrandbits(64)))

    async def run(self) -> None:
        """Two gangs, one after the other."""
        for number in range(2):
            offer = await self._offer()
            requests = [self._request(offer, 10 * number + n) for n in range(_SIZE)]
            made = await self._gang(requests)
            await self._check(requests, made)
            if made:
                ids = [m.instance for m in made]
                self._held = set()
                await self._known(lambda ids=ids: self._provider.terminate(ids))  # type: ignore[misc]
                await self._gone({str(i) for i in ids})

    async def sweep(self) -> None:
        """As the controller's: what lives under a token of ours and is no machine of ours is ended."""
        found = await self._known(lambda: self._provider.resources(DEPLOYMENT))
        strays = [InstanceId(r.id) for r in found if r.alive and r.token in self._tokens and r.id not in self._held]
        if strays:
            await self._known(lambda: self._provider.terminate(strays))

    async def _offer(self) -> Offer:
        offers: list[Offer] = list(await self._known(lambda: self._provider.offers(OfferQuery())))
        return min((o for o in offers if o.market is Market.SPOT), key=lambda o: o.zone)

    def _request(self, offer: Offer, number: int) -> LaunchRequest:
        token = launch_token(DEPLOYMENT, self._job, number, offer.key)
        boot = {"EVERSTEP_SERVER": "http://127.0.0.1:1", "EVERSTEP_TOKEN": "one-time"}
        return LaunchRequest(token, DEPLOYMENT, self._job, number, offer, None, boot, gang=_SIZE)

    async def _gang(self, requests: list[LaunchRequest]) -> list[Launched]:
        """The machines; none if the vendor refused them."""
        try:
            return list(await self._known(lambda: self._provider.launch(requests, all_or_nothing=True), dies=True))
        except NoCapacity:
            return []
        except ProviderError:
            return []

    async def _known(self, call: Callable[[], Awaitable[T]], *, dies: bool = False) -> T:
        """Repeats until the outcome is known; now and then the process dies while it waits, and another one repeats."""
        end = self._clock.now() + _PATIENCE_S
        while True:
            limit_s = self._rng.uniform(0.1, 8.0) if dies and self._rng.random() < 0.4 else None
            try:
                return await asyncio.wait_for(call(), limit_s)
            except TimeoutError:
                self._provider.close()
                self._provider = self._vendor.provider(Random(self._rng.getrandbits(64)))
            except (Throttled, Unreachable):
                pass
            except ProviderError:
                if dies or self._clock.now() > end:
                    raise
            await self._clock.sleep(self._rng.uniform(0.2, 5.0))

    async def _check(self, requests: list[LaunchRequest], made: list[Launched]) -> None:
        """Either the whole gang is there, once, or nothing of it stays."""
        self._held = ids = {str(m.instance) for m in made}
        tokens = {str(r.token) for r in requests}
        self._tokens |= tokens
        if made and len(ids) != len(requests):
            self.problems.append(f"{len(ids)} machines for {len(requests)} requests: {sorted(ids)}")
        others = {str(m.instance) for m in self._vendor.machines() if m.token in tokens} - ids
        await self._gone(others)

    async def _gone(self, ids: set[str]) -> None:
        end = self._clock.now() + _PATIENCE_S
        while alive := [m.instance for m in self._vendor.machines() if m.instance in ids and not m.over]:
            if self._clock.now() > end:
                self.problems.append(f"{InstanceId(alive[0])} goes on, and nobody has it")
                return
            await self._clock.sleep(5.0)
            await self.sweep()
