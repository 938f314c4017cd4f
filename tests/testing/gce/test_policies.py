"""Compact placement policies by the vendor's rules: who may be in one, how many, and when it can be deleted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from everstep.testing.gce import SMALL_WORLD, Supply

from .conftest import ZONE, Caller, MakeCaller, machine

POLICIES = "regions/us-central1/resourcePolicies"
COMPACT = {"collocation": "COLLOCATED"}
G2 = {"machineType": f"zones/{ZONE}/machineTypes/g2-standard-8"}


def make(gce: Caller, name: str = "close", *, region: str = "us-central1", **changes: Any) -> str:
    """A policy that is ready; its partial URL."""
    path = f"regions/{region}/resourcePolicies"
    operation = gce.call("POST", path, {"name": name, "groupPlacementPolicy": COMPACT, **changes})
    assert operation["region"].endswith(region)
    gce.after(2.0)
    assert gce.call("GET", f"regions/{region}/operations/{operation['name']}")["status"] == "DONE"
    return f"{path}/{name}"


def test_a_policy_is_used_while_a_machine_is_there_and_deleted_after(gce: Caller) -> None:
    url = make(gce, description="of a test")
    shown = gce.call("GET", url)
    assert (shown["status"], shown["groupPlacementPolicy"], shown["description"]) == ("READY", COMPACT, "of a test")
    gce.insert("m1", **G2, resourcePolicies=[url])
    (used,) = gce.call("GET", f"zones/{ZONE}/instances/m1")["resourcePolicies"]
    assert used == shown["selfLink"]
    status, reason, text = gce.refused("DELETE", url)
    assert (status, reason) == (400, "resourceInUseByAnotherResource")
    assert "is already being used by" in text
    assert "instances/m1" in text
    gce.call("DELETE", f"zones/{ZONE}/instances/m1")
    assert gce.refused("DELETE", url)[1] == "resourceInUseByAnotherResource", "it is stopping"
    gce.after(10.0)
    gce.call("DELETE", url)
    assert gce.refused("GET", url)[:2] == (404, "notFound")
    assert gce.refused("DELETE", url)[:2] == (404, "notFound")


def test_lists(gce: Caller) -> None:
    make(gce, "close"), make(gce, "closer", region="us-west1")
    assert [p["name"] for p in gce.call("GET", POLICIES)["items"]] == ["close"]
    found = gce.call("GET", "aggregated/resourcePolicies", filter='name eq "close.*"')["items"]
    assert [p["name"] for p in found["regions/us-west1"]["resourcePolicies"]] == ["closer"]
    found = gce.call("GET", "aggregated/resourcePolicies", filter='name = "close"')["items"]
    assert found["regions/us-west1"]["warning"]["code"] == "NO_RESULTS_ON_PAGE"


@pytest.mark.parametrize(
    ("body", "refusal"),
    [
        ({"groupPlacementPolicy": COMPACT}, (400, "required")),
        ({"name": "close", "groupPlacementPolicy": COMPACT}, (409, "alreadyExists")),
        ({"name": "new"}, (400, "invalid")),
        ({"name": "new", "groupPlacementPolicy": {"collocation": "CLOSE"}}, (400, "invalid")),
        ({"name": "new", "groupPlacementPolicy": {"distance": 1}}, (400, "badRequest")),
        ({"name": "new", "groupPlacementPolicy": {**COMPACT, "availabilityDomainCount": 2}}, (400, "invalid")),
        ({"name": "new", "groupPlacementPolicy": {"availabilityDomainCount": 2}}, (501, "notImplemented")),
        ({"name": "new", "snapshotSchedulePolicy": {}}, (501, "notImplemented")),
    ],
)
def test_policies_that_cannot_be_made(gce: Caller, body: dict[str, Any], refusal: tuple[int, str]) -> None:
    make(gce)
    assert gce.refused("POST", POLICIES, body)[:2] == refusal


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"machineType": f"zones/{ZONE}/machineTypes/e2-standard-4"}, "not applicable to machine type e2-standard-4"),
        ({"resourcePolicies": [f"{POLICIES}/close", f"{POLICIES}/close"]}, "max of 1"),
        ({"resourcePolicies": ["close"]}, "malformed"),
        ({"resourcePolicies": [f"{POLICIES}/open"]}, "was not found"),
        ({"resourcePolicies": ["regions/us-west1/resourcePolicies/close"]}, "must be in region 'us-central1'"),
        (
            {"scheduling": {"provisioningModel": "STANDARD", "onHostMaintenance": "MIGRATE"}},
            "live migration",
        ),
    ],
)
def test_machines_that_cannot_have_one(gce: Caller, changes: dict[str, Any], refusal: str) -> None:
    url = make(gce)
    wanted = {"name": "m1", **G2, "resourcePolicies": [url], **changes}
    assert refusal in gce.refused("POST", f"zones/{ZONE}/instances", machine(**wanted))[2]
    assert gce.fake.left() == []


def test_one_that_is_not_ready_and_one_that_is_full(gce: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    gce.call("POST", POLICIES, {"name": "close", "groupPlacementPolicy": COMPACT})
    wanted = {**G2, "resourcePolicies": [f"{POLICIES}/close"]}
    assert gce.refused("POST", f"zones/{ZONE}/instances", machine(**wanted))[1] == "resourceNotReady"
    gce.after(2.0)
    monkeypatch.setattr("everstep.testing.gce.policies.MOST_MACHINES", 2)
    gce.insert("m1", **wanted), gce.insert("m2", **wanted)
    assert "No more than 2 instances" in gce.refused("POST", f"zones/{ZONE}/instances", machine("m3", **wanted))[2]


def test_there_may_be_room_in_the_zone_and_none_close_by(make_caller: MakeCaller) -> None:
    gce = make_caller(replace(SMALL_WORLD, supplies={(ZONE, "g2-standard-8"): Supply(compact_room=1)}))
    placed = {**G2, "resourcePolicies": [make(gce)]}
    assert "error" not in gce.insert("m1", **placed)
    told = gce.insert("m2", **placed)["error"]["errors"][0]["code"]
    assert told == "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"
    assert "error" not in gce.insert("m3", **G2)


def test_permissions(make_caller: MakeCaller) -> None:
    gce = make_caller(allowed=frozenset({"compute.resourcePolicies.create", "compute.instances.create"}))
    gce.call("POST", POLICIES, {"name": "close", "groupPlacementPolicy": COMPACT})
    assert "'compute.resourcePolicies.delete'" in gce.refused("DELETE", f"{POLICIES}/close")[2]
    assert "'compute.resourcePolicies.list'" in gce.refused("GET", "aggregated/resourcePolicies")[2]
