"""What ``everstep cloud sweep`` sees and ends on Compute Engine, judged by a raw client of the vendor's SDK."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.api_core.client_options import ClientOptions
from google.cloud import compute_v1
from google.oauth2.credentials import Credentials

from everstep.model.errors import ProviderError, Unauthorized
from everstep.providers.gcp import naming
from everstep.providers.gcp.startup import boot_script
from everstep.providers.leftovers import CallsHome, NotOurs
from everstep.testing.gce import FakeGce
from everstep.testing.provider_suite import DEPLOYMENT, JOB
from tests.providers.gcp.conftest import TOKEN, MakeFake, MakeProvider
from tests.providers.gcp.test_provider import launch, offer_of, request_of

ZONE = "us-central1-a"
OURS = {naming.DEPLOYMENT: "d-1", naming.JOB: "j-1", naming.PRICE: "134000000"}
FOREIGN = {"team": "billing"}


class Raw:
    """A project as somebody else sees it."""

    def __init__(self, fake: FakeGce) -> None:
        self.project = fake.project
        with_token: dict[str, Any] = {
            "credentials": Credentials(token=TOKEN),
            "client_options": ClientOptions(api_endpoint=fake.url),
        }
        self.instances = compute_v1.InstancesClient(**with_token)
        self.disks = compute_v1.DisksClient(**with_token)
        self.operations = compute_v1.ZoneOperationsClient(**with_token)
        self.policies = compute_v1.ResourcePoliciesClient(**with_token)
        self.region_operations = compute_v1.RegionOperationsClient(**with_token)
        self.firewalls = compute_v1.FirewallsClient(**with_token)

    def machine(self, name: str, labels: dict[str, str], *, boot: dict[str, str] | None = None, **more: Any) -> str:
        disk = compute_v1.AttachedDisk(
            boot=True,
            auto_delete=True,
            initialize_params=compute_v1.AttachedDiskInitializeParams(
                source_image="projects/ubuntu-os-cloud/global/images/family/ubuntu-2404-lts-amd64",
                disk_size_gb=10,
                labels=labels if boot is None else boot,
            ),
        )
        made = compute_v1.Instance(
            name=name,
            machine_type=f"zones/{ZONE}/machineTypes/e2-standard-4",
            disks=[disk, *more.pop("disks", [])],
            labels=labels,
            network_interfaces=[compute_v1.NetworkInterface(network="global/networks/default")],
            **more,
        )
        self.done(self.instances.insert_unary(project=self.project, zone=ZONE, instance_resource=made))
        return name

    def disk(self, name: str, labels: dict[str, str]) -> str:
        made = compute_v1.Disk(name=name, size_gb=20, labels=labels, type_=f"zones/{ZONE}/diskTypes/pd-balanced")
        self.done(self.disks.insert_unary(project=self.project, zone=ZONE, disk_resource=made))
        return name

    def policy(self, name: str, description: str) -> str:
        placement = compute_v1.ResourcePolicyGroupPlacementPolicy(collocation="COLLOCATED")
        made = compute_v1.ResourcePolicy(name=name, description=description, group_placement_policy=placement)
        here: dict[str, str] = {"project": self.project, "region": ZONE.rpartition("-")[0]}
        operation = self.policies.insert_unary(**here, resource_policy_resource=made)
        while self.region_operations.wait(**here, operation=operation.name).status.name != "DONE":
            pass
        return name

    def firewall(self, name: str, tags: list[str]) -> str:
        allowed = compute_v1.Allowed(I_p_protocol="tcp", ports=["443"])
        made = compute_v1.Firewall(name=name, target_tags=tags, allowed=[allowed])
        self.firewalls.insert_unary(project=self.project, firewall_resource=made)
        return name

    def rules(self) -> set[str]:
        """Names of placement policies and firewall rules."""
        region = ZONE.rpartition("-")[0]
        policies = {p.name for p in self.policies.list(project=self.project, region=region)}
        return policies | {f.name for f in self.firewalls.list(project=self.project)}

    def done(self, operation: Any) -> None:
        while self.operations.wait(project=self.project, zone=ZONE, operation=operation.name).status.name != "DONE":
            pass

    def left(self) -> set[str]:
        """Names of machines and disks."""
        here: dict[str, str] = {"project": self.project, "zone": ZONE}
        return {m.name for m in self.instances.list(**here)} | {d.name for d in self.disks.list(**here)}


async def test_ours_and_nothing_else(make_fake: MakeFake, make_provider: MakeProvider) -> None:
    fake = make_fake(hidden_s=0.0)
    raw, sweeper = Raw(fake), make_provider(fake).sweeper()
    raw.machine("theirs", FOREIGN), raw.disk("their-disk", FOREIGN)
    theirs = raw.left()
    disk = raw.disk("our-disk", {**OURS, naming.VOLUME: "v"})
    attached = compute_v1.AttachedDisk(source=f"zones/{ZONE}/disks/{disk}", auto_delete=False)
    machine = raw.machine("ours", OURS, disks=[attached])
    server = raw.machine("our-server", {naming.SERVER: "h-1"})

    found = await sweeper.look([])

    assert found.unseen == ()
    assert {(t.kind, t.id.partition(".")[0]) for t in found.things} == {
        ("instance", machine),
        ("instance", server),
        ("volume", disk),
    }
    by_name = {t.id.partition(".")[0]: t for t in found.things}
    assert (by_name[machine].deployment, by_name[machine].job, by_name[machine].market) == ("d-1", "j-1", "on_demand")
    assert by_name[machine].price_usd_per_h == pytest.approx(0.134)
    assert by_name[machine].cost_usd == pytest.approx(0.134 / 60)
    assert (by_name[disk].attached_to, by_name[disk].what) == (machine, "20 GiB pd-balanced")
    assert by_name[disk].price_usd_per_h == pytest.approx(
        20 * fake.cloud.world.disk_usd_per_gib_month["pd-balanced"] / 730
    )
    assert [t.is_server for t in (by_name[server], by_name[machine])] == [True, False]
    assert (await sweeper.look(["europe-west4"])).things == ()

    for thing in sorted(found.things, key=lambda t: t.kind):
        await sweeper.end(thing)
    assert raw.left() == theirs
    for thing in found.things:  # what is gone is no error
        await sweeper.end(thing)


async def test_names_are_used_again_and_labels_change(make_fake: MakeFake, make_provider: MakeProvider) -> None:
    fake = make_fake(hidden_s=0.0)
    raw, sweeper = Raw(fake), make_provider(fake).sweeper()
    raw.machine("one", OURS), raw.machine("two", OURS)
    one, two = sorted((await sweeper.look([])).things, key=lambda t: t.id)
    raw.done(raw.instances.delete_unary(project=raw.project, zone=ZONE, instance="one"))
    raw.machine("one", FOREIGN)
    label = compute_v1.InstancesSetLabelsRequest(
        labels={}, label_fingerprint=raw.instances.get(project=raw.project, zone=ZONE, instance="two").label_fingerprint
    )
    raw.done(
        raw.instances.set_labels_unary(
            project=raw.project, zone=ZONE, instance="two", instances_set_labels_request_resource=label
        )
    )
    for thing in (one, two):
        with pytest.raises(NotOurs):
            await sweeper.end(thing)
    assert {"one", "two"} <= raw.left()


async def test_foreign_disks_and_foreign_machines(make_fake: MakeFake, make_provider: MakeProvider) -> None:
    fake = make_fake(hidden_s=0.0)
    raw, sweeper = Raw(fake), make_provider(fake).sweeper()
    raw.machine("ours", OURS, boot=FOREIGN)
    disk = raw.disk("our-disk", {**OURS, naming.VOLUME: "v"})
    attached = compute_v1.AttachedDisk(source=f"zones/{ZONE}/disks/{disk}", auto_delete=False)
    raw.machine("theirs", FOREIGN, disks=[attached])
    before = raw.left()
    machine, volume = sorted((await sweeper.look([])).things, key=lambda t: t.kind)
    with pytest.raises(NotOurs, match="along"):
        await sweeper.end(machine)
    with pytest.raises(ProviderError, match=r"resourceInUse|RESOURCE_IN_USE"):
        await sweeper.end(volume)
    assert raw.left() == before


async def test_what_has_no_labels_is_known_by_its_name_and_words(
    make_fake: MakeFake, make_provider: MakeProvider
) -> None:
    fake = make_fake(hidden_s=0.0)
    raw, sweeper = Raw(fake), make_provider(fake).sweeper()
    name, words = f"everstep-abcdefgh-{'0' * 32}", f"{naming.DEPLOYMENT}=d-1 {naming.JOB}=j-1"
    server = f"everstep-server-{'0' * 12}"
    raw.firewall("everstep-gangs", ["everstep-gangs"])
    raw.firewall(f"everstep-server-{'1' * 12}", ["web"])
    raw.policy("everstep-close-by", words)
    raw.policy(f"everstep-abcdefgh-{'1' * 32}", "of somebody else")
    theirs = raw.rules()
    group, firewall = raw.policy(name, words), raw.firewall(server, [server])
    machine = raw.machine("ours", OURS)

    found = {t.kind: t for t in (await sweeper.look([])).things}

    assert {kind: t.id for kind, t in found.items()} == {"instance": machine, "group": group, "firewall": firewall}
    assert (found["group"].deployment, found["group"].job, found["group"].state) == ("d-1", "j-1", "idle")
    assert (found["group"].region, found["firewall"].region) == ("us-central1", "global")
    assert (found["firewall"].is_server, found["group"].is_server) == (True, False)
    assert {t.kind for t in (await sweeper.look(["us-central1"])).things} == {"instance", "group"}

    for thing in found.values():
        await sweeper.end(thing)
        await sweeper.end(thing)  # what is gone is no error
    assert raw.rules() == theirs
    again = raw.policy(name, f"{naming.DEPLOYMENT}=d-2")
    with pytest.raises(NotOurs):
        await sweeper.end(found["group"])
    assert again in raw.rules()


async def test_a_policy_in_use_goes_once_its_machines_have(make_fake: MakeFake, make_provider: MakeProvider) -> None:
    fake = make_fake(hidden_s=0.0)
    provider: Any = make_provider(fake)
    offer = await offer_of(provider, "g2-standard-8")
    made = await launch(provider, *[await request_of(provider, n, offer=offer, gang=2) for n in (1, 2)])
    raw, sweeper = Raw(fake), make_provider(fake).sweeper()
    things = {t.id: t for t in (await sweeper.look([])).things}
    (group,) = [t for t in things.values() if t.kind == "group"]
    assert (group.state, group.deployment, group.job) == ("in use", DEPLOYMENT, JOB)
    ending = asyncio.create_task(sweeper.end(group))
    while not any("resourcePolicies.delete" in r[0] for r in fake.server.refused):
        await asyncio.sleep(0.02)
    for machine in made:
        await sweeper.end(things[machine])
    await asyncio.wait_for(ending, 60)
    assert (raw.left(), group.id in raw.rules()) == (set(), False)


async def test_whom_a_machine_calls(make_fake: MakeFake, make_provider: MakeProvider) -> None:
    fake = make_fake(hidden_s=0.0)
    raw, sweeper = Raw(fake), make_provider(fake).sweeper()
    boot = {"EVERSTEP_SERVER": "https://10.0.0.1:8443", "EVERSTEP_CA_SHA256": "ab" * 32, "EVERSTEP_TOKEN": "one-time"}
    item = compute_v1.Items(key="startup-script", value=boot_script(boot))
    raw.machine("one", OURS, metadata=compute_v1.Metadata(items=[item]))
    raw.machine("two", OURS)
    one, two = sorted((await sweeper.look([])).things, key=lambda t: t.id)
    assert await sweeper.calls_home(one) == CallsHome("https://10.0.0.1:8443", "ab" * 32)
    assert await sweeper.calls_home(two) is None


async def test_without_the_right_to_list_machines_nothing_is_swept(
    make_fake: MakeFake, make_provider: MakeProvider
) -> None:
    fake = make_fake(allowed=frozenset({"compute.disks.list"}))
    with pytest.raises(Unauthorized):
        await make_provider(fake).sweeper().look([])
    seen = make_fake(allowed=frozenset({"compute.instances.list"}))
    assert "disks" in {line.partition(":")[0] for line in (await make_provider(seen).sweeper().look([])).unseen}
