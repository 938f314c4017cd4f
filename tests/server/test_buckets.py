"""Signed URLs: for the machine of a living job, below that job's place, for minutes; nothing else."""

from __future__ import annotations

import dataclasses
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from everstep.model.errors import BadInput
from everstep.model.ids import InstanceId, JobId
from everstep.model.job import JobState
from everstep.model.task import CheckpointSpec, Task
from everstep.server.buckets import LIFE_S, MOST_KEYS, OBJECT_BYTES, Buckets
from tests.blobs.strict_s3 import SECRET, StrictS3
from tests.server import fakes
from tests.server.fakes import Rig
from tests.train.signing import buckets

pytestmark = pytest.mark.xdist_group("s3")

MIRROR = "s3://bucket/allowed/run"


def job_with_mirror(name: str, machine: str, mirror: str = MIRROR) -> JobState:
    task = Task(name="t", run="true", checkpoint=CheckpointSpec(mirror=mirror))
    return fakes.job(name, fakes.machine(machine), task=task)


@pytest.fixture
def signing(rig: Rig, s3: StrictS3) -> Rig:
    """Jobs ``j-1`` and ``j-2`` with a machine each, ``i-1`` and ``i-2``, and mirrors side by side."""
    rig.context.buckets = buckets(s3, "s3://bucket/allowed")
    for number in (1, 2):
        rig.add(job_with_mirror(f"j-{number}", f"i-{number}"))
        rig.desk.given_for[InstanceId(f"i-{number}")] = JobId(f"j-{number}")
    return rig


async def ask(rig: Rig, what: str, body: Any, *, credential: str = fakes.CREDENTIAL) -> tuple[int, Any]:
    async with rig.client(token=credential) as client:
        how = {"content": body} if isinstance(body, bytes) else {"json": body}
        answer = await client.post(f"/agent/v1/objects/{what}", **how)
    return answer.status_code, answer.json()


async def sign(rig: Rig, *keys: str, method: str = "PUT", credential: str = fakes.CREDENTIAL) -> tuple[int, Any]:
    return await ask(rig, "sign", {"method": method, "keys": list(keys)}, credential=credential)


async def test_urls_are_below_the_place_of_the_job_and_live_for_minutes(signing: Rig, s3: StrictS3) -> None:
    status, told = await sign(signing, "000001/000000003/manifest.json", "attempts/000001.json", method="GET")
    assert status == 200
    first, second = map(urlsplit, told["urls"])
    assert first.path == "/bucket/allowed/run/j-1/000001/000000003/manifest.json"
    assert second.path == "/bucket/allowed/run/j-1/attempts/000001.json"
    assert parse_qs(first.query)["X-Amz-Expires"] == [str(int(LIFE_S))]
    assert told["life_s"] == LIFE_S <= 1800
    assert SECRET not in str(told)
    _, told = await sign(signing, "a", credential="credential-of-i-2")
    assert urlsplit(told["urls"][0]).path == "/bucket/allowed/run/j-2/a"


TRICKS = ["../j-2/a", "a/../../j-2/a", "/allowed/run/j-2/a", "", ".", "a//b", "a/./b", "a\0b", "x" * 1025, "a#../../b"]


@pytest.mark.parametrize("key", TRICKS, ids=ascii)
async def test_keys_that_lead_elsewhere_are_refused(signing: Rig, s3: StrictS3, key: str) -> None:
    before = len(s3.seen())
    for method in ("GET", "PUT"):
        assert (await sign(signing, "good", key, method=method))[0] == 422
    assert (await ask(signing, "delete", {"keys": ["good", key]}))[0] == 422
    async with signing.client(token=fakes.CREDENTIAL) as client:
        created = await client.post("/agent/v1/objects/create", params={"key": key}, content=b"x")
    assert created.status_code == 422
    assert len(s3.seen()) == before


@pytest.mark.parametrize("key", ["%2e%2e/j-2/a", "..%2fj-2/a", "a\\..\\..\\j-2", "?x=..%2fj-2", "a#..", "..."])
async def test_keys_that_look_like_tricks_are_names(signing: Rig, s3: StrictS3, key: str) -> None:
    """They are what they are: objects of this job, whatever a URL may mean by such letters."""
    async with signing.client(token=fakes.CREDENTIAL) as client:
        created = await client.post("/agent/v1/objects/create", params={"key": key}, content=b"x")
    assert created.json() == {"created": True}
    assert (await ask(signing, "list", {"prefix": ""}))[1]["objects"] == {key: 1}
    assert (await ask(signing, "list", {"prefix": ""}, credential="credential-of-i-2"))[1]["objects"] == {}
    assert await ask(signing, "delete", {"keys": [key]}) == (200, {})
    assert (await ask(signing, "list", {"prefix": ""}))[1]["objects"] == {}


@pytest.mark.parametrize("prefix", ["../", "../j-2", "/", "a/../../j-2", "a//", "\0"])
async def test_prefixes_that_lead_elsewhere_are_refused_or_empty(signing: Rig, prefix: str) -> None:
    async with signing.client(token="credential-of-i-2") as client:
        await client.post("/agent/v1/objects/create", params={"key": "secret"}, content=b"x")
    status, told = await ask(signing, "list", {"prefix": prefix})
    assert status == 422 or told == {"objects": {}}
    assert "secret" not in str(told)
    await ask(signing, "delete", {"keys": ["secret"]}, credential="credential-of-i-2")


async def test_a_job_whose_name_begins_with_anothers_does_not_see_it(signing: Rig) -> None:
    signing.add(job_with_mirror("j-11", "i-11"))
    signing.desk.given_for[InstanceId("i-11")] = JobId("j-11")
    async with signing.client(token="credential-of-i-11") as client:
        await client.post("/agent/v1/objects/create", params={"key": "a"}, content=b"x")
    assert (await ask(signing, "list", {"prefix": ""}))[1] == {"objects": {}}
    assert (await ask(signing, "list", {"prefix": "1/a"}))[1] == {"objects": {}}
    await ask(signing, "delete", {"keys": ["a"]}, credential="credential-of-i-11")


@pytest.mark.parametrize(
    "credential", ["", "wrong", fakes.TOKEN, "credential-of-i-unknown"], ids=["none", "wrong", "a user's", "no machine"]
)
@pytest.mark.parametrize("what", ["sign", "list", "delete", "create"])
async def test_who_is_no_machine_of_a_job_gets_nothing(signing: Rig, what: str, credential: str) -> None:
    asked = {"method": "GET", "keys": ["a"], "prefix": ""}
    status, told = await ask(signing, what, asked, credential=credential)
    assert status == 401
    assert set(told) == {"error"}


async def test_the_credential_of_a_machine_that_is_gone_has_expired(signing: Rig) -> None:
    assert (await sign(signing, "a"))[0] == 200
    state = signing.controller.states[JobId("j-1")]
    signing.controller.states[JobId("j-1")] = dataclasses.replace(state, instances={})
    for what in ("sign", "list", "delete", "create"):
        assert (await ask(signing, what, {"method": "GET", "keys": ["a"]}))[0] == 401


async def test_a_credential_is_good_for_the_job_that_it_was_given_out_for(signing: Rig) -> None:
    """A machine that one has at home works for one job after the other, under one name."""
    signing.desk.given_for[InstanceId("i-2")] = JobId("j-1")
    assert (await sign(signing, "a", credential="credential-of-i-2"))[0] == 401


async def test_an_object_is_created_once(signing: Rig) -> None:
    async with signing.client(token=fakes.CREDENTIAL) as client:
        answers = [
            await client.post("/agent/v1/objects/create", params={"key": "attempts/000001.json"}, content=content)
            for content in (b"first", b"second")
        ]
        too_large = await client.post("/agent/v1/objects/create", params={"key": "b"}, content=bytes(OBJECT_BYTES + 1))
    assert [answer.json() for answer in answers] == [{"created": True}, {"created": False}]
    assert too_large.status_code == 413
    assert (await ask(signing, "list", {"prefix": ""}))[1]["objects"] == {"attempts/000001.json": 5}
    await ask(signing, "delete", {"keys": ["attempts/000001.json"]})


@pytest.mark.parametrize(
    "mirror",
    [
        "",
        "/shared/folder",
        "s3://bucket",
        "s3://bucket/allowedly",
        "s3://other/allowed",
        "s3://bucket/allowed/../elsewhere",
        "s3://bucket/allowed/%2e%2e/elsewhere",
        "s3://bucket/allowed/x?y",
        "s3://bucket/allowed//x",
        "gs://bucket/allowed",
    ],
)
async def test_other_places_are_not_signed_for(signing: Rig, mirror: str) -> None:
    signing.add(job_with_mirror("j-1", "i-1", mirror))
    status, told = await sign(signing, "a")
    assert status == 404
    assert "signs nothing for" in told["error"] or told["error"] == "job j-1 has no checkpoint.mirror"


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"method": "DELETE", "keys": ["a"]},
        {"method": "GET", "keys": "a"},
        {"method": "GET", "keys": [1]},
        {"method": "GET", "keys": ["a"] * (MOST_KEYS + 1)},
    ],
)
async def test_what_cannot_be_signed_is_refused(signing: Rig, asked: dict[str, Any]) -> None:
    assert (await ask(signing, "sign", asked))[0] == 422


async def test_a_bucket_that_refuses_the_server_or_is_not_there_is_told_apart(rig: Rig, s3: StrictS3) -> None:
    rig.desk.given_for[InstanceId("i-1")] = JobId("j-1")
    rig.add(job_with_mirror("j-1", "i-1"))
    rig.context.buckets = buckets(dataclasses.replace(s3, secret="another"), "s3://bucket/allowed")
    status, told = await ask(rig, "list", {"prefix": ""})
    assert status == 422
    assert "s3://bucket/allowed" in told["error"]
    assert "another" not in told["error"]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"file:///x": {}}, "'file:///x' is no bucket whose URLs can be signed"),
        ({"s3://b/../c": {}}, "is no bucket"),
        ({"s3://b?x": {}}, "is no bucket"),
        ({"s3://b": {"secret_access_key": "x"}}, "unknown key 'secret_access_key'"),
    ],
)
def test_what_is_no_bucket_is_told(given: dict[str, dict[str, str]], text: str) -> None:
    with pytest.raises(BadInput, match=text.replace("?", r"\?")):
        Buckets(given)
