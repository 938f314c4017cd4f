"""The routes for users: who is let in, and what they take in; the deployment and its files."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any

import pytest

from everstep.model.access import Actor, Resource, Verb
from everstep.model.codec import to_dict
from everstep.model.job import JobPhase
from everstep.model.offers import Market
from everstep.model.task import Task
from everstep.ports import ProviderResource, ResourceKind
from tests.server import fakes
from tests.server.answers import kind
from tests.server.fakes import Rig

TASK = to_dict(Task(name="t", run="true"))
GZIP = b"\x1f\x8b" + b"packed" * 10
ROUTES = [
    ("GET", "/api/v1/health"),
    ("POST", "/api/v1/uploads"),
    ("HEAD", f"/api/v1/uploads/{'0' * 64}"),
    ("POST", "/api/v1/jobs"),
    ("POST", "/api/v1/plan"),
    ("GET", "/api/v1/jobs"),
    ("GET", "/api/v1/jobs/j"),
    ("GET", "/api/v1/jobs/j/events"),
    ("GET", "/api/v1/jobs/j/events?follow=1"),
    ("GET", "/api/v1/jobs/j/why"),
    ("GET", "/api/v1/jobs/j/cost"),
    ("GET", "/api/v1/cost"),
    ("GET", "/api/v1/jobs/j/checkpoints"),
    ("GET", "/api/v1/jobs/j/logs"),
    ("POST", "/api/v1/jobs/j/cancel"),
    ("POST", "/api/v1/jobs/j/pause"),
    ("POST", "/api/v1/jobs/j/unpause"),
    ("POST", "/api/v1/jobs/j/retry"),
    ("POST", "/api/v1/jobs/j/restore"),
    ("POST", "/api/v1/jobs/j/exec"),
    ("GET", "/api/v1/jobs/j/exec/x"),
    ("GET", "/api/v1/jobs/j/outputs"),
    ("GET", "/api/v1/jobs/j/outputs/a/b"),
    ("GET", "/api/v1/offers"),
    ("GET", "/api/v1/unknown"),
    ("POST", "/api/v1/unknown/end"),
    ("POST", "/api/v1/server/stop"),
    ("GET", "/api/v1/openapi.json"),
    ("GET", "/anything/else"),
]


@pytest.mark.parametrize(("method", "path"), ROUTES)
@pytest.mark.parametrize("token", ["", "wrong", fakes.TOKEN[:-1], fakes.TOKEN + "x", "ключ"])
async def test_nothing_is_answered_without_the_token(rig: Rig, method: str, path: str, token: str) -> None:
    async with rig.client(token="") as client:
        headers = {"Authorization": f"Bearer {token}".encode()} if token else {}
        answer = await client.request(method, path, headers=headers)
    assert answer.status_code == 401
    assert method == "HEAD" or kind(answer) == "not_authorized"
    assert fakes.TOKEN not in answer.text


async def test_every_route_of_the_application_is_in_the_table_above(rig: Rig) -> None:
    async with rig.client() as client:
        described = (await client.get("/api/v1/openapi.json")).json()["paths"]
    shapes = {(method.upper(), path.count("/")) for path, methods in described.items() for method in methods}
    assert shapes <= {(method, path.partition("?")[0].count("/")) for method, path in ROUTES}
    assert sum(len(methods) for methods in described.values()) == len(ROUTES) - 3


async def test_health_counts_jobs_by_phase(rig: Rig) -> None:
    rig.add(fakes.job("j-1"))
    rig.add(fakes.job("j-2", phase=JobPhase.FAILED))
    async with rig.client() as client:
        answer = (await client.get("/api/v1/health")).json()
    assert answer["jobs"] == {"running": 1, "ended": 1}
    assert (answer["pid"], answer["version"], answer["handshake"]) == (4242, "0.0-test", [1, 1])


async def test_the_seam_decides(rig: Rig) -> None:
    asked: list[tuple[Verb, str]] = []

    def only_reading(actor: Actor, verb: Verb, resource: Resource) -> bool:
        asked.append((verb, resource.job))
        return verb is Verb.READ

    rig.context.authorize = only_reading
    rig.add(fakes.job("j-1"))
    async with rig.client() as client:
        seen = await client.get("/api/v1/jobs/j-1")
        refused = [
            await client.post("/api/v1/jobs/j-1/cancel"),
            await client.post("/api/v1/jobs/j-1/exec", json={"command": "ls"}),
            await client.post("/api/v1/jobs", json={"task": TASK}),
            await client.post("/api/v1/uploads", content=GZIP),
            await client.post("/api/v1/server/stop"),
            await client.get("/api/v1/unknown"),
        ]
    assert seen.status_code == 200
    assert {(r.status_code, kind(r)) for r in refused} == {(403, "not_authorized")}
    assert not rig.controller.asked
    assert {(Verb.CONTROL, "j-1"), (Verb.EXEC, "j-1"), (Verb.SUBMIT, ""), (Verb.ADMIN, "")} <= set(asked)


async def test_a_job_that_may_not_be_read_does_not_exist(rig: Rig) -> None:
    rig.context.authorize = lambda actor, verb, resource: resource.owner != "somebody"
    rig.add(fakes.job("j-1", user="somebody"))
    async with rig.client() as client:
        assert (await client.get("/api/v1/jobs/j-1")).status_code == 404
        assert (await client.get("/api/v1/jobs")).json() == {"jobs": []}
        assert (await client.get("/api/v1/cost")).json() == {"jobs": [], "total_usd": 0}


# --- Submitting -------------------------------------------------------------------------------------------------------


async def test_submit_hands_the_task_over(rig: Rig) -> None:
    task = dataclasses.replace(Task(name="t", run="true"), secret_names=("KEY",))
    async with rig.client() as client:
        value = {"task": to_dict(task), "secrets": {"KEY": "v"}, "project": "p"}
        answer = await client.post("/api/v1/jobs", json=value)
    assert answer.json() == {"job": "j-00000000"}
    assert rig.controller.submitted == [{"task": task, "secrets": {"KEY": "v"}, "actor": Actor(), "project": "p"}]


@pytest.mark.parametrize(
    ("value", "key"),
    [
        ({}, "task"),
        ({"task": 1}, "task"),
        ({"task": {"gang": 7, "run": "x"}}, "task"),
        ({"task": {**TASK, "spot": "perhaps"}}, "task"),
        ({"task": {**TASK, "run": ""}}, "run"),
        ({"task": TASK, "secrets": ["a"]}, "secrets"),
        ({"task": TASK, "secrets": {"A": "1"}}, "secrets.A"),
        ({"task": {**TASK, "secret_names": ["B"]}}, "secrets.B"),
        ({"task": TASK, "project": 3}, "project"),
        ({"task": {**TASK, "workdir_digest": "a" * 64}}, "workdir"),
        ({"task": {**TASK, "workdir_digest": "../../etc/passwd"}}, "sha256"),
    ],
)
async def test_a_bad_submission_names_the_key_and_changes_nothing(rig: Rig, value: Any, key: str) -> None:
    async with rig.client() as client:
        answer = await client.post("/api/v1/jobs", json=value)
    assert (answer.status_code, kind(answer)) == (422, "bad_input")
    assert [p["key"] for p in answer.json()["error"]["problems"]] == [key]
    assert not rig.controller.submitted


@pytest.mark.parametrize("body", [b"{", b"[1]", b"\xff\xfe", b"[" * 100_000])
async def test_a_body_that_is_no_json_object_is_bad_input(rig: Rig, body: bytes) -> None:
    async with rig.client() as client:
        answer = await client.post("/api/v1/jobs", content=body)
    assert (answer.status_code, kind(answer)) == (422, "bad_input")


async def test_a_submission_that_is_too_large_is_turned_away(rig: Rig) -> None:
    async with rig.client() as client:
        answer = await client.post("/api/v1/jobs", content=b" " * (5 << 20))
    assert (answer.status_code, kind(answer)) == (413, "bad_input")


async def test_a_secret_in_the_wrong_place_is_not_echoed(rig: Rig) -> None:
    async with rig.client() as client:
        for value in (
            {"task": {**TASK, "spot": "hunter2"}},
            {"task": {**TASK, "gang": {"groups": "hunter2"}}},
            {"task": TASK, "secrets": {"A": ["hunter2"]}},
            {"task": TASK, "secrets": {"A": "hunter2"}},
        ):
            answer = await client.post("/api/v1/jobs", json=value)
            assert answer.status_code == 422
            assert "hunter2" not in answer.text


async def test_plan_does_nothing(rig: Rig) -> None:
    async with rig.client() as client:
        answer = await client.post("/api/v1/plan", json={"task": TASK})
    assert answer.json()["choice"]["zone"] == "east-a"
    assert [offer["zone"] for offer in answer.json()["offers"]] == ["east-a"]
    assert not rig.controller.states


# --- The deployment ---------------------------------------------------------------------------------------------------


async def test_unknown_resources_are_listed_and_ended_by_name_only(rig: Rig) -> None:
    stray = ProviderResource(
        ResourceKind.INSTANCE,
        "i-9",
        rig.controller.deployment,
        None,
        None,
        None,
        "east-a",
        "m1",
        Market.SPOT,
        True,
        5.0,
    )
    rig.controller.strangers = [stray]
    async with rig.client() as client:
        listed = (await client.get("/api/v1/unknown")).json()["resources"]
        wrong = [
            await client.post("/api/v1/unknown/end", json=v) for v in ({}, {"ids": "i-9"}, {"ids": ["i-9", "i-1"]})
        ]
        assert not rig.controller.ended
        await client.post("/api/v1/unknown/end", json={"ids": ["i-9"]})
    assert [(r["id"], r["kind"], r["zone"]) for r in listed] == [("i-9", "instance", "east-a")]
    assert [w.status_code for w in wrong] == [422, 422, 422]
    assert rig.controller.ended == ["i-9"]


async def test_stop_asks_the_owner_of_the_process(rig: Rig) -> None:
    asked: list[str] = []
    rig.context.on_stop = lambda: asked.append("stop")
    async with rig.client() as client:
        assert (await client.post("/api/v1/server/stop")).json() == {"stopping": True}
    assert asked == ["stop"]


# --- Files ------------------------------------------------------------------------------------------------------------


async def test_an_upload_is_kept_under_its_digest(rig: Rig) -> None:
    digest = hashlib.sha256(GZIP).hexdigest()
    async with rig.client() as client:
        before = await client.head(f"/api/v1/uploads/{digest}")
        answer = await client.post(f"/api/v1/uploads?sha256={digest}", content=GZIP)
        after = await client.head(f"/api/v1/uploads/{digest}")
        nonsense = await client.head("/api/v1/uploads/abc")
        submitted = await client.post("/api/v1/jobs", json={"task": {**TASK, "workdir_digest": digest}})
    assert (before.status_code, after.status_code, nonsense.status_code) == (404, 200, 422)
    assert answer.json() == {"digest": digest}
    assert submitted.status_code == 200


@pytest.mark.parametrize(
    ("query", "body", "status"),
    [
        (f"?sha256={'0' * 64}", GZIP, 422),
        ("?sha256=abc", GZIP, 422),
        ("", b"plain", 422),
        ("", b"", 422),
        ("", GZIP + b"x" * (1 << 20), 413),
    ],
)
async def test_a_bad_upload_leaves_nothing_behind(rig: Rig, query: str, body: bytes, status: int) -> None:
    async with rig.client() as client:
        answer = await client.post(f"/api/v1/uploads{query}", content=body)
    assert (answer.status_code, kind(answer)) == (status, "bad_input")
    assert not list((rig.folder / "files" / "uploads").iterdir())


async def test_outputs_are_listed_and_fetched(rig: Rig) -> None:
    rig.add(fakes.job("j-1", fakes.machine("i-1")))
    async with rig.client() as client:
        headers = {"Authorization": f"Bearer {fakes.CREDENTIAL}"}
        await client.put("/agent/v1/outputs/model/weights.bin", content=b"w" * 10, headers=headers)
        listed = (await client.get("/api/v1/jobs/j-1/outputs")).json()["outputs"]
        fetched = await client.get("/api/v1/jobs/j-1/outputs/node-0/model/weights.bin")
        missing = await client.get("/api/v1/jobs/j-1/outputs/node-0/model")
        outside = await client.get("/api/v1/jobs/j-1/outputs/..%2F..%2Fsecrets")
    assert listed == [{"path": "node-0/model/weights.bin", "bytes": 10}]
    assert fetched.content == b"w" * 10
    assert (missing.status_code, outside.status_code) == (404, 422)
