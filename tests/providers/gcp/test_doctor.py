"""What ``everstep doctor gcp`` says of quotas and networks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from everstep.providers.finding import Finding
from everstep.providers.gcp import doctor, network
from tests.providers.gcp.conftest import WORLD, MakeFake, MakeProvider

HERE = "us-central1"


async def found(provider: Any) -> dict[str, Finding]:
    return {f.what: f for f in await provider.examine()}


async def test_quotas(make_fake: MakeFake, make_provider: MakeProvider) -> None:
    limits = {
        (HERE, "CPUS"): 24,
        (HERE, "PREEMPTIBLE_CPUS"): 0,
        (HERE, "PREEMPTIBLE_NVIDIA_T4_GPUS"): 4,
        (HERE, "NVIDIA_T4_GPUS"): 0,
        ("", "GPUS_ALL_REGIONS"): 0,
    }
    told = await found(make_provider(make_fake(replace(WORLD, quotas=limits)), types=["n1-standard-8+T4:1"]))
    quotas = {what.split()[1].rstrip(","): f.ok for what, f in told.items() if what.startswith("quota ")}
    assert quotas == {
        "CPUS": True,
        "GPUS_ALL_REGIONS": False,
        "NVIDIA_T4_GPUS": False,
        "PREEMPTIBLE_NVIDIA_T4_GPUS": True,
    }
    everywhere = told[f"quota GPUS_ALL_REGIONS, {HERE}"]
    assert everywhere.found == "0, 0 in use; n1-standard-8+T4:1 takes 1"
    assert "GPUS_ALL_REGIONS" in everywhere.fix


async def test_the_default_network_is_well(make_fake: MakeFake, make_provider: MakeProvider) -> None:
    told = (await found(make_provider(make_fake())))[f"network, {HERE}"]
    assert (told.ok, "10.128.0.0/20" in told.found) == (True, True)


@pytest.mark.parametrize(
    ("rules", "said", "fix"),
    [
        ({"default-allow-internal": None}, "no rule lets machines reach each other", "--source-ranges=10.128.0.0/20"),
        ({"default-allow-internal": {"disabled": True}}, "no rule lets machines", "firewall-rules create"),
        ({"default-allow-internal": {"sourceRanges": ["10.1.0.0/16"]}}, "no rule lets machines", "--allow=all"),
        ({"default-allow-internal": {"targetTags": ["web"]}}, "no rule lets machines", "--allow=all"),
        (
            {"shut": {"direction": "EGRESS", "destinationRanges": ["0.0.0.0/0"], "denied": [{"IPProtocol": "all"}]}},
            "rule shut keeps machines from the server",
            "firewall-rules update shut --disabled",
        ),
    ],
)
async def test_firewalls(
    make_fake: MakeFake, make_provider: MakeProvider, rules: dict[str, Any], said: str, fix: str
) -> None:
    fake = make_fake()
    for name, change in rules.items():
        rule = {**fake.cloud.firewall_rules.pop(name, {}), **(change or {})}
        fake.cloud.firewall_rules |= {} if change is None else {name: rule}
    told = (await found(make_provider(fake)))[f"network, {HERE}"]
    assert (told.ok, said in told.found, fix in told.fix) == (False, True, True), told


async def test_a_subnetwork_that_is_not_there(make_fake: MakeFake, make_provider: MakeProvider) -> None:
    provider = make_provider(make_fake(), subnetworks={HERE: f"regions/{HERE}/subnetworks/training"})
    told = (await found(provider))[f"network, {HERE}"]
    assert (told.ok, "subnetworks.us-central1" in told.fix) == (False, True)


async def test_what_may_not_be_looked_at_is_said(make_fake: MakeFake, make_provider: MakeProvider) -> None:
    fake = make_fake(allowed=frozenset(doctor.PERMISSIONS))
    told = (await found(make_provider(fake)))["network"]
    assert (told.ok, told.found) == (True, "not looked at")
    assert all(p in told.fix for p in network.PERMISSIONS)
    assert {r[0] for r in fake.server.refused if r[1] == 403} <= {"compute.advice.capacity"}
