"""The vendor's rules, on a clock that is turned by hand."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

import pytest

from everstep.testing.gce import SMALL_WORLD, Supply

from .conftest import ZONE, Caller, MakeCaller, machine

INSTANCES = f"zones/{ZONE}/instances"
STANDARD = {"provisioningModel": "STANDARD", "automaticRestart": False}
G2 = {"machineType": f"zones/{ZONE}/machineTypes/g2-standard-8"}


def test_an_operation_is_done_when_the_machine_runs(gce: Caller) -> None:
    operation = gce.call("POST", INSTANCES, machine())
    assert (operation["status"], operation["operationType"]) == ("RUNNING", "insert")
    seen = [gce.status()]
    assert gce.call("GET", INSTANCES).get("items") is None, "lists show it later"
    for _ in range(4):
        gce.after(2.5)
        seen.append(gce.status())
    assert seen == ["PROVISIONING", "STAGING", "STAGING", "STAGING", "RUNNING"]
    done = gce.call("GET", f"zones/{ZONE}/operations/{operation['name']}")
    assert done["status"] == "DONE"
    shown = gce.call("GET", f"{INSTANCES}/m1")
    assert (done["targetId"], done["endTime"]) == (shown["id"], shown["lastStartTimestamp"])


def test_a_request_id_is_answered_with_what_it_did(gce: Caller) -> None:
    request = str(uuid.uuid4())
    first = gce.call("POST", INSTANCES, machine(), requestId=request)
    again = gce.call("POST", INSTANCES, machine("m2"), requestId=request)
    assert again["name"] == first["name"]
    assert len(gce.fake.cloud.machines) == 1
    assert gce.refused("POST", INSTANCES, machine(), requestId="abc")[1] == "invalid"
    assert gce.refused("POST", INSTANCES, machine(), requestId=str(uuid.UUID(int=0)))[1] == "invalid"
    assert gce.refused("POST", INSTANCES, machine())[:2] == (409, "alreadyExists")


@pytest.mark.parametrize(
    ("change", "code", "status"),
    [
        ({"spot_room": [(0.0, 0)]}, "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", 503),
        ({}, "QUOTA_EXCEEDED", 403),
    ],
)
def test_what_is_not_there_is_told_inside_the_operation(
    make_caller: MakeCaller, change: dict[str, Any], code: str, status: int
) -> None:
    quotas = {} if change else {("us-central1", "PREEMPTIBLE_CPUS"): 3}
    world = replace(SMALL_WORLD, supplies={(ZONE, "e2-standard-4"): Supply(**change)}, quotas=quotas)
    gce = make_caller(world)
    operation = gce.call("POST", INSTANCES, machine())
    assert "error" not in operation
    assert gce.status() == "PROVISIONING"
    gce.after(10.0)
    done = gce.call("GET", f"zones/{ZONE}/operations/{operation['name']}")
    assert done["error"]["errors"][0]["code"] == code
    assert done["httpErrorStatusCode"] == status
    assert (gce.status(), gce.fake.left(), gce.fake.meter()) == ("", [], [])


@pytest.mark.parametrize(("action", "after"), [("DELETE", ""), ("STOP", "TERMINATED")])
def test_a_preempted_machine_stops_and_is_deleted_if_asked(gce: Caller, action: str, after: str) -> None:
    scheduling = {"provisioningModel": "SPOT", "automaticRestart": False, "instanceTerminationAction": action}
    gce.insert(scheduling=scheduling)
    gce.fake.preempt("m1")
    assert gce.status() == "STOPPING"
    gce.after(29.9)
    assert gce.status() == "STOPPING"
    gce.after(0.2)
    assert gce.status() == after
    (told,) = gce.call("GET", f"zones/{ZONE}/operations", filter='operationType = "compute.instances.preempted"')[
        "items"
    ]
    assert (told["user"], told["statusMessage"]) == ("system", "Instance was preempted.")
    assert gce.fake.left() == (["m1"] if after else [])


def test_capacity_that_goes_takes_machines_back(make_caller: MakeCaller) -> None:
    room = [(0.0, 2), (1_900_000_100.0, 1)]
    gce = make_caller(replace(SMALL_WORLD, supplies={(ZONE, "e2-standard-4"): Supply(spot_room=room)}))
    gce.insert("m1")
    gce.insert("m2")
    gce.after(100.0)
    assert sorted([gce.status("m1"), gce.status("m2")]) == ["RUNNING", "STOPPING"]


def test_old_preemptibles_live_a_day(gce: Caller) -> None:
    gce.insert(scheduling={"preemptible": True, "automaticRestart": False})
    gce.after(86_000.0)
    assert gce.status() == "RUNNING"
    gce.after(400.0)
    assert gce.status() == "TERMINATED"


def test_a_lost_host(gce: Caller) -> None:
    gce.insert("m1")
    gce.insert("m2", scheduling={"automaticRestart": True})
    gce.fake.lose("m1")
    gce.fake.lose("m2")
    assert (gce.status("m1"), gce.status("m2")) == ("TERMINATED", "REPAIRING")
    gce.after(30.0)
    assert gce.status("m2") == "RUNNING"
    rows = {r["resource"]: r for r in gce.fake.meter() if r["kind"] == "compute"}
    assert rows["m1"]["end"] is not None


def test_host_events(gce: Caller) -> None:
    gce.insert("spot")
    gce.insert("gpu", **G2, scheduling={**STANDARD, "onHostMaintenance": "TERMINATE"})
    gce.insert("cpu", scheduling=STANDARD)
    for name in ("spot", "gpu", "cpu"):
        gce.call("POST", f"{INSTANCES}/{name}/simulateMaintenanceEvent")
    assert [gce.status(n) for n in ("spot", "gpu", "cpu")] == ["STOPPING", "RUNNING", "RUNNING"]
    assert gce.fake.machine("gpu").maintenance == "TERMINATE_ON_HOST_MAINTENANCE"
    assert gce.fake.machine("cpu").maintenance == "MIGRATE_ON_HOST_MAINTENANCE"
    gce.after(75.0)
    assert [gce.status(n) for n in ("spot", "gpu", "cpu")] == ["", "TERMINATED", "RUNNING"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"machineType": "zones/us-west1-b/machineTypes/e2-standard-4"}, "must be in zone"),
        ({"machineType": f"zones/{ZONE}/machineTypes/e9-giant"}, "does not exist in zone"),
        ({"networkInterfaces": []}, "network interface is required"),
        ({"disks": []}, "boot disk must be specified"),
        ({"labels": {"Team": "a"}}, "Label key is invalid"),
        ({"labels": {"team": "a.b"}}, "violates format constraints"),
        ({"labels": {f"k{i}": "" for i in range(65)}}, "more than 64 labels"),
        ({"metadata": {"items": [{"key": "s", "value": "x" * 262_145}]}}, "larger than 262144 bytes"),
        ({"scheduling": {"provisioningModel": "SPOT"}}, "cannot be automatically restarted"),
        ({"scheduling": {"instanceTerminationAction": "DELETE"}}, "standard provisioning model"),
        ({**G2, "scheduling": {}}, "do not support live migration"),
    ],
)
def test_machines_that_cannot_be(gce: Caller, changes: dict[str, Any], words: str) -> None:
    status, _, message = gce.refused("POST", INSTANCES, machine(**changes))
    assert (status, words in message) == (400, True), message
    assert gce.fake.left() == []


def test_labels_change_over_the_fingerprint_that_was_seen(gce: Caller) -> None:
    gce.insert(labels={"a": "1"})
    seen = gce.call("GET", f"{INSTANCES}/m1")["labelFingerprint"]
    gce.call("POST", f"{INSTANCES}/m1/setLabels", {"labels": {"a": "2"}, "labelFingerprint": seen})
    stale = gce.refused("POST", f"{INSTANCES}/m1/setLabels", {"labels": {"a": "3"}, "labelFingerprint": seen})
    assert stale[:2] == (412, "conditionNotMet")
    assert gce.call("GET", f"{INSTANCES}/m1")["labels"] == {"a": "2"}


def test_disks_keep_to_their_zone_and_to_one_writer(gce: Caller) -> None:
    gce.call("POST", f"zones/{ZONE}/disks", {"name": "d", "sizeGb": "10"})
    gce.call("POST", "zones/us-central1-b/disks", {"name": "far", "sizeGb": "10"})
    assert gce.refused("POST", f"zones/{ZONE}/disks", {"name": "d", "sizeGb": "10"})[1] == "alreadyExists"
    boot = machine()["disks"][0]
    mine = {"source": f"zones/{ZONE}/disks/d", "deviceName": "d"}
    far = {"source": "zones/us-central1-b/disks/far"}
    assert "must be in zone" in gce.refused("POST", INSTANCES, machine(disks=[boot, far]))[2]
    gce.insert("m1", disks=[boot, mine])
    taken = gce.insert("m2", disks=[boot, mine])
    assert taken["error"]["errors"][0]["code"] == "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE"
    assert gce.refused("DELETE", f"zones/{ZONE}/disks/d")[1] == "resourceInUseByAnotherResource"
    gce.call("DELETE", f"{INSTANCES}/m1")
    gce.after(15.0)
    assert gce.fake.left() == ["d", "far"], "its own disk went with the machine, the other one stayed"
    gce.insert("m3", disks=[{**mine, "boot": True, "autoDelete": True}])
    gce.call("DELETE", f"{INSTANCES}/m3")
    gce.after(15.0)
    assert gce.fake.left() == ["far"]


def test_disks_are_no_smaller_than_their_image(gce: Caller) -> None:
    image = "projects/debian-cloud/global/images/family/debian-12"
    small = {"name": "d", "sizeGb": "5", "sourceImage": image}
    assert "smaller than the image" in gce.refused("POST", f"zones/{ZONE}/disks", small)[2]
    gone = {"name": "d", "sourceImage": "projects/debian-cloud/global/images/family/debian-1"}
    assert gce.refused("POST", f"zones/{ZONE}/disks", gone)[0] == 404
    gce.call("POST", f"zones/{ZONE}/disks", {"name": "d", "sourceImage": image})
    assert gce.call("GET", f"zones/{ZONE}/disks/d")["sizeGb"] == "10"


@pytest.mark.parametrize(("lives_s", "billed_s"), [(29.0, 0.0), (31.0, 61.0), (200.0, 230.0)])
def test_what_is_taken_back_in_its_first_minute_is_free(gce: Caller, lives_s: float, billed_s: float) -> None:
    gce.insert()
    gce.after(lives_s)
    gce.fake.preempt("m1")
    gce.after(60.0)
    (row,) = [r for r in gce.fake.meter() if r["kind"] == "compute"]
    assert row["reclaimed"]
    assert row["cost_usd"] == pytest.approx(billed_s / 3600 * row["price_usd"])


def test_a_machine_is_billed_for_a_minute_at_least_and_its_disk_to_the_end(gce: Caller) -> None:
    gce.insert(scheduling=STANDARD)
    gce.after(5.0)
    gce.call("DELETE", f"{INSTANCES}/m1")
    gce.after(1000.0)
    rows = {r["kind"]: r for r in gce.fake.meter()}
    assert rows["compute"]["cost_usd"] == pytest.approx(60 / 3600 * rows["compute"]["price_usd"])
    assert rows["compute"]["price_usd"] == pytest.approx(4 * 0.0218 + 16 * 0.0029)
    assert rows["disk"]["end"] - rows["disk"]["start"] == 25.0
    assert rows["disk"]["cost_usd"] == pytest.approx(25 / 3600 * 10 * 0.04 / 730)


def test_the_documented_rate_is_kept_by_the_minute(make_caller: MakeCaller) -> None:
    gce = make_caller(throttle=True)
    gce.clock.at = 60.0 * 31_666_667
    answers = [gce.raw("GET", f"{INSTANCES}/m1")[0] for _ in range(1501)]
    assert answers == [404] * 1500 + [403]
    assert gce.refused("GET", f"{INSTANCES}/m1")[1] == "rateLimitExceeded"
    assert gce.raw("GET", INSTANCES)[0] == 200, "lists have a rate of their own"
    gce.after(60.0)
    assert gce.raw("GET", f"{INSTANCES}/m1")[0] == 404


def test_history_tells_list_prices_by_interval(make_caller: MakeCaller) -> None:
    rates = {
        **SMALL_WORLD.rates,
        ("", "E2 core"): replace(SMALL_WORLD.rates["", "E2 core"], spot=[(0.0, 0.006), (1_899_990_000.0, 0.008)]),
    }
    gce = make_caller(replace(SMALL_WORLD, rates=rates))
    body = {
        "instanceProperties": {"machineType": "e2-standard-4", "scheduling": {"provisioningModel": "SPOT"}},
        "locationPolicy": {"location": f"zones/{ZONE}"},
        "types": ["PRICE", "PREEMPTION"],
    }
    answer = gce.call("POST", "regions/us-central1/advice/capacityHistory", body)
    prices = [r["listPrice"]["nanos"] for r in answer["priceHistory"]]
    assert prices == [round((4 * core + 16 * 0.0009) * 1e9) for core in (0.006, 0.008)]
    assert len(answer["preemptionHistory"]) == 30
    del body["instanceProperties"]["scheduling"]
    assert "must be SPOT" in gce.refused("POST", "regions/us-central1/advice/capacityHistory", body)[2]
