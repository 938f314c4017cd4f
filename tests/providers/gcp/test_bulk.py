"""Gangs that are launched by one call: which are, what comes of it, and what each of its machines knows of itself."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from everstep.model.causes import InstanceEnd
from everstep.model.errors import NoCapacity, ProviderError, QuotaExceeded, Unreachable
from everstep.ports import Launched, LaunchRequest, VolumeSpec
from everstep.providers.gcp import GcpProvider, bulk, errors, naming
from everstep.testing.booting import Machines
from everstep.testing.gce import FakeGce, Supply, World
from everstep.testing.loopback import Asked, Loopback, Reply
from everstep.testing.provider_suite import DEPLOYMENT, JOB

from .conftest import MEANINGS, QUICK, TOKEN, WORLD, MakeFake, MakeProvider
from .test_many import all_ended, requests_of
from .test_provider import DELETE, INSERT, launch

BULK = "compute.instances.bulkInsert"
E2 = ("us-central1-a", "e2-standard-4")
AGENT = b"""import os
with open(os.path.join(os.environ["EVERSTEP_ROOT"], "told.part"), "w") as file:
    file.write(os.environ["EVERSTEP_INSTANCE_ID"] + " " + os.environ["EVERSTEP_TOKEN"])
os.rename(file.name, os.path.join(os.environ["EVERSTEP_ROOT"], "told"))
"""


def scarce(room: int) -> World:
    return replace(WORLD, supplies={**WORLD.supplies, E2: Supply(spot_room=[(0.0, room)])})


def starts(fake: FakeGce) -> tuple[int, int]:
    """Calls for many and calls for one."""
    return fake.counted()[BULK], fake.counted()[INSERT]


async def test_a_gang_is_one_call_and_each_machine_has_its_own_tags(fake: FakeGce, provider: GcpProvider) -> None:
    requests = [replace(r, user_data={"EVERSTEP_TOKEN": f"t-{r.launch_no}"}) for r in await requests_of(provider, 4)]
    made = await launch(provider, *requests)
    assert starts(fake) == (1, 0)
    assert [naming.whose(name).token for name in made] == [r.token for r in requests]  # type: ignore[union-attr]
    listed = {r.id: r for r in await provider.resources(DEPLOYMENT)}
    for name, request in zip(made, requests, strict=True):
        found = listed[name]
        assert (found.token, found.launch_no, found.job) == (request.token, request.launch_no, JOB)
        assert (found.machine_type, found.price_usd_per_h) == ("e2-standard-4", request.offer.price_usd_per_h)
        assert f"{name} {request.launch_no} t-{request.launch_no}\n" in fake.machine(name).metadata[naming.TABLE]
    await all_ended(fake, provider, made)


async def test_a_gang_that_finds_too_little_room_is_nobodys_and_costs_nothing(
    make_fake: MakeFake, make_provider: MakeProvider
) -> None:
    fake = make_fake(scarce(2))
    provider = make_provider(fake)
    with pytest.raises(NoCapacity, match="ZONE_RESOURCE_POOL_EXHAUSTED"):  # not merely that there were too few
        await launch(provider, *await requests_of(provider, 3))
    assert starts(fake) == (1, 0)
    assert fake.counted()[DELETE] == 0, "the vendor took them back itself"
    assert fake.left() == []
    assert fake.meter() == []
    assert await provider.resources(DEPLOYMENT) == []
    assert await make_provider(fake).resources(DEPLOYMENT) == [], "nor does a new process take them for ended ones"


async def test_of_many_that_need_not_be_complete_as_many_start_as_there_is_room_for(
    make_fake: MakeFake, make_provider: MakeProvider
) -> None:
    fake = make_fake(replace(WORLD, quotas={("us-central1", "PREEMPTIBLE_CPUS"): 8}))  # two machines of four
    provider = make_provider(fake)
    requests = await requests_of(provider, 3)
    answers = await provider.launch(requests, all_or_nothing=False)
    assert Counter(type(a) for a in answers) == {Launched: 2, QuotaExceeded: 1}
    (missing,) = [r for r, a in zip(requests, answers, strict=True) if isinstance(a, QuotaExceeded)]
    made = [a.instance for a in answers if isinstance(a, Launched)]
    await all_ended(fake, provider, made)
    (late,) = await launch(provider, missing)  # is no repeat of the call that failed
    assert late not in made
    await all_ended(fake, provider, [late])


async def test_quota_that_does_not_do_for_a_gang_is_told_at_once(
    make_fake: MakeFake, make_provider: MakeProvider
) -> None:
    fake = make_fake(replace(WORLD, quotas={("us-central1", "PREEMPTIBLE_CPUS"): 8}))
    provider = make_provider(fake)
    with pytest.raises(QuotaExceeded, match="PREEMPTIBLE_CPUS"):
        await launch(provider, *await requests_of(provider, 3))
    assert fake.cloud.machines == {}


async def test_what_is_not_alike_has_a_call_of_its_own(fake: FakeGce, provider: GcpProvider) -> None:
    disk = await provider.ensure_volume(VolumeSpec(DEPLOYMENT, JOB, "kept", "us-central1-a", 8.0))
    alike, more, kept, large, other = (await requests_of(provider, 6))[1:]
    different = [
        replace(kept, volume=disk),
        replace(large, disk_gib=60.0),
        replace(other, user_data={**other.user_data, "EVERSTEP_SERVER": "http://elsewhere"}),
    ]
    made = await launch(provider, alike, *different, more)
    assert starts(fake) == (1, 3)
    listed = {r.id: r.launch_no for r in await provider.resources(DEPLOYMENT)}
    assert [listed[name] for name in made] == [2, 4, 5, 6, 3]
    await provider.terminate(made)
    await provider.delete_volume(disk)
    await all_ended(fake, provider, made)


async def test_more_than_go_into_one_call_are_several_calls(
    fake: FakeGce, provider: GcpProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "MOST", 2)
    made = await launch(provider, *await requests_of(provider, 5))
    assert starts(fake) == (2, 1)
    assert len(set(made)) == 5
    await all_ended(fake, provider, made)


@pytest.mark.expensive(family="gce faults")
@pytest.mark.parametrize(("kind", "error"), [*MEANINGS, ("too_few", NoCapacity), ("no_capacity_at_once", NoCapacity)])
async def test_every_error_has_its_meaning_and_the_next_try_is_a_new_one(
    fake: FakeGce, provider: GcpProvider, kind: str, error: type[ProviderError]
) -> None:
    requests = await requests_of(provider, 3)
    fake.fail(BULK, kind)
    with pytest.raises(error):
        await provider.launch(requests, all_or_nothing=True)
    assert fake.left() == []
    made = await launch(provider, *requests)
    assert len(set(made)) == 3
    await all_ended(fake, provider, made)


@pytest.mark.parametrize("fresh", [False, True], ids=["same process", "new process"])
@pytest.mark.parametrize("kind", ["internal", "cut"])
async def test_a_repeat_finds_the_gang_whose_answer_was_lost(
    fake: FakeGce, make_provider: MakeProvider, kind: str, fresh: bool
) -> None:
    first = make_provider(fake)
    requests = await requests_of(first, 3)
    fake.fail(BULK, kind, late=True)
    with pytest.raises(Unreachable):
        await launch(first, *requests)
    made = await launch(make_provider(fake) if fresh else first, *requests)
    assert starts(fake) == (2, 0)
    assert set(made) == {m.name for m in fake.cloud.machines.values()}
    await all_ended(fake, first, made)


async def test_a_gang_of_which_one_is_there_already_is_completed(fake: FakeGce, make_provider: MakeProvider) -> None:
    first, second = make_provider(fake), make_provider(fake)
    requests = await requests_of(first, 3)
    (there,) = await launch(first, requests[1])
    made = await launch(second, *requests)
    assert made[1] == there
    assert len(fake.left()) == len(set(made)) == 3
    await all_ended(fake, second, made)


async def test_a_repeat_after_its_end_raises_no_dead(fake: FakeGce, make_provider: MakeProvider) -> None:
    first = make_provider(fake)
    requests = await requests_of(first, 2)
    made = await launch(first, *requests)
    await all_ended(fake, first, made)
    assert await launch(make_provider(fake), *requests) == made
    assert fake.left() == []


async def test_one_that_was_gone_when_its_launch_was_answered_is_listed_as_ended(
    fake: FakeGce, make_provider: MakeProvider
) -> None:
    first, second = make_provider(fake), make_provider(fake)
    assert await second.resources(DEPLOYMENT) == []  # it does not look back again
    requests = await requests_of(first, 2)
    made = await launch(first, *requests)
    await all_ended(fake, first, made)
    assert await launch(second, *requests) == made
    listed = {r.id: r for r in await second.resources(DEPLOYMENT)}
    assert [(listed[name].alive, listed[name].end) for name in made] == [(False, InstanceEnd.OWNER)] * 2


async def test_one_that_a_list_showed_before_it_was_taken_back_is_listed_to_its_end(
    fake: FakeGce, make_provider: MakeProvider
) -> None:
    provider: Any = make_provider(fake)
    (name,) = await launch(provider, (await requests_of(provider, 1))[0])
    assert [r.id for r in await provider.resources(DEPLOYMENT)] == [name]
    provider._listing.taken_back(name)
    await all_ended(fake, provider, [name])
    assert [(r.id, r.end) for r in await provider.resources(DEPLOYMENT)] == [(name, InstanceEnd.OWNER)]


def test_that_there_are_too_few_is_the_reason_only_if_no_other_is_told() -> None:
    def told(*codes: str) -> ProviderError | None:
        return errors.failed({"error": {"errors": [{"code": code, "message": ""} for code in codes]}})

    assert isinstance(told(errors.TOO_FEW), NoCapacity)
    assert isinstance(told(errors.TOO_FEW, "QUOTA_EXCEEDED"), QuotaExceeded)
    assert isinstance(told("QUOTA_EXCEEDED", errors.TOO_FEW), QuotaExceeded)
    assert told() is None


# --- machines that boot ----------------------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[str]:
    """Serves the agent."""

    def answer(asked: Asked) -> Reply | None:
        return (200, AGENT, {}) if asked.target.endswith(f"{hashlib.sha256(AGENT).hexdigest()}.pyz") else (404, b"", {})

    loopback = Loopback("agents", answer)
    loopback.start()
    yield loopback.url
    loopback.stop()


async def test_each_machine_of_a_call_boots_with_its_own_token(
    tmp_path: Path, make_provider: MakeProvider, server: str
) -> None:
    def booting(request: LaunchRequest) -> LaunchRequest:
        boot = {"EVERSTEP_SERVER": server, "EVERSTEP_AGENT_SHA256": hashlib.sha256(AGENT).hexdigest()}
        return replace(request, user_data={**boot, "EVERSTEP_TOKEN": f"j-1.{request.token}.mac"})

    with FakeGce(WORLD, QUICK, tokens=frozenset({TOKEN}), machines=Machines(tmp_path)) as fake:
        provider: Any = make_provider(fake)
        requests = [booting(r) for r in await requests_of(provider, 3)]
        made = await launch(provider, *requests)
        assert starts(fake) == (1, 0)
        told: set[str] = set()
        async with asyncio.timeout(60):
            while len(told) < 3:
                told = {path.read_text() for path in tmp_path.rglob("told")}
                await asyncio.sleep(0.05)
        assert told == {f"{name} j-1.{r.token}.mac" for name, r in zip(made, requests, strict=True)}
        await all_ended(fake, provider, made)
