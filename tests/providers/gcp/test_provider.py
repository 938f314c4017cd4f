"""What the provider makes of the vendor's ways, over the wire."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from everstep.model.causes import InstanceEnd, NoticeKind
from everstep.model.errors import BadInput, NoCapacity, NotAuthorized, ProviderError, Unauthorized, Unreachable
from everstep.model.ids import InstanceId, launch_token
from everstep.model.offers import Market, Offer
from everstep.ports import HistoryQuery, Launched, LaunchRequest, OfferQuery, ProviderResource, ResourceKind, VolumeSpec
from everstep.providers.gcp import GcpProvider, doctor, naming
from everstep.providers.gcp.lives import SPREAD_S, planned_end
from everstep.testing.gce import FakeGce, Rate, Supply
from everstep.testing.provider_suite import DEPLOYMENT, JOB, OTHER_DEPLOYMENT

from .conftest import MEANINGS, T4, TOKEN, WORLD, MakeFake, MakeProvider

INSERT, DELETE = "compute.instances.insert", "compute.instances.delete"


async def offer_of(provider: GcpProvider, kind: str = "e2-standard-4", market: Market = Market.SPOT) -> Offer:
    offers = await provider.offers(OfferQuery(machine_types=(kind,)))
    return next(o for o in offers if o.market is market)


async def request_of(provider: GcpProvider, launch_no: int = 1, **changes: Any) -> LaunchRequest:
    offer = changes.pop("offer", None) or await offer_of(provider)
    token = launch_token(DEPLOYMENT, JOB, launch_no, offer.key)
    return LaunchRequest(token, DEPLOYMENT, JOB, launch_no, offer, None, {"EVERSTEP_TOKEN": "one-time"}, **changes)


async def launch(provider: GcpProvider, *requests: LaunchRequest) -> list[InstanceId]:
    answers = await provider.launch(requests, all_or_nothing=True)
    return [a.instance for a in answers if isinstance(a, Launched)]


async def listed(provider: GcpProvider, instance: str) -> ProviderResource:
    (found,) = [r for r in await provider.resources(DEPLOYMENT) if r.id == instance]
    return found


async def ended(provider: GcpProvider, instance: str) -> ProviderResource:
    while (found := await listed(provider, instance)).alive:
        await asyncio.sleep(0.03)
    return found


# --- offers ----------------------------------------------------------------------------------------------------------


async def test_a_machine_costs_what_its_parts_cost(provider: GcpProvider) -> None:
    offers = {(o.machine.name, o.zone, o.market): o for o in await provider.offers(OfferQuery())}
    n1 = offers["n1-standard-8+T4:1", "us-central1-a", Market.ON_DEMAND]
    assert n1.price_usd_per_h == pytest.approx(8 * 0.032 + 30 * 0.004 + 0.35)
    g2 = offers["g2-standard-8", "us-central1-a", Market.SPOT]
    assert g2.price_usd_per_h == pytest.approx(8 * 0.010 + 32 * 0.001 + 0.22)
    assert g2.on_demand_usd_per_h == pytest.approx(8 * 0.025 + 32 * 0.003 + 0.56)
    assert (g2.machine.accelerator, g2.machine.accelerator_count, g2.machine.memory_gib) == ("L4", 1, 32.0)
    assert (g2.billing.minimum_s, g2.billing.free_if_reclaimed_within_s, g2.notice_s) == (60.0, 60.0, 30.0)
    assert g2.max_life_s is None
    assert ("g2-standard-8", "us-central1-b", Market.SPOT) not in offers


async def test_what_has_no_price_is_not_offered(make_fake: MakeFake, make_provider: MakeProvider) -> None:
    rates = {**WORLD.rates, ("", "nvidia-l4"): Rate(0.0, [(0.0, 0.0)])}
    provider = make_provider(make_fake(replace(WORLD, rates=rates)))
    assert not await provider.offers(OfferQuery(machine_types=("g2-standard-8",)))
    assert await provider.offers(OfferQuery(machine_types=("e2-standard-4",)))


async def test_old_preemptibles_live_a_day(make_fake: MakeFake, make_provider: MakeProvider) -> None:
    fake = make_fake(hidden_s=0.0)
    provider = make_provider(fake, legacy_preemptible=True)
    offer = await offer_of(provider)
    assert offer.max_life_s == 86_400.0
    (instance,) = await launch(provider, await request_of(provider, offer=offer))
    scheduling = fake.machine(instance).scheduling
    assert (scheduling["preemptible"], scheduling["provisioningModel"]) == (True, "STANDARD")
    fake.machine(instance).runs_at -= 86_000.0
    fresh = make_provider(fake, legacy_preemptible=True)
    await fresh.resources(DEPLOYMENT)
    (notice,) = await fresh.notices(DEPLOYMENT)
    assert (notice.instance, notice.kind) == (instance, NoticeKind.MAX_LIFE)
    end = planned_end(fake.machine(instance).runs_at, 86_400.0, deployment=DEPLOYMENT, job=JOB)
    assert notice.deadline == pytest.approx(end, abs=0.01)
    assert 0 <= fake.machine(instance).runs_at + 86_400.0 - end < SPREAD_S
    await provider.terminate([instance])


async def test_history_is_the_list_price_by_interval(make_fake: MakeFake, make_provider: MakeProvider) -> None:
    now = time.time()
    rates = {**WORLD.rates, ("", "nvidia-tesla-t4"): Rate(0.35, [(0.0, 0.10), (now - 7200, 0.12), (now - 60, 0.14)])}
    provider = make_provider(make_fake(replace(WORLD, rates=rates)))
    offer = await offer_of(provider, "n1-standard-8+T4:1")
    points = await provider.history(HistoryQuery((offer.pool,), now - 3600))
    rest = 8 * 0.007 + 30 * 0.001
    assert [p.price_usd_per_h for p in points] == pytest.approx([rest + 0.12, rest + 0.14])
    assert [p.at for p in points] == pytest.approx([now - 3600, now - 60], abs=0.01)


# --- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.expensive(family="gce faults")
@pytest.mark.parametrize(("kind", "error"), [*MEANINGS, ("stock_out_plain", NoCapacity)])
async def test_each_refusal_has_its_meaning_and_the_next_try_succeeds(
    fake: FakeGce, provider: GcpProvider, kind: str, error: type[ProviderError]
) -> None:
    request = await request_of(provider)
    fake.fail(INSERT, kind)
    with pytest.raises(error):
        await launch(provider, request)
    assert fake.left() == []
    (instance,) = await launch(provider, request)
    assert fake.counted()[INSERT] == 2
    await provider.terminate([instance])
    await ended(provider, instance)


@pytest.mark.expensive(family="gce faults")
@pytest.mark.parametrize("kind", ["throttle", "throttle_429"])
async def test_a_throttled_call_is_repeated(fake: FakeGce, provider: GcpProvider, kind: str) -> None:
    request = await request_of(provider)
    fake.fail(INSERT, kind, times=2)
    (instance,) = await launch(provider, request)
    assert fake.counted()[INSERT] == 3
    await provider.terminate([instance])


@pytest.mark.expensive(family="gce faults")
@pytest.mark.parametrize("kind", ["cut", "internal", "unavailable"])
async def test_an_answer_that_is_lost_after_the_effect_starts_no_second_machine(
    fake: FakeGce, provider: GcpProvider, kind: str
) -> None:
    request = await request_of(provider)
    fake.fail(INSERT, kind, late=True)
    with pytest.raises(Unreachable):
        await launch(provider, request)
    (instance,) = await launch(provider, request)
    assert [m.name for m in fake.cloud.machines.values()] == [instance]
    await provider.terminate([instance])


async def test_a_gang_is_taken_back_also_where_the_answer_was_lost(
    make_fake: MakeFake, make_provider: MakeProvider
) -> None:
    supplies = {**WORLD.supplies, ("us-central1-b", T4): Supply(spot_room=[(0.0, 0)])}
    fake = make_fake(replace(WORLD, supplies=supplies))
    provider = make_provider(fake)
    dry = next(o for o in await provider.offers(OfferQuery()) if o.zone == "us-central1-b" and o.market == "spot")
    fake.fail(INSERT, "cut", late=True, zone="us-central1-a")
    requests = [await request_of(provider, 1), await request_of(provider, 2, offer=dry)]
    with pytest.raises(NoCapacity):
        await provider.launch(requests, all_or_nothing=True)
    assert len(fake.cloud.machines) == 2
    assert fake.left() == []


async def test_after_a_crash_a_gang_that_was_taken_back_starts_anew(
    fake: FakeGce, provider: GcpProvider, make_provider: MakeProvider
) -> None:
    served = [await request_of(provider, n) for n in (1, 2)]
    other = await request_of(provider, 3, disk_gib=77.0)  # has a call of its own, which comes to nothing
    fake.fail(INSERT, "stock_out")
    with pytest.raises(NoCapacity):
        await provider.launch([*served, other], all_or_nothing=True)
    assert fake.left() == []
    fresh = make_provider(fake)
    instances = await launch(fresh, *served)
    assert [i.endswith("-1") for i in instances] == [True, True], (
        "a machine of a token that was used up has a name of its own"
    )
    assert [naming.whose(i).token for i in instances] == [r.token for r in served]  # type: ignore[union-attr]
    await fresh.terminate(instances)


# --- ends ------------------------------------------------------------------------------------------------------------


async def test_a_new_process_knows_what_ended_before_it_began(
    fake: FakeGce, provider: GcpProvider, make_provider: MakeProvider
) -> None:
    requests = [await request_of(provider, n) for n in (1, 2)]
    taken, stopped = await launch(provider, *requests)
    begun = time.time()
    fake.preempt(taken, notice_s=0.1)
    fake.cloud.machines[fake.machine(taken).id].preempted_at = begun
    await provider.terminate([stopped])
    while fake.left():
        await asyncio.sleep(0.03)
    fresh = make_provider(fake, notice_s=0.1)
    found = {r.id: r for r in await fresh.resources(DEPLOYMENT)}
    assert (found[taken].end, found[stopped].end) == (InstanceEnd.PREEMPTED, InstanceEnd.OWNER)
    assert (found[taken].token, found[taken].job) == (requests[0].token, JOB)
    assert found[taken].ended_at == pytest.approx(begun + 0.1, abs=0.2)
    for name in (taken, stopped):
        assert found[name].started_at == pytest.approx(fake.machine(name).runs_at, abs=0.01), "what is billed"
    assert list(await make_provider(fake).resources(OTHER_DEPLOYMENT)) == []


async def test_that_we_may_not_look_at_an_operation_is_no_answer(fake: FakeGce, provider: GcpProvider) -> None:
    disk = await provider.ensure_volume(VolumeSpec(DEPLOYMENT, JOB, "d", "us-central1-a", 8.0))
    fake.fail("compute.zoneOperations.get", "permission")
    with pytest.raises(Unreachable, match="cannot be seen"):
        await provider.delete_volume(disk)  # it is on its way: that it was refused would be wrong
    await provider.delete_volume(disk)
    assert fake.left() == []


async def test_a_lost_host_leaves_nothing_that_costs(fake: FakeGce, provider: GcpProvider) -> None:
    (instance,) = await launch(provider, await request_of(provider))
    fake.lose(instance)
    found = await ended(provider, instance)
    assert found.end is InstanceEnd.LOST
    while fake.left():  # the stopped machine is put away without being asked for
        assert (await listed(provider, instance)).end is InstanceEnd.LOST
        await asyncio.sleep(0.03)
    assert (await listed(provider, instance)).end is InstanceEnd.LOST


async def test_a_machine_in_repair_is_still_there(fake: FakeGce, provider: GcpProvider) -> None:
    (instance,) = await launch(provider, await request_of(provider))
    fake.repair(instance)
    assert fake.machine(instance).status(time.time()) == "REPAIRING"
    assert (await listed(provider, instance)).alive
    await provider.terminate([instance])
    await ended(provider, instance)


async def test_a_machine_that_waits_for_room_is_not_shown(make_fake: MakeFake, make_provider: MakeProvider) -> None:
    """Else the sweep would take it for ours, and then there is no room for it."""
    supplies = {**WORLD.supplies, ("us-central1-a", "e2-standard-4"): Supply(spot_room=[(0.0, 0)])}
    provider = make_provider(make_fake(replace(WORLD, supplies=supplies), provision_s=0.5, hidden_s=0.0))
    launching = asyncio.create_task(launch(provider, await request_of(provider)))
    seen = []
    while not launching.done():
        seen += await provider.resources(DEPLOYMENT)
        await asyncio.sleep(0.02)
    with pytest.raises(NoCapacity):
        await launching
    assert seen == []


async def test_a_zone_without_an_answer_is_no_proof_of_absence(provider: GcpProvider, monkeypatch: Any) -> None:
    page = {"items": {"zones/us-central1-a": {"warning": {"code": "UNREACHABLE", "message": "down"}}}}

    async def call(*_: object, **__: object) -> dict[str, Any]:
        return page

    monkeypatch.setattr(provider.calls, "call", call)
    with pytest.raises(Unreachable, match="zones/us-central1-a: UNREACHABLE"):
        await provider.resources(DEPLOYMENT)


# --- disks -----------------------------------------------------------------------------------------------------------


async def test_a_disk_goes_from_a_preempted_machine_to_its_successor(fake: FakeGce, provider: GcpProvider) -> None:
    volume = await provider.ensure_volume(VolumeSpec(DEPLOYMENT, JOB, "slot-0", "us-central1-a", 20.0))
    (first,) = await launch(provider, await request_of(provider, 1, volume=volume))
    fake.preempt(first, notice_s=0.3)
    (second,) = await launch(provider, await request_of(provider, 2, volume=volume))  # waits until it is let go of
    (disk,) = [r for r in await provider.resources(DEPLOYMENT) if r.kind is ResourceKind.VOLUME]
    assert (disk.id, disk.attached_to, disk.size_gib) == (volume, second, 20.0)
    assert disk.price_usd_per_h == pytest.approx(20 * 0.10 / 730)
    (kept,) = [a for a in fake.machine(second).disks if not a.boot]
    assert (kept.device, kept.auto_delete) == ("everstep-volume", False)
    assert "google-everstep-volume" in fake.machine(second).metadata["startup-script"]
    await provider.terminate([second])
    await provider.delete_volume(volume)
    assert fake.left() == []


async def test_the_boot_disk_itself_can_be_what_is_kept(fake: FakeGce, make_provider: MakeProvider) -> None:
    provider = make_provider(fake, keep="boot_disk")
    volume = await provider.ensure_volume(VolumeSpec(DEPLOYMENT, JOB, "slot-0", "us-central1-a", 20.0))
    requests = [await request_of(provider, n, volume=volume) for n in (1, 2)]
    for request in requests:
        (instance,) = await launch(provider, request)
        (only,) = fake.machine(instance).disks
        assert (only.boot, only.auto_delete) == (True, False)
        assert fake.cloud.disk("us-central1-a", only.disk).size_gb == 40, "20 for the data, 20 for the image"
        fake.preempt(instance, notice_s=0.1)
        await ended(provider, instance)
    assert fake.left() == [volume.partition(".")[0]]
    await provider.delete_volume(volume)


async def test_an_old_id_does_not_delete_a_new_disk_of_that_name(provider: GcpProvider) -> None:
    spec = VolumeSpec(DEPLOYMENT, JOB, "slot-0", "us-central1-a", 8.0)
    old = await provider.ensure_volume(spec)
    await provider.delete_volume(old)
    new = await provider.ensure_volume(spec)
    await provider.delete_volume(old)
    assert await provider.ensure_volume(spec) == new
    await provider.delete_volume(new)


# --- who may ---------------------------------------------------------------------------------------------------------


async def test_the_documented_role_is_enough(make_fake: MakeFake, make_provider: MakeProvider) -> None:
    role = yaml.safe_load((Path(__file__).resolve().parents[3] / "docs" / "gcp-role.yaml").read_text())
    assert tuple(role["includedPermissions"]) == doctor.PERMISSIONS
    fake = make_fake(allowed=frozenset(role["includedPermissions"]))
    provider = make_provider(fake)
    volume = await provider.ensure_volume(VolumeSpec(DEPLOYMENT, JOB, "slot-0", "us-central1-a", 8.0))
    (instance,) = await launch(provider, await request_of(provider, volume=volume))
    g2 = await offer_of(provider, "g2-standard-8")
    gang = await launch(provider, *[await request_of(provider, n, offer=g2, gang=2) for n in (2, 3)])
    await provider.resources(DEPLOYMENT)
    await provider.notices(DEPLOYMENT)
    await provider.terminate([instance, *gang, InstanceId("nobody")])
    await provider.delete_volume(volume)
    while fake.cloud.policies:
        await provider.resources(DEPLOYMENT)
        await asyncio.sleep(0.03)
    assert all(f.ok for f in await provider.examine())
    # Advice is a help, not a need.
    assert {r[0] for r in fake.server.refused if r[1] == 403} <= {"compute.advice.capacity"}


async def test_doctor_names_what_is_missing(make_fake: MakeFake, make_provider: MakeProvider) -> None:
    lacking = frozenset(doctor.PERMISSIONS) - {"compute.instances.create"}
    missing = [f for f in await make_provider(make_fake(allowed=lacking)).examine() if not f.ok]
    assert [(f.what, "gcp-role.yaml" in f.fix) for f in missing] == [("permission compute.instances.create", True)]
    world = replace(WORLD, quotas={("us-central1", "PREEMPTIBLE_NVIDIA_T4_GPUS"): 0})
    provider = make_provider(make_fake(world), types=["n1-standard-8+T4:1", "a9-giant"])
    found = {f.what: f for f in await provider.examine()}
    assert not found["type a9-giant"].ok
    assert not found["quota PREEMPTIBLE_NVIDIA_T4_GPUS, us-central1"].ok
    assert found["type n1-standard-8+T4:1"].ok
    assert found["clock"].ok


async def test_doctor_says_when_nobody_knows_us(fake: FakeGce, make_provider: MakeProvider) -> None:
    from google.oauth2.credentials import Credentials

    (finding,) = await make_provider(fake, credentials=Credentials(token="other")).examine()
    assert (finding.what, finding.ok) == ("credentials", False)
    assert "other" not in finding.found


async def test_a_machine_proves_who_it_is(fake: FakeGce, make_provider: MakeProvider) -> None:
    from everstep.agent.identity import proof

    provider = make_provider(fake, identity_certs_url=f"{fake.url}/oauth2/v1/certs")
    offer = await offer_of(provider)
    requests = [await request_of(provider, n, offer=offer) for n in (1, 2)]
    one, other = await launch(provider, *requests)
    server = "https://server.example:8443"
    shown = proof(f"gcp={fake.metadata.url(fake.machine(one))}", server)
    await provider.check_identity(one, offer, shown, server_url=server)
    for instance, what, audience in ((other, shown, server), (one, shown, "https://x"), (one, {}, server)):
        with pytest.raises(NotAuthorized) as caught:
            await provider.check_identity(instance, offer, what, server_url=audience)
        assert shown["token"] not in str(caught.value)
    with pytest.raises(NotAuthorized, match="zone is not"):
        await provider.check_identity(one, replace(offer, zone="us-central1-b"), shown, server_url=server)
    nowhere = make_provider(fake, identity_certs_url=f"{fake.url}/no-keys-here")
    with pytest.raises(Unreachable, match="cannot be fetched"):  # the machine is not to blame, and asks again
        await nowhere.check_identity(one, offer, shown, server_url=server)
    await provider.terminate([one, other])


async def test_no_credential_reaches_a_machine_or_an_error(fake: FakeGce, provider: GcpProvider) -> None:
    (instance,) = await launch(provider, await request_of(provider))
    machine = fake.machine(instance)
    assert TOKEN not in repr(machine)
    assert "one-time" in machine.metadata["startup-script"]
    assert "one-time" not in repr((machine.labels, machine.name, machine.resource["description"]))
    fake.fail("compute.instances.aggregatedList", "credentials")
    with pytest.raises(Unauthorized) as caught:
        await provider.resources(DEPLOYMENT)
    assert TOKEN not in str(caught.value)
    await provider.terminate([instance])


def test_the_vendors_client_is_imported_when_it_is_needed() -> None:
    code = (
        "import sys, everstep.cli.main, everstep.providers.gcp as g; "
        "g.GcpProvider('some-project', ['us-central1'], ['g2-standard-8']); "
        "print([m for m in sys.modules if m.startswith(('google.cloud.compute', 'google.auth', 'google.protobuf'))])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"project": "My Project"}, "providers.gcp.project: 'My Project' is no project id"),
        ({"regions": "us-central1"}, "providers.gcp.regions: expected a list"),
        ({"regions": ["us-central1-a"]}, "'us-central1-a' is no region"),
        ({"types": []}, "providers.gcp.types: expected a list"),
        ({"types": ["n1-standard-8+T4"]}, "is no machine type"),
        ({"images": {"tpu": "x"}}, "providers.gcp.images.tpu: unknown key"),
        ({"images": {"gpu": "ubuntu"}}, "is no image"),
        ({"disk_type": "floppy"}, "unknown type 'floppy'"),
        ({"keep": "all"}, "unknown value 'all'"),
    ],
)
def test_settings_that_are_wrong_have_one_line_each(options: dict[str, Any], words: str) -> None:
    given: dict[str, Any] = {"project": "some-project", "regions": ["us-central1"], "types": ["g2-*"], **options}
    with pytest.raises(BadInput) as caught:
        GcpProvider(**given)
    assert words in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
