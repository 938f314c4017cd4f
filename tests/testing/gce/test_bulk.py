"""``instances.bulkInsert`` of the fake: all or none, or as many as can be had; what is refused; who tells what."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from everstep.testing.gce import SMALL_WORLD, Supply, World, bulk

from .conftest import IMAGE, ZONE, Caller, MakeCaller

NAMES = ("g-1", "g-2", "g-3")
KIND = "e2-standard-4"


def body(*names: str, least: int | None = None, **changes: Any) -> dict[str, Any]:
    """Spot machines, all of ``names`` or, with ``least``, at least so many."""
    properties = {
        "machineType": KIND,
        "networkInterfaces": [{"network": "global/networks/default"}],
        "disks": [{"boot": True, "autoDelete": True, "initializeParams": {"sourceImage": IMAGE}}],
        "scheduling": {"provisioningModel": "SPOT", "automaticRestart": False, "instanceTerminationAction": "DELETE"},
        **changes,
    }
    count = str(len(names))
    return {
        "count": count,
        "minCount": count if least is None else str(least),
        "perInstanceProperties": {name: {} for name in names},
        "instanceProperties": properties,
    }


def room_for(room: int) -> World:
    return replace(SMALL_WORLD, supplies={**SMALL_WORLD.supplies, (ZONE, KIND): Supply(spot_room=[(0.0, room)])})


def bulk_insert(gce: Caller, asked: dict[str, Any], **query: Any) -> dict[str, Any]:
    """The operation, done."""
    operation = gce.call("POST", f"zones/{ZONE}/instances/bulkInsert", asked, **query)
    assert operation["operationType"] == "bulkInsert"
    gce.after(10.0)
    return gce.call("GET", f"zones/{ZONE}/operations/{operation['name']}")


def counts(operation: dict[str, Any]) -> tuple[int, int, int, int]:
    told = operation["instancesBulkInsertOperationMetadata"]["perLocationStatus"][f"zones/{ZONE}"]
    keys = ("targetVmCount", "createdVmCount", "failedToCreateVmCount", "deletedVmCount")
    return tuple(told[f"{key}"] for key in keys)  # type: ignore[return-value]


def inserts(gce: Caller, operation: dict[str, Any]) -> dict[str, str]:
    """By machine the code of what went wrong, empty for nothing."""
    wanted = f'(operationType = "insert") AND (operationGroupId = "{operation["operationGroupId"]}")'
    found = gce.call("GET", f"zones/{ZONE}/operations", filter=wanted).get("items", [])
    codes = {o["targetLink"].rpartition("/")[2]: o.get("error", {}).get("errors", [{}]) for o in found}
    return {name: told[0].get("code", "") for name, told in codes.items()}


def test_all_of_them_run_each_with_its_name_disk_and_address(gce: Caller) -> None:
    operation = bulk_insert(gce, body(*NAMES, metadata={"items": [{"key": "k", "value": "v"}]}))
    assert "error" not in operation
    assert counts(operation) == (3, 3, 0, 0)
    assert inserts(gce, operation) == dict.fromkeys(NAMES, "")
    there = [gce.call("GET", f"zones/{ZONE}/instances/{name}") for name in NAMES]
    assert [m["status"] for m in there] == ["RUNNING"] * 3
    assert len({m["networkInterfaces"][0]["networkIP"] for m in there}) == 3
    assert [m["disks"][0]["source"].rpartition("/")[2] for m in there] == list(NAMES)
    assert [m["metadata"]["items"] for m in there] == [[{"key": "k", "value": "v"}]] * 3


def test_too_little_room_is_told_by_the_operations_and_leaves_none(make_caller: MakeCaller) -> None:
    gce = make_caller(room_for(2))
    operation = bulk_insert(gce, body(*NAMES))
    assert [e["code"] for e in operation["error"]["errors"]] == [bulk.TOO_FEW]
    assert counts(operation) == (3, 2, 1, 2)
    assert sorted(inserts(gce, operation).values()) == ["", "", "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"]
    assert gce.fake.left() == []
    assert gce.fake.meter() == []
    assert "error" not in bulk_insert(gce, body("g-1", "h-2")), "the room is free again, and so are the names"


def test_with_a_lower_minimum_as_many_as_there_is_room_for(make_caller: MakeCaller) -> None:
    gce = make_caller(room_for(2))
    operation = bulk_insert(gce, body(*NAMES, least=2))
    assert "error" not in operation
    assert counts(operation) == (3, 2, 1, 0)
    failed = {name for name, code in inserts(gce, operation).items() if code}
    assert len(failed) == 1
    assert set(gce.fake.left()) == {*NAMES} - failed


def test_a_name_that_is_taken_is_told_by_the_insert_of_its_machine(gce: Caller) -> None:
    gce.insert("g-2")
    operation = bulk_insert(gce, body(*NAMES))
    assert inserts(gce, operation) == {"g-1": "", "g-2": "RESOURCE_ALREADY_EXISTS", "g-3": ""}
    assert gce.fake.left() == ["g-2"], "what was there before is not taken back"


def test_a_known_request_id_is_answered_with_what_it_did(gce: Caller) -> None:
    query = {"requestId": "7d6a3f0e-3f5c-4a88-9a55-2b8f2f9a0001"}
    assert bulk_insert(gce, body(*NAMES), **query)["name"] == bulk_insert(gce, body(*NAMES), **query)["name"]
    assert len(gce.fake.cloud.machines) == 3


def test_quota_that_does_not_do_for_the_least_is_refused_at_once(make_caller: MakeCaller) -> None:
    gce = make_caller(replace(SMALL_WORLD, quotas={("us-central1", "PREEMPTIBLE_CPUS"): 8}))
    path = f"zones/{ZONE}/instances/bulkInsert"
    assert gce.refused("POST", path, body(*NAMES))[:2] == (403, "quotaExceeded")
    operation = bulk_insert(gce, body(*NAMES, least=1))
    assert sorted(inserts(gce, operation).values()) == ["", "", "QUOTA_EXCEEDED"]


def test_no_more_than_ten_run_at_a_time(gce: Caller) -> None:
    path = f"zones/{ZONE}/instances/bulkInsert"
    for number in range(bulk.AT_ONCE):
        gce.call("POST", path, body(f"m-{number}"))
    assert gce.refused("POST", path, body("one-more"))[:2] == (403, "rateLimitExceeded")
    gce.after(20.0)
    gce.call("POST", path, body("one-more"))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"count": "2"}, (400, "invalid")),
        ({"minCount": "4"}, (400, "invalid")),
        ({"minCount": "0"}, (400, "invalid")),
        ({"perInstanceProperties": {}}, (400, "invalid")),
        ({"perInstanceProperties": {"G-1": {}, "g-2": {}, "g-3": {}}}, (400, "invalid")),
        ({"perInstanceProperties": {"g-1": {"labels": {}}, "g-2": {}, "g-3": {}}}, (400, "badRequest")),
        ({"namePattern": "g-#"}, (501, "notImplemented")),
        ({"sourceInstanceTemplate": "global/instanceTemplates/t"}, (501, "notImplemented")),
        ({"gang": True}, (400, "badRequest")),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_does_not_fit_is_refused(gce: Caller, changes: dict[str, Any], told: tuple[int, str]) -> None:
    asked = {**body(*NAMES), **changes}
    assert gce.refused("POST", f"zones/{ZONE}/instances/bulkInsert", asked)[:2] == told
    assert gce.fake.cloud.machines == {}


@pytest.mark.parametrize(
    ("properties", "told"),
    [
        ({"machineType": f"zones/{ZONE}/machineTypes/{KIND}"}, (500, "internalError")),
        ({"machineType": "no-such-type"}, (400, "invalid")),
        ({"resourcePolicies": ["regions/us-central1/resourcePolicies/p"]}, (400, "invalid")),
        (
            {"guestAccelerators": [{"acceleratorType": f"zones/{ZONE}/acceleratorTypes/x", "acceleratorCount": 1}]},
            (400, "invalid"),
        ),
        ({"disks": [{"boot": True, "source": f"zones/{ZONE}/disks/d"}]}, (400, "invalid")),
        ({"disks": [{"boot": True, "initializeParams": {"sourceImage": IMAGE, "diskName": "d"}}]}, (400, "invalid")),
        (
            {
                "disks": [
                    {
                        "boot": True,
                        "initializeParams": {"sourceImage": IMAGE, "diskType": f"zones/{ZONE}/diskTypes/pd-ssd"},
                    }
                ]
            },
            (400, "invalid"),
        ),
        ({"name": "g-1"}, (400, "badRequest")),
    ],
)
def test_properties_name_types_barely_and_share_no_disk(
    gce: Caller, properties: dict[str, Any], told: tuple[int, str]
) -> None:
    gce.call("POST", f"zones/{ZONE}/disks", {"name": "d", "sizeGb": "10", "sourceImage": IMAGE})
    asked = body(*NAMES, **properties)
    assert gce.refused("POST", f"zones/{ZONE}/instances/bulkInsert", asked)[:2] == told
    assert gce.fake.cloud.machines == {}


def test_it_needs_the_permissions_of_all_that_it_says(make_caller: MakeCaller) -> None:
    gce = make_caller(allowed=frozenset({"compute.instances.create", "compute.subnetworks.use"}))
    status, reason, words = gce.refused("POST", f"zones/{ZONE}/instances/bulkInsert", body(*NAMES, labels={"a": "b"}))
    assert (status, reason) == (403, "forbidden")
    assert "compute.instances.setLabels" in words
