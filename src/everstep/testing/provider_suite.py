"""What every provider must do: subclass ``ProviderSuite``, give the fixture ``provider``, and pytest runs the suite.

::

    class TestMyCloud(ProviderSuite):
        @pytest.fixture
        async def provider(self):
            cloud = MyCloud(...)
            yield cloud
            await cloud.close()

The provider must sell at least one spot pool with room for three machines and hold nothing of the suite's deployments.
Needs pytest-asyncio. The hooks below the fixtures give the suite what no port has: a way to make the vendor misbehave.
A hook that is left out skips its tests with that reason; a provider is done when none is skipped.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from everstep.model.causes import InstanceEnd, NoticeKind
from everstep.model.errors import BadRequest, NoCapacity, PriceAboveMax, ProviderError
from everstep.model.ids import DeploymentId, InstanceId, JobId, launch_token
from everstep.model.offers import Market, Offer
from everstep.ports import (
    HistoryQuery,
    Launched,
    LaunchRequest,
    Metered,
    OfferQuery,
    Provider,
    ProviderResource,
    ResourceKind,
    VolumeSpec,
)

DEPLOYMENT = DeploymentId("00000000-0000-4000-8000-00000000c0de")
OTHER_DEPLOYMENT = DeploymentId("00000000-0000-4000-8000-00000000beef")
JOB = JobId("j-conform1")


@pytest.mark.asyncio
class ProviderSuite:
    """The suite; see the module for how to use it.

    Attributes:
        settle_s: how long the provider may take until an accepted change shows in ``resources`` and ``notices``.
        poll_s: how often the suite looks meanwhile.
        user_data: environment for the agents of the suite's machines.
    """

    settle_s: float = 30.0
    poll_s: float = 0.02
    user_data: dict[str, str] = {}  # noqa: RUF012 (a hook: subclasses replace it, nobody changes it)

    # --- fixtures and hooks ------------------------------------------------------------------------------------------

    @pytest.fixture
    async def provider(self) -> Any:
        """The provider under test, empty. Must be given."""
        raise NotImplementedError("give a fixture 'provider' that returns the provider under test")

    async def scarce_offer(self, provider: Any) -> tuple[Offer, int] | None:
        """A pool and how many machines it has left, few; None = cannot be arranged."""
        return None

    async def take_back(self, provider: Any, instance: InstanceId) -> bool:
        """The vendor preempts a machine, with its notice; False = cannot be arranged."""
        return False

    async def lose(self, provider: Any, instance: InstanceId) -> bool:
        """The machine's host dies without notice; False = cannot be arranged."""
        return False

    # --- offers ------------------------------------------------------------------------------------------------------

    async def test_offers_are_sane(self, provider: Provider) -> None:
        """Prices, as-of times, names and billing rules can be relied on."""
        before = time.time()
        offers = await provider.offers(OfferQuery())
        assert offers, "nothing is offered"
        assert len({o.pool for o in offers}) == len(offers), "a pool is offered twice"
        for offer in offers:
            assert offer.provider == provider.name
            assert offer.zone, offer
            assert offer.region, offer
            assert offer.machine.cpus > 0, offer
            assert offer.machine.memory_gib > 0, offer
            assert bool(offer.machine.accelerator) == (offer.machine.accelerator_count > 0), offer
            assert offer.price_usd_per_h >= 0, offer
            assert offer.price_source, offer
            # A price may be a cached one, never one of the future.
            assert before - 7 * 86400 <= offer.price_as_of <= time.time() + 5, offer
            assert offer.billing.granularity_s > 0, offer
            assert offer.billing.time_scale > 0, offer
            assert offer.available is None or offer.available >= 0, offer
            assert offer.notice_s >= 0, offer
            if offer.market is Market.SPOT:
                assert offer.price_usd_per_h <= offer.on_demand_usd_per_h, "spot above on-demand"

    async def test_offers_keep_to_the_query(self, provider: Provider) -> None:
        """Regions and machine types narrow the list; what does not exist gives an empty one."""
        every = await provider.offers(OfferQuery())
        one = every[0]
        narrowed = await provider.offers(OfferQuery(regions=(one.region,), machine_types=(one.machine.name,)))
        wanted = {o.pool for o in every if o.region == one.region and o.machine.name == one.machine.name}
        assert {o.pool for o in narrowed} == wanted
        assert list(await provider.offers(OfferQuery(regions=("no-such-region",)))) == []
        assert list(await provider.offers(OfferQuery(machine_types=("no-such-type",)))) == []

    # --- launch ------------------------------------------------------------------------------------------------------

    async def test_a_launch_shows_in_resources_with_its_tags(self, provider: Provider) -> None:
        """What was launched is listed, with everything the controller needs to recognise it."""
        request = await self.request(provider, launch_no=7)
        (launched,) = await self.launch(provider, request)
        found = await self.instance(provider, launched.instance)
        assert (found.deployment, found.job, found.launch_no, found.token) == (DEPLOYMENT, JOB, 7, request.token)
        assert (found.zone, found.machine_type) == (request.offer.zone, request.offer.machine.name)
        assert found.market is request.offer.market
        assert found.alive
        assert found.ended_at is None
        assert found.end is None
        assert found.started_at == pytest.approx(launched.started_at, abs=1.0)
        assert found.price_usd_per_h == launched.price_usd_per_h
        await self.end_all(provider)

    async def test_another_deployment_sees_nothing_of_it(self, provider: Provider) -> None:
        """Two servers in one account do not see each other's machines, disks and notices."""
        await self.launch(provider, await self.request(provider))
        assert list(await provider.resources(OTHER_DEPLOYMENT)) == []
        assert list(await provider.notices(OTHER_DEPLOYMENT)) == []
        await self.end_all(provider)

    async def test_the_same_token_gives_the_same_machine(self, provider: Provider) -> None:
        """A call repeated after a crash starts nothing new."""
        request = await self.request(provider)
        (first,) = await self.launch(provider, request)
        (again,) = await self.launch(provider, request)
        assert again == first
        assert len(await self.alive(provider)) == 1
        await self.end_all(provider)

    async def test_twenty_calls_at_once_with_one_token_give_one_machine(self, provider: Provider) -> None:
        """Idempotency holds under concurrency."""
        request = await self.request(provider)
        answers = await asyncio.gather(*(self.launch(provider, request) for _ in range(20)))
        assert len({launched.instance for (launched,) in answers}) == 1
        assert len(await self.alive(provider)) == 1
        await self.end_all(provider)

    async def test_a_token_with_other_parameters_is_refused(self, provider: Provider) -> None:
        """As EC2 does: a token belongs to its parameters."""
        request = await self.request(provider)
        await self.launch(provider, request)
        with pytest.raises(BadRequest):
            await self.launch(provider, replace(request, launch_no=99))
        assert len(await self.alive(provider)) == 1
        await self.end_all(provider)

    async def test_a_token_of_an_ended_machine_starts_no_other(self, provider: Provider) -> None:
        """A late repeat must not raise the dead."""
        request = await self.request(provider)
        (first,) = await self.launch(provider, request)
        await self.end_all(provider)
        (again,) = await self.launch(provider, request)
        assert again.instance == first.instance
        assert await self.alive(provider) == []

    async def test_a_zone_that_is_not_there_is_a_bad_request(self, provider: Provider) -> None:
        """What cannot work is told as such."""
        request = await self.request(provider)
        with pytest.raises(BadRequest):
            await self.launch(provider, replace(request, offer=replace(request.offer, zone="no-such-zone")))
        assert await self.alive(provider) == []

    async def test_a_price_above_the_maximum_is_refused(self, provider: Provider) -> None:
        """Never more than ``max_price_usd_per_h`` for spot."""
        request = await self.request(provider)
        if request.offer.price_usd_per_h <= 0:
            pytest.skip("spot is free of charge here")
        low = replace(request, max_price_usd_per_h=request.offer.price_usd_per_h / 2)
        with pytest.raises(PriceAboveMax):
            await self.launch(provider, low)
        assert await self.alive(provider) == []

    async def test_all_or_nothing_starts_nothing_when_one_fails(self, provider: Provider) -> None:
        """A gang that cannot be complete costs nothing."""
        good = await self.request(provider, launch_no=1)
        bad = await self.request(provider, launch_no=2)
        bad = replace(bad, offer=replace(bad.offer, zone="no-such-zone"))
        with pytest.raises(ProviderError):
            await provider.launch([good, bad], all_or_nothing=True)
        assert await self.alive(provider) == []

    async def test_without_all_or_nothing_each_request_has_its_answer(self, provider: Provider) -> None:
        """In the order of the requests: a machine or a typed error."""
        good = await self.request(provider, launch_no=1)
        bad = await self.request(provider, launch_no=2)
        bad = replace(bad, offer=replace(bad.offer, zone="no-such-zone"))
        last = await self.request(provider, launch_no=3)
        first, second, third = await provider.launch([good, bad, last], all_or_nothing=False)
        assert isinstance(first, Launched)
        assert first.token == good.token
        assert isinstance(second, BadRequest)
        assert isinstance(third, Launched)
        assert third.token == last.token
        assert {r.id for r in await self.alive(provider)} == {first.instance, third.instance}
        await self.end_all(provider)

    async def test_a_pool_that_is_empty_has_no_capacity(self, provider: Provider) -> None:
        """The typed error, and with all-or-nothing no machine at all."""
        arranged = await self.scarce_offer(provider)
        if arranged is None:
            pytest.skip("scarce_offer is not arranged")
        offer, left = arranged
        requests = [await self.request(provider, launch_no=n + 1, offer=offer) for n in range(left + 1)]
        with pytest.raises(NoCapacity):
            await provider.launch(requests, all_or_nothing=True)
        assert await self.alive(provider) == []
        answers = await provider.launch(requests, all_or_nothing=False)
        # Which of them are served is the provider's affair: it may ask for several at once.
        assert sum(isinstance(a, Launched) for a in answers) == left
        assert sum(isinstance(a, NoCapacity) for a in answers) == 1
        await self.end_all(provider)

    # --- ends --------------------------------------------------------------------------------------------------------

    async def test_terminate_ends_and_is_remembered(self, provider: Provider) -> None:
        """An ended machine stays listed with its end and cause; nothing of it is alive."""
        (launched,) = await self.launch(provider, await self.request(provider))
        await self.end_all(provider)
        found = await self.instance(provider, launched.instance)
        assert not found.alive
        assert found.end is InstanceEnd.OWNER
        assert found.ended_at is not None
        assert launched.started_at <= found.ended_at <= time.time() + 5

    async def test_terminate_twice_and_of_the_unknown_is_no_error(self, provider: Provider) -> None:
        """The controller repeats itself after a crash."""
        (launched,) = await self.launch(provider, await self.request(provider))
        await provider.terminate([launched.instance, InstanceId("i-nobody"), launched.instance])
        await self.end_all(provider)
        ended = await self.instance(provider, launched.instance)
        await provider.terminate([launched.instance])
        await provider.terminate([])
        assert await self.instance(provider, launched.instance) == ended

    async def test_terminate_leaves_the_others_alone(self, provider: Provider) -> None:
        """Only what was named ends."""
        requests = [await self.request(provider, launch_no=n) for n in (1, 2)]
        first, second = await self.launch(provider, *requests)
        await provider.terminate([first.instance])
        await self.until(lambda alive: len(alive) == 1, provider)
        assert [r.id for r in await self.alive(provider)] == [second.instance]
        await self.end_all(provider)

    async def test_a_preemption_is_announced_and_recorded(self, provider: Provider) -> None:
        """Notice first, then the end, with its cause."""
        (launched,) = await self.launch(provider, await self.request(provider))
        assert list(await provider.notices(DEPLOYMENT)) == []
        if not await self.take_back(provider, launched.instance):
            await self.end_all(provider)
            pytest.skip("take_back is not arranged")
        (notice,) = await provider.notices(DEPLOYMENT)
        assert (notice.instance, notice.kind) == (launched.instance, NoticeKind.TERMINATE)
        assert notice.deadline is not None
        assert (await self.instance(provider, launched.instance)).alive, "gone before its notice ran out"
        await self.until(lambda alive: not alive, provider)
        found = await self.instance(provider, launched.instance)
        assert found.end is InstanceEnd.PREEMPTED
        assert found.ended_at is not None
        assert found.ended_at >= notice.deadline - 0.001
        assert list(await provider.notices(DEPLOYMENT)) == []

    async def test_an_owner_who_is_faster_than_the_preemption_ended_it(self, provider: Provider) -> None:
        """The statistics must not count what we stopped ourselves."""
        (launched,) = await self.launch(provider, await self.request(provider))
        if not await self.take_back(provider, launched.instance):
            await self.end_all(provider)
            pytest.skip("take_back is not arranged")
        await self.end_all(provider)
        assert (await self.instance(provider, launched.instance)).end is InstanceEnd.OWNER

    async def test_a_lost_host_is_told_as_lost(self, provider: Provider) -> None:
        """No notice, and a cause of its own."""
        (launched,) = await self.launch(provider, await self.request(provider))
        if not await self.lose(provider, launched.instance):
            await self.end_all(provider)
            pytest.skip("lose is not arranged")
        await self.until(lambda alive: not alive, provider)
        assert (await self.instance(provider, launched.instance)).end is InstanceEnd.LOST

    # --- disks -------------------------------------------------------------------------------------------------------

    async def test_ensure_volume_is_idempotent_by_name(self, provider: Provider) -> None:
        """The same name is the same disk; it is listed and costs."""
        spec = await self.volume_spec(provider)
        volume = await provider.ensure_volume(spec)
        assert await provider.ensure_volume(spec) == volume
        assert await provider.ensure_volume(replace(spec, name="another")) != volume
        found = {r.id: r for r in await provider.resources(DEPLOYMENT) if r.kind is ResourceKind.VOLUME}
        assert len(found) == 2
        assert (found[volume].zone, found[volume].size_gib, found[volume].job) == (spec.zone, spec.size_gib, JOB)
        assert found[volume].attached_to is None
        await self.end_all(provider)

    async def test_a_volume_is_attached_to_one_machine_at_a_time(self, provider: Provider) -> None:
        """And is free again when that has ended, whatever it ended by."""
        volume = await provider.ensure_volume(await self.volume_spec(provider))
        first = replace(await self.request(provider, launch_no=1), volume=volume)
        second = replace(await self.request(provider, launch_no=2), volume=volume)
        (launched,) = await self.launch(provider, first)
        found = {r.id: r for r in await provider.resources(DEPLOYMENT)}
        assert found[volume].attached_to == launched.instance
        with pytest.raises(BadRequest):
            await self.launch(provider, second)
        with pytest.raises(BadRequest):
            await provider.delete_volume(volume)
        await provider.terminate([launched.instance])
        await self.until(lambda alive: not alive, provider)
        await self.launch(provider, second)
        await self.end_all(provider)

    async def test_a_volume_stays_in_its_zone(self, provider: Provider) -> None:
        """Attaching across zones is refused."""
        request = await self.request(provider)
        zones = {o.zone for o in await provider.offers(OfferQuery())} - {request.offer.zone}
        if not zones:
            pytest.skip("the provider has one zone only")
        spec = replace(await self.volume_spec(provider), zone=min(zones))
        volume = await provider.ensure_volume(spec)
        with pytest.raises(BadRequest):
            await self.launch(provider, replace(request, volume=volume))
        assert await self.alive(provider) == []
        await self.end_all(provider)

    async def test_deleting_a_volume_twice_is_no_error(self, provider: Provider) -> None:
        """And it no longer counts as alive; its name is free again."""
        spec = await self.volume_spec(provider)
        volume = await provider.ensure_volume(spec)
        await provider.delete_volume(volume)
        await provider.delete_volume(volume)
        alive = [r for r in await provider.resources(DEPLOYMENT) if r.alive]
        assert alive == []
        assert await provider.ensure_volume(spec) != volume
        await self.end_all(provider)

    # --- history and meter -------------------------------------------------------------------------------------------

    async def test_history_is_ordered_and_about_what_was_asked(self, provider: Provider) -> None:
        """Oldest first, no point from the future or of another pool."""
        pools = tuple(o.pool for o in await provider.offers(OfferQuery()))[:3]
        since = time.time() - 3600
        points = await provider.history(HistoryQuery(pools, since))
        assert [p.at for p in points] == sorted(p.at for p in points)
        for point in points:
            assert point.pool in pools
            assert since - 1 <= point.at <= time.time() + 5
            assert point.price_usd_per_h is None or point.price_usd_per_h >= 0
            assert point.available is None or point.available >= 0

    async def test_the_meter_agrees_with_resources(self, provider: Provider) -> None:
        """One charge per machine, from its start to its end, by the billing rule of its offer."""
        if not isinstance(provider, Metered):
            pytest.skip("the provider keeps no meter")
        request = await self.request(provider)
        (launched,) = await self.launch(provider, request)
        await self.end_all(provider)
        found = await self.instance(provider, launched.instance)
        (charge,) = [c for c in await provider.meter(DEPLOYMENT) if c["resource"] == launched.instance]
        assert (charge["kind"], charge["start"], charge["end"]) == ("compute", found.started_at, found.ended_at)
        assert charge["price_usd"] == launched.price_usd_per_h
        assert found.ended_at is not None
        lived_s = found.ended_at - found.started_at
        cost_usd = request.offer.billing.cost_usd(lived_s, launched.price_usd_per_h, reclaimed=False)
        assert charge["cost_usd"] == pytest.approx(cost_usd, rel=1e-9)

    # --- what the tests say things with ------------------------------------------------------------------------------

    async def request(self, provider: Provider, *, launch_no: int = 1, offer: Offer | None = None) -> LaunchRequest:
        """A launch in the first spot pool that has room."""
        if offer is None:
            spot = [o for o in await provider.offers(OfferQuery()) if o.market is Market.SPOT]
            roomy = [o for o in spot if o.available is None or o.available >= 3]
            assert roomy, "the suite needs a spot pool with room for three machines"
            offer = roomy[0]
        return LaunchRequest(
            token=launch_token(DEPLOYMENT, JOB, launch_no, offer.key),
            deployment=DEPLOYMENT,
            job=JOB,
            launch_no=launch_no,
            offer=offer,
            max_price_usd_per_h=None,
            user_data=self.user_data,
        )

    async def volume_spec(self, provider: Provider) -> VolumeSpec:
        """A disk in the zone that ``request`` uses."""
        zone = (await self.request(provider)).offer.zone
        return VolumeSpec(DEPLOYMENT, JOB, f"{JOB}-slot-0", zone, 8.0)

    async def launch(self, provider: Provider, *requests: LaunchRequest) -> Sequence[Launched]:
        """All of them, or the error."""
        answers = await provider.launch(requests, all_or_nothing=True)
        launched = [a for a in answers if isinstance(a, Launched)]
        assert len(launched) == len(requests), answers
        return launched

    async def instance(self, provider: Provider, instance: InstanceId) -> ProviderResource:
        """The provider's truth about one machine."""
        found = [r for r in await provider.resources(DEPLOYMENT) if r.id == instance]
        assert len(found) == 1, f"{instance} is listed {len(found)} times"
        return found[0]

    async def alive(self, provider: Provider) -> list[ProviderResource]:
        """Machines that are there."""
        resources = await provider.resources(DEPLOYMENT)
        return [r for r in resources if r.kind is ResourceKind.INSTANCE and r.alive]

    async def until(self, done: Callable[[list[ProviderResource]], bool], provider: Provider) -> None:
        """Waits until the live machines are as wanted; fails after ``settle_s``."""
        for _ in itertools.takewhile(lambda i: i * self.poll_s < self.settle_s, itertools.count()):
            if done(await self.alive(provider)):
                return
            await asyncio.sleep(self.poll_s)
        raise AssertionError(f"after {self.settle_s} s these are alive: {await self.alive(provider)}")

    async def end_all(self, provider: Provider) -> None:
        """Ends what the test made, and makes sure that nothing that costs is left."""
        await provider.terminate([InstanceId(r.id) for r in await self.alive(provider)])
        await self.until(lambda alive: not alive, provider)
        for resource in await provider.resources(DEPLOYMENT):
            if resource.kind is ResourceKind.VOLUME and resource.alive:
                await provider.delete_volume(resource.id)  # type: ignore[arg-type]
        left = [r for r in await provider.resources(DEPLOYMENT) if r.alive]
        assert left == [], "something that costs is left"
