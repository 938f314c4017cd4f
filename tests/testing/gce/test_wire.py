"""Every request must fit the vendor's own description of the API."""

from __future__ import annotations

import json
from typing import Any

import pytest

from everstep.testing.gce import server
from everstep.testing.gce.discovery import Refused, api
from everstep.testing.gce.filters import matching

from .conftest import ZONE, Caller, machine

INSTANCES = f"zones/{ZONE}/instances"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"machinetype": "x"}, 'Unknown name "machinetype"'),
        ({"scheduling": {"provisioningModel": "CHEAP"}}, "must be one of FLEX_START"),
        ({"scheduling": {"preemptible": "yes"}}, "expected boolean"),
        ({"disks": [{"boot": True, "initializeParams": {"diskSizeGb": "ten"}}]}, "a number was expected"),
        ({"disks": {}}, "a list was expected"),
        ({"labels": {"a": 1}}, "expected string"),
        ({"name": "Machine"}, "must be a match of regex"),
        ({"metadata": {"items": [{"key": "a", "values": "b"}]}}, 'Unknown name "values"'),
        ({"labelFingerprint": "*"}, "base64 was expected"),
    ],
)
def test_a_body_that_does_not_fit_is_refused(gce: Caller, changes: dict[str, Any], words: str) -> None:
    status, _, message = gce.refused("POST", INSTANCES, machine(**changes))
    assert status == 400
    assert words in message
    assert gce.fake.left() == []


@pytest.mark.parametrize(
    ("verb", "path", "query", "status", "words"),
    [
        ("GET", INSTANCES, {"filters": "x"}, 400, 'Unknown name "filters"'),
        ("GET", INSTANCES, {"maxResults": "501"}, 400, "from 0 to 500"),
        ("GET", INSTANCES, {"maxResults": "many"}, 400, "whole number"),
        ("GET", "aggregated/instances", {"includeAllScopes": "1"}, 400, "true or false"),
        ("GET", INSTANCES, {"zone": "us-central1-b"}, 400, 'Unknown name "zone"'),
        ("POST", f"{INSTANCES}/m1/detachDisk", {}, 400, "Required parameter: deviceName"),
        ("GET", f"zones/{ZONE}/instance", {}, 404, "no such method"),
        ("PUT", INSTANCES, {}, 404, "no such method"),
        ("GET", f"zones/{ZONE}/networkEndpointGroups", {}, 501, "does not play"),
        ("GET", INSTANCES, {"filter": "labels.a = b ="}, 400, "Invalid list filter expression"),
    ],
)
def test_a_call_that_does_not_fit_is_refused(
    gce: Caller, verb: str, path: str, query: dict[str, str], status: int, words: str
) -> None:
    found, _, message = gce.refused(verb, path, **query)
    assert (found, words in message) == (status, True), message


def test_a_missing_name_is_named(gce: Caller) -> None:
    body = machine()
    del body["name"]
    assert gce.refused("POST", INSTANCES, body) == (400, "required", "Required field 'resource.name' not specified")


def test_garbage_is_no_crash(gce: Caller) -> None:
    for target, data in (
        ("/compute/v1/x", b"{"),
        ("/", b""),
        ("/compute/v1/projects/%ff/zones?a", b"\xff"),
        ("//", b"[]"),
    ):
        answer = gce.fake.server.answer("POST", target, {"authorization": "Bearer any"}, data)
        assert answer is not None
        assert 400 <= answer[0] < 500, answer
    assert gce.fake.server.crashes == []


@pytest.mark.parametrize("header", ["", "Bearer ", "Basic abc", "Bearer other"])
def test_callers_show_a_token(make_caller: Any, header: str) -> None:
    gce = make_caller(tokens=frozenset({"mine"}))
    answer = gce.fake.server.answer("GET", f"/compute/v1/projects/{gce.fake.project}", {"authorization": header}, b"")
    assert answer[0] == 401


def test_what_is_played_is_in_the_description() -> None:
    played = {*server._CHANGES, "compute.zoneOperations.wait", "compute.advice.capacityHistory"}
    known = {m.described["id"] for methods in api("compute.v1")._methods.values() for m in methods}
    assert played <= known
    assert len(known) > 500


def test_lists_have_pages_and_scopes(gce: Caller) -> None:
    for name in ("m1", "m2", "m3"):
        gce.insert(name, labels={"team": "a" if name != "m2" else "b"})
    first = gce.call("GET", "aggregated/instances", maxResults=2)
    second = gce.call("GET", "aggregated/instances", maxResults=2, pageToken=first["nextPageToken"])
    names = [m["name"] for page in (first, second) for m in page["items"][f"zones/{ZONE}"]["instances"]]
    assert names == ["m1", "m2", "m3"]
    assert "nextPageToken" not in second
    assert first["items"]["zones/us-west1-b"]["warning"]["code"] == "NO_RESULTS_ON_PAGE"
    filtered = gce.call("GET", INSTANCES, filter='labels.team = "a"')
    assert [m["name"] for m in filtered["items"]] == ["m1", "m3"]


ITEMS = [
    {"name": "a1", "labels": {"team": "x", "n": "5"}, "scheduling": {"preemptible": True}, "at": "2030-01-02"},
    {"name": "b2", "labels": {"team": "y"}, "scheduling": {"preemptible": False}, "at": "2030-02-02"},
    {"name": "b3", "at": "2030-03-02"},
]


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("", ["a1", "b2", "b3"]),
        ("name = a1", ["a1"]),
        ('name != "a1"', ["b2", "b3"]),
        ("labels.team:*", ["a1", "b2"]),
        ("scheduling.preemptible = true", ["a1"]),
        ("(labels.team = x) OR (labels.team = y)", ["a1", "b2"]),
        ('(labels.team = "x") (labels.n > 4)', ["a1"]),
        ("labels.n > 50", []),
        ("NOT name:b", ["a1"]),
        ("name = b2 OR name = b3 AND at > 2030-02-15", ["b3"]),
        ("name eq b.", ["b2", "b3"]),
        ('name ne "b.|a1"', []),
        ('at >= "2030-02-02"', ["b2", "b3"]),
    ],
)
def test_filters(expression: str, names: list[str]) -> None:
    assert [i["name"] for i in matching(ITEMS, expression)] == names


@pytest.mark.parametrize(
    "expression", ["name", "name =", "= a", "(name = a", "name = a)", "name eq a AND b = c", "a ~ b"]
)
def test_filters_that_cannot_be_read(expression: str) -> None:
    with pytest.raises(Refused):
        matching(ITEMS, expression)


def test_answers_fit_the_description_too(gce: Caller) -> None:
    """What the fake says is judged by the same document: no field that the vendor does not have."""
    gce.insert(labels={"a": "b"}, guestAccelerators=[], metadata={"items": [{"key": "k", "value": "v"}]})
    compute = api("compute.v1")
    for path, schema in (
        ("aggregated/instances", "InstanceAggregatedList"),
        ("aggregated/disks", "DiskAggregatedList"),
        ("aggregated/operations", "OperationAggregatedList"),
        ("aggregated/machineTypes", "MachineTypeAggregatedList"),
        ("aggregated/acceleratorTypes", "AcceleratorTypeAggregatedList"),
        ("zones", "ZoneList"),
        ("regions", "RegionList"),
        (INSTANCES, "InstanceList"),
    ):
        answer = gce.call("GET", path)
        compute._check({"$ref": schema}, json.loads(json.dumps(answer)), path, "")
